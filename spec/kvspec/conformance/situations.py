"""Which situations a run really reached: who never saw an eviction has checked none."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from types import MappingProxyType

from kvspec.blocks import NULL_BLOCK
from kvspec.conformance.runner import Performed, Runner

SITUATIONS: Mapping[str, str] = MappingProxyType(
    {
        "refusal": "an allocation was refused",
        "hit": "a look-up found something",
        "shared block": "a hit took a block that somebody else holds",
        "revived block": "a hit took a block out of the free queue",
        "eviction": "an allocation took a block that was cached",
        "duplicates": "two blocks carried the same key",
        "resumed with a hit": "a preempted request found part of its own prefix",
        "null in a hit": "a hit left out blocks that attention does not need",
        "window passed": "blocks fell out of a window while the request ran",
        "masked block": "a full block was not worth caching",
        "groups disagreed": "some group's own hit was longer than the common one",
        "external tokens": "tokens came from another store",
        "late registration": "a load was registered after it arrived",
        "accepted drafts": "drafts became tokens",
        "deferred free": "blocks were popped and returned later",
        "evicted by id": "a cached identity was dropped by block id",
        "reset": "the cache was reset",
        "reset refused": "a reset found blocks in use",
    }
)
"""Name -> what happened."""


class SituationCounter:
    """Counts situations; a check that never complains."""

    def __init__(self, counts: Counter[str]) -> None:
        self.counts = counts

    def after_step(self, runner: Runner) -> None:
        """Nothing happens between operations."""

    def after_operation(self, runner: Runner, done: Performed) -> None:
        """See what this operation was an instance of."""
        counted = {
            "allocate_slots": self._allocation,
            "get_computed_blocks": self._look_up,
            "append_tokens": self._append,
        }.get(done.name)
        if counted is not None:
            counted(runner, done)
        elif done.name == "cache_blocks":
            self.counts["late registration"] += 1
        elif done.name == "free_blocks":
            self.counts["deferred free"] += 1
        elif done.name == "evict_blocks":
            self.counts["evicted by id"] += 1
        elif done.name == "reset_prefix_cache":
            self.counts["reset" if done.outcome.result else "reset refused"] += 1
        if done.after.dup_order:
            self.counts["duplicates"] += 1

    def _look_up(self, runner: Runner, done: Performed) -> None:
        hit = done.outcome.result
        if not hit or not hit["num_computed_tokens"]:
            return
        self.counts["hit"] += 1
        if hit["num_uncached_common_prefix_tokens"]:
            self.counts["groups disagreed"] += 1
        if any(block == NULL_BLOCK for blocks in hit["blocks"] for block in blocks):
            self.counts["null in a hit"] += 1

    def _allocation(self, runner: Runner, done: Performed) -> None:
        if done.outcome.result is None:
            self.counts["refusal"] += 1
            return
        before, after = done.before.snapshot, done.after.snapshot
        hits = [b for blocks in done.arguments.get("new_computed_blocks") or () for b in blocks]
        taken = [block for block in hits if block != NULL_BLOCK]
        if any(before.ref_counts[block] for block in taken):
            self.counts["shared block"] += 1
        if any(not before.ref_counts[block] for block in taken):
            self.counts["revived block"] += 1
        if taken and done.request is not None and done.request.num_preemptions:
            self.counts["resumed with a hit"] += 1
        if done.arguments.get("num_external_computed_tokens"):
            self.counts["external tokens"] += 1
        gone = [k for k, blocks in before.lookup_order.items() if k not in after.lookup_order]
        if gone:
            self.counts["eviction"] += 1
        if done.request is not None and done.request.name in before.requests:
            self._list_changes(done)

    def _list_changes(self, done: Performed) -> None:
        """What happened to the lists of a request that held blocks before."""
        if done.request is None:
            return
        old = done.before.snapshot.requests[done.request.name]
        new = done.after.snapshot.requests[done.request.name]
        for blocks_before, blocks in zip(old.block_ids, new.block_ids, strict=True):
            for was, now in zip(blocks_before, blocks, strict=False):
                if was != NULL_BLOCK and now == NULL_BLOCK:
                    self.counts["window passed"] += 1
                    break
        for blocks, count in zip(new.block_ids, new.num_cached_blocks, strict=True):
            keys = done.after.snapshot.block_keys
            if any(b != NULL_BLOCK and not keys[b] for b in blocks[: count or 0]):
                self.counts["masked block"] += 1
                break

    def _append(self, runner: Runner, done: Performed) -> None:
        request = done.request
        if request is not None and request.num_computed == len(request.tokens) - 1:
            self.counts["accepted drafts"] += 1


def missed(counts: Counter[str]) -> tuple[str, ...]:
    """Situations that never came up."""
    return tuple(name for name in SITUATIONS if not counts[name])
