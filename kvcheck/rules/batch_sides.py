"""One side of a comparison of batches: an implementation, its manager, and its outputs."""

from __future__ import annotations

from array import array
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeAlias, cast

from kvcheck.play.keeping import Kept
from kvspec.batched import BatchedManager, StepOutput
from kvspec.following import FollowingImplementation
from kvspec.interface import Feature, Implementation, KVCacheManager
from kvspec.request import Request, RequestInput

UNTOUCHED = -7
"""Content of outputs before a step; slots that are not written keep it."""


class Clock:
    """Nanoseconds that pass only between calls."""

    now = 0

    def __call__(self) -> int:
        return self.now


class Outputs:
    """The outputs of one step: `num_rows` rows, and a mapping per length that is not None."""

    def __init__(self, num_rows: int = 0, lengths: Sequence[int | None] | None = None) -> None:
        self.rows = array("i", [UNTOUCHED]) * (4 * num_rows)
        self.slots: list[array[int] | None] | None = None
        if lengths is not None:
            self.slots = [None if n is None else array("q", [UNTOUCHED]) * n for n in lengths]
        view = None
        if num_rows:
            view = memoryview(self.rows).cast("B").cast("i", [num_rows, 4])
        self.given = StepOutput(view, self.slots)

    def row(self, number: int) -> tuple[int, ...]:
        """Return handle, group, index, block."""
        return tuple(self.rows[4 * number : 4 * number + 4])


@dataclass
class Side:
    implementation: Implementation
    manager: KVCacheManager
    batched: BatchedManager
    outputs: Outputs

    def made(self, given: RequestInput, kept: Kept | None) -> Request:
        """Make a request, a followed one if the engine keeps its tokens."""
        if kept is None:
            return self.implementation.make_request(self.manager, given)
        return cast(FollowingImplementation, self.implementation).make_followed(
            self.manager, kept.first
        )

    def state(self, handles: Sequence[int] = ()) -> dict[str, object]:
        """Return everything a caller may observe of the manager; this empties the queues.

        `handles`: of the registered requests.
        """
        manager, features = self.manager, self.implementation.capabilities.features
        shown: dict[str, object] = {
            "num_free_blocks": manager.num_free_blocks,
            "num_pending_deltas": self.batched.num_pending_deltas(),
            "list_lengths": self.batched.list_lengths(handles),
            "events": manager.take_events(),
            "statistics": manager.make_prefix_cache_stats(),
            "samples": manager.take_residency_samples(),
        }
        if Feature.NEW_BLOCK_IDS in features:
            shown["new_block_ids"] = manager.take_new_block_ids()
        if Feature.SNAPSHOT in features:
            shown["snapshot"] = manager.snapshot()
            shown["next_free_blocks"] = self.batched.next_free_blocks(3)
            shown["all free blocks"] = self.batched.next_free_blocks(manager.num_free_blocks + 1)
        return shown

    def members(self, handle: int) -> tuple[object, ...]:
        r = self.batched.request_of(handle)
        owned = (r.num_computed_tokens, r.num_preemptions, r.status)
        return (r.request_id, r.num_tokens, *owned, self.manager.get_blocks(r).to_lists())


Batch: TypeAlias = Callable[[Implementation, KVCacheManager], BatchedManager]
"""Makes the batched manager of a manager."""
