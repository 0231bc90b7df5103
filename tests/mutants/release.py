"""Mutants of late caching, release, eviction by id, and of groups in turn (KV-MGR-11 …)."""

from __future__ import annotations

from collections.abc import Sequence
from unittest import mock

from kvref import arguments
from kvref.coordinator import Coordinator
from kvref.groups.base import Demand
from kvref.manager import ReferenceManager
from kvspec.blocks import NULL_BLOCK, KVCacheBlocks
from kvspec.request import Request
from tests.mutants.make import classes_in


class LoadsAreCachedShort(ReferenceManager):
    """KV-MGR-11: a late registration leaves out the last token."""

    def cache_blocks(self, request: Request, num_computed_tokens: int) -> None:
        super().cache_blocks(request, max(num_computed_tokens - 1, 0))


class LoadsAreNeverCached(ReferenceManager):
    """KV-MGR-11: a late registration does nothing."""

    def cache_blocks(self, request: Request, num_computed_tokens: int) -> None:
        with mock.patch.object(self.coordinator, "cache_blocks", return_value=None):
            super().cache_blocks(request, num_computed_tokens)


class PoppedWithoutNulls(ReferenceManager):
    """KV-MGR-13: popped blocks are answered without the nulls."""

    def pop_blocks_for_free(self, request: Request) -> tuple[int, ...]:
        return tuple(b for b in super().pop_blocks_for_free(request) if b != NULL_BLOCK)


class PoppedBackwards(ReferenceManager):
    """KV-MGR-13: popped blocks are answered last first."""

    def pop_blocks_for_free(self, request: Request) -> tuple[int, ...]:
        return super().pop_blocks_for_free(request)[::-1]


class PoppedAreFreedAtOnce(ReferenceManager):
    """KV-MGR-13: popped blocks go to the queue before they are returned."""

    def pop_blocks_for_free(self, request: Request) -> tuple[int, ...]:
        blocks = super().pop_blocks_for_free(request)
        self.pool.release(reversed(blocks))
        for block in blocks:
            self.pool.ref_counts[block] += block != NULL_BLOCK
        return blocks


class ReturnedOneByOne(ReferenceManager):
    """KV-POOL-7, KV-MGR-13: every returned block is a release call of its own."""

    def free_blocks(self, block_ids: Sequence[int]) -> None:
        for block in block_ids:
            super().free_blocks([block])


class ReturnedBackwards(ReferenceManager):
    """KV-POOL-6, KV-MGR-13: returned blocks are released from the end of the list."""

    def free_blocks(self, block_ids: Sequence[int]) -> None:
        super().free_blocks(list(block_ids)[::-1])


class EvictsInOrderOfIds(ReferenceManager):
    """KV-POOL-10: blocks are evicted in the order of their ids, not of the call."""

    def evict_blocks(self, block_ids: Sequence[int]) -> None:
        super().evict_blocks(sorted(block_ids))


class EvictsTheFirstOnly(ReferenceManager):
    """KV-POOL-10: of several blocks only the first is evicted."""

    def evict_blocks(self, block_ids: Sequence[int]) -> None:
        super().evict_blocks(arguments.block_ids(block_ids, self.pool.num_blocks)[:1])


class RemovesOneTokenEarly(ReferenceManager):
    """KV-MGR-14: skipped blocks are counted one token ahead."""

    def remove_skipped_blocks(self, request: Request, total_computed_tokens: int) -> None:
        super().remove_skipped_blocks(request, total_computed_tokens + 1)


class CommonPrefixOfTheFirstGroup(ReferenceManager):
    """KV-MGR-15: every group answers what the first one does."""

    def get_num_common_prefix_blocks(self, request: Request) -> tuple[int, ...]:
        answer = super().get_num_common_prefix_blocks(request)
        return answer[:1] * len(answer)


class CommonPrefixWithoutCaching(ReferenceManager):
    """KV-COORD-1, KV-MGR-15: groups are asked for their common prefix although caching is off."""

    def get_num_common_prefix_blocks(self, request: Request) -> tuple[int, ...]:
        name = self.own(request).request_id
        return tuple(group.num_common_prefix_blocks(name) for group in self.groups)


class ZeroedInOrderOfIds(ReferenceManager):
    """KV-MGR-16: blocks to be zeroed are sorted, not group by group."""

    def take_new_block_ids(self) -> tuple[int, ...]:
        return tuple(sorted(super().take_new_block_ids()))


class StepStartsInTheFirstGroup(ReferenceManager):
    """KV-MGR-19: only the first group hears of a new step."""

    def new_step_starts(self) -> None:
        self.groups[0].new_step_starts()


class StepDropsTheStatistics(ReferenceManager):
    """KV-MGR-19: a new step clears the statistics."""

    def new_step_starts(self) -> None:
        super().new_step_starts()
        self.lookups.take()


class UnhashedWithNulls(ReferenceManager):
    """KV-POOL-1, KV-GRP-1: null counts as a block without a hash."""

    def get_unhashed_block_ids(self, request: Request) -> tuple[tuple[int, ...], ...]:
        return tuple(
            tuple(block for block in blocks if not self.pool.keys[block])
            for blocks in self.get_blocks(request).groups
        )


class ExternalBlocksTooEarly(Coordinator):
    """KV-GRP-8: a group takes its external blocks before the next group takes its hits."""

    def take_hits(self, request_id: str, hits: KVCacheBlocks, demand: Demand) -> None:
        if self.is_running(request_id):
            return
        for group, group_hits in zip(self.groups, hits.groups, strict=True):
            group.take_hits(request_id, group_hits, demand)
            if demand.num_external_tokens > 0:
                group.allocate_external(request_id, demand)


class FreesFirstToLast(Coordinator):
    """KV-POOL-8: the blocks of a request are released in the order of the list."""

    def free(self, request_id: str) -> None:
        for group in self.groups:
            group.pool.release(group.pop(request_id))


class FreesLastGroupFirst(Coordinator):
    """KV-POOL-7: groups are released in reverse order."""

    def free(self, request_id: str) -> None:
        for group in reversed(self.groups):
            group.pool.release(reversed(group.pop(request_id)))


class FreesAllGroupsAtOnce(Coordinator):
    """KV-POOL-7: the blocks of all groups are one release call."""

    def free(self, request_id: str) -> None:
        lists = [group.pop(request_id)[::-1] for group in self.groups]
        for group in self.groups[:1]:
            group.pool.release(block for blocks in lists for block in blocks)


class FreesTheFirstGroup(Coordinator):
    """KV-MGR-12: blocks of the other groups are forgotten, not released."""

    def free(self, request_id: str) -> None:
        for number, group in enumerate(self.groups):
            blocks = group.pop(request_id)
            group.pool.release(blocks[::-1] if number == 0 else [])


class PopsLastGroupFirst(Coordinator):
    """KV-MGR-13: popped blocks of later groups come first."""

    def pop(self, request_id: str) -> list[int]:
        return [block for group in reversed(self.groups) for block in group.pop(request_id)]


class RemovesInTheFirstGroup(Coordinator):
    """KV-MGR-14: only the first group gives up what was skipped."""

    def remove_skipped_blocks(self, request_id: str, num_computed_tokens: int) -> None:
        self.groups[0].remove_skipped_blocks(request_id, num_computed_tokens)


class RemovesLastGroupFirst(Coordinator):
    """KV-MGR-14, KV-POOL-7: skipped blocks of later groups are released first."""

    def remove_skipped_blocks(self, request_id: str, num_computed_tokens: int) -> None:
        for group in reversed(self.groups):
            group.remove_skipped_blocks(request_id, num_computed_tokens)


class EveryGroupMustRun(Coordinator):
    """KV-GRP-9: a request is running when all groups have an entry for it."""

    def is_running(self, request_id: str) -> bool:
        return all(group.has_entry(request_id) for group in self.groups)


class NeedOfTheLargestGroup(Coordinator):
    """KV-MGR-7: the need is that of the group that needs most."""

    def num_blocks_needed(self, request_id: str, hits: KVCacheBlocks, demand: Demand) -> int:
        return max(
            (
                group.num_blocks_needed(request_id, group_hits, demand)
                for group, group_hits in zip(self.groups, hits.groups, strict=True)
            ),
            default=0,
        )


MUTANTS = classes_in(__name__)
