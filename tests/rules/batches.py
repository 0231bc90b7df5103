"""Whole steps on a small manager, and memory for their outputs."""

from __future__ import annotations

from array import array
from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

from kvspec.batched import StepOutput, StepPlan, StepResult
from kvspec.interface import Implementation
from kvspec.request import Request
from kvspec.sequential import batched_of
from tests.rules.builders import make_config, new_request

UNTOUCHED = -7


def rows_of(num_rows: int) -> Any:
    """Room for rows (handle, group, index, block), with the standard library alone."""
    flat = memoryview(array("i", [UNTOUCHED]) * (4 * num_rows))
    return flat.cast("B").cast("i", [num_rows, 4])


def slots_of(length: int) -> array[int]:
    """Room for a slot mapping."""
    return array("q", [UNTOUCHED]) * length


class Steps:
    """A manager, and whole steps on it: the implementation's own, or made of its single calls."""

    def __init__(
        self,
        implementation: Implementation,
        num_blocks: int = 12,
        block_size: int = 4,
        *,
        check_invariants: bool = True,
        **config: Any,
    ) -> None:
        self.implementation = implementation
        made = make_config(num_blocks, block_size, **config)
        self.manager = implementation.create(made, check_invariants=check_invariants)
        self.batched = batched_of(implementation, self.manager)
        self.num_requests = 0

    def request(self, tokens: Sequence[int], **content: Any) -> Request:
        """A request that is not registered."""
        self.num_requests += 1
        name = f"r{self.num_requests}"
        return new_request(self.implementation, self.manager, name, tokens, **content)

    def register(self, *texts: Sequence[int]) -> list[int]:
        """Handles of new requests with these prompts."""
        return [self.batched.register(self.request(text)) for text in texts]

    def admitted(self, *texts: Sequence[int]) -> list[int]:
        """The same, and all their tokens granted."""
        handles = self.register(*texts)
        granted = self.batched.admit(handles).num_scheduled_tokens
        assert all(granted)
        return handles

    def of(self, handle: int) -> Request:
        """The registered request."""
        return self.batched.request_of(handle)

    def lists(self, handle: int) -> list[list[int]]:
        """Its block list in every group."""
        return self.manager.get_blocks(self.of(handle)).to_lists()

    def write(
        self, plan: StepPlan, num_rows: int = 20, **lengths: int
    ) -> tuple[StepResult, Any, Any]:
        """A step with outputs: its result, the rows written, and the slots of each group.

        `lengths`: `g0=5` for a mapping of 5 slots of group 0; others have none.
        """
        rows = rows_of(num_rows)
        groups = range(len(self.manager.config.kv_cache.groups))
        slots = [slots_of(lengths[f"g{g}"]) if f"g{g}" in lengths else None for g in groups]
        result = self.batched.step(plan, StepOutput(rows, slots))
        written = [tuple(row) for row in rows.tolist()[: result.num_deltas]]
        assert rows.tolist()[result.num_deltas :] == [[UNTOUCHED] * 4] * (
            num_rows - result.num_deltas
        )
        return result, written, [None if s is None else s.tolist() for s in slots]

    def state(self) -> object:
        """All that can be seen, the queues emptied."""
        handles = range(20)
        members = []
        for handle in handles:
            try:
                r = self.of(handle)
            except ValueError:
                continue
            owned = (r.num_computed_tokens, r.num_preemptions, r.status)
            members.append((handle, r.request_id, list(r.token_ids), *owned))
        return (
            self.manager.snapshot(),
            self.manager.take_events(),
            self.manager.make_prefix_cache_stats(),
            self.manager.take_new_block_ids(),
            self.batched.num_pending_deltas(),
            members,
        )


MakeSteps: TypeAlias = Callable[..., Steps]
