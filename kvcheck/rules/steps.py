"""Whole steps on a small manager, and memory for their outputs."""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from typing import Any

from kvcheck.rules.bench import Bench
from kvcheck.rules.judging import equal, holds
from kvspec.batched import StepOutput, StepPlan, StepResult
from kvspec.interface import Feature
from kvspec.request import Request
from kvspec.sequential import batched_of

UNTOUCHED = -7


def rows_of(num_rows: int) -> Any:
    """Allocate rows (handle, group, index, block), with the standard library alone."""
    flat = memoryview(array("i", [UNTOUCHED]) * (4 * num_rows))
    return flat.cast("B").cast("i", [num_rows, 4])


def slots_of(length: int) -> array[int]:
    return array("q", [UNTOUCHED]) * length


class Steps:
    """A manager, and the implementation's own whole steps on it.

    The arguments are those of `Bench.config`; without any, 12 blocks of 4 tokens.
    """

    def __init__(
        self, bench: Bench, num_blocks: int = 12, *layers: Any, check_invariants: bool = True,
        **options: Any,
    ) -> None:  # fmt: skip
        bench.need(Feature.BATCHED)
        config = bench.config(num_blocks, *layers, **options)
        self.manager = bench.create(config, check_invariants=check_invariants)
        self.batched: Any = batched_of(bench.subject, self.manager.real)
        self.manager.is_shared = True
        self.num_requests = 0

    def request(self, tokens: Sequence[int], **content: Any) -> Any:
        """Make a request that is not registered."""
        self.num_requests += 1
        return self.manager.request(f"r{self.num_requests}", tokens, **content)

    def register(self, *texts: Sequence[int]) -> list[int]:
        return [self.batched.register(self.request(text)) for text in texts]

    def admitted(self, *texts: Sequence[int]) -> list[int]:
        handles = self.register(*texts)
        granted = self.batched.admit(handles).num_scheduled_tokens
        holds(all(granted), "all of them are granted")
        return handles

    def of(self, handle: int) -> Request:
        request: Request = self.batched.request_of(handle)
        return request

    def lists(self, handle: int) -> list[list[int]]:
        return self.manager.lists(self.of(handle))

    def write(
        self, plan: StepPlan, num_rows: int = 20, **lengths: int
    ) -> tuple[StepResult, Any, Any]:
        """Make a step with outputs; return its result, the rows written, and each group's slots.

        `lengths`: `g0=5` for a mapping of 5 slots of group 0; others have none.
        """
        rows = rows_of(num_rows)
        groups = range(len(self.manager.config.kv_cache.groups))
        slots = [slots_of(lengths[f"g{g}"]) if f"g{g}" in lengths else None for g in groups]
        result = self.batched.step(plan, StepOutput(rows, slots))
        written = [tuple(row) for row in rows.tolist()[: result.num_deltas]]
        rest = rows.tolist()[result.num_deltas :]
        equal(rest, [[UNTOUCHED] * 4] * len(rest), "the rows that were not written")
        return result, written, [None if s is None else s.tolist() for s in slots]

    def state(self) -> object:
        members = []
        for handle in range(20):
            try:
                r = self.of(handle)
            except ValueError:
                continue
            owned = (r.num_computed_tokens, r.num_preemptions, r.status)
            members.append((handle, r.request_id, list(r.token_ids), *owned))
        return (
            self.manager.visible(),
            self.manager.take_events(),
            self.manager.make_prefix_cache_stats(),
            self.manager.take_new_block_ids(),
            self.batched.num_pending_deltas(),
            members,
        )
