"""Parts that break an invariant only where there are several groups, windows or states."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from kvref.block_pool import BlockPool
from kvref.groups.base import Demand, Group
from kvref.groups.full_attention import FullAttentionGroup
from kvref.groups.mamba import MambaGroup
from kvref.groups.mamba_align import AlignedMambaGroup
from kvref.groups.sliding_window import SlidingWindowGroup
from kvref.hybrid import HybridCoordinator
from kvref.implementation import ReferenceImplementation
from kvref.request import ReferenceRequest
from kvspec.blocks import NULL_BLOCK, KVCacheBlocks
from kvspec.errors import InvalidArgumentError


class NullIsMinusOne(SlidingWindowGroup):
    """Marks what fell out of the window with -1."""

    def remove_skipped_blocks(self, request_id: str, num_computed_tokens: int) -> None:
        super().remove_skipped_blocks(request_id, num_computed_tokens)
        blocks = self.block_lists.get(request_id, [])
        blocks[:] = [block or -1 for block in blocks]


class ReleasesTheNullBlock(BlockPool):
    """Drops a reference for every null in a list."""

    def release(self, blocks: Iterable[int]) -> None:
        listed = list(blocks)
        super().release(listed)
        self.ref_counts[NULL_BLOCK] -= listed.count(NULL_BLOCK)


class QueuesTwice(SlidingWindowGroup):
    """Queues what fell out of the window once more."""

    def remove_skipped_blocks(self, request_id: str, num_computed_tokens: int) -> None:
        before = list(self.blocks_of(request_id))
        super().remove_skipped_blocks(request_id, num_computed_tokens)
        after = self.blocks_of(request_id)
        gone = [old for old, new in zip(before, after, strict=True) if old != new]
        self.pool.free_queue += [block for block in gone if self.pool.is_free(block)]


class LeaksTheWindow(SlidingWindowGroup):
    """Drops the references of what fell out of the window, but queues none of it."""

    def remove_skipped_blocks(self, request_id: str, num_computed_tokens: int) -> None:
        queue = list(self.pool.free_queue)
        super().remove_skipped_blocks(request_id, num_computed_tokens)
        self.pool.free_queue = queue


class KeepsTheReferences(SlidingWindowGroup):
    """Turns entries null without releasing the blocks."""

    def remove_skipped_blocks(self, request_id: str, num_computed_tokens: int) -> None:
        skipped = self.num_skipped_tokens(num_computed_tokens) // self.block_size
        blocks = self.block_lists.get(request_id, [])
        blocks[:skipped] = [NULL_BLOCK] * min(skipped, len(blocks))


class LooksUpLostKeys(BlockPool):
    """Evicts the primary key of a block and forgets the partial ones in the map."""

    def drop_keys(self, block: int) -> None:
        self.keys[block] = self.keys[block][:1]
        super().drop_keys(block)


class PartialKeysTwice(BlockPool):
    """Registers a partial entry as often as it is asked to."""

    def register_partial(self, block: int, key: bytes, num_tokens: int) -> bool:
        self.keys[block].append(key)
        self.primary_num_tokens[block] = self.primary_num_tokens[block] or num_tokens
        self.cached.setdefault(key, []).append(block)
        return True


class KeysBehindTheLastGroup(SlidingWindowGroup):
    """Caches its blocks for the group behind it, which does not exist."""

    def cache_blocks(self, request: ReferenceRequest, num_tokens: int) -> None:
        self.index += 1
        super().cache_blocks(request, num_tokens)
        self.index -= 1


class KeysOfTheFirstGroup(SlidingWindowGroup):
    """Caches its blocks for group 0."""

    def cache_blocks(self, request: ReferenceRequest, num_tokens: int) -> None:
        own, self.index = self.index, 0
        super().cache_blocks(request, num_tokens)
        self.index = own


class MovesAndKeeps(AlignedMambaGroup):
    """Leaves a drafted state where it was when it moves it to the end."""

    def allocate_new(self, request_id: str, demand: Demand) -> list[int]:
        before = list(self.blocks_of(request_id))
        answer = super().allocate_new(request_id, demand)
        blocks = self.block_lists.get(request_id, [])
        moved = [old for old, new in zip(before, blocks, strict=False) if old != new]
        self.pool.touch(moved)
        blocks[: len(before)] = before
        return answer


class CountsSkippedHitsTwice(SlidingWindowGroup):
    """Hands the hits to the cache as if the skipped ones stood in the list besides."""

    def take_hits(self, request_id: str, hits: Sequence[int], demand: Demand) -> None:
        super().take_hits(request_id, hits, demand)
        self.num_cached[request_id] += list(hits).count(NULL_BLOCK)


class RaisesWhenShort(BlockPool):
    """Not broken by itself: says what a need that is too low leads to."""

    def allocate(self, n: int) -> list[int]:
        if n > self.num_free_blocks:
            raise InvalidArgumentError("n", n, f"at most {self.num_free_blocks}")
        return super().allocate(n)


class NeedsOneLess(SlidingWindowGroup):
    """Promises a block that it then takes."""

    def num_blocks_needed(self, request_id: str, hits: Sequence[int], demand: Demand) -> int:
        return max(super().num_blocks_needed(request_id, hits, demand) - 1, 0)


class LookUpEndsTheStep(MambaGroup):
    """Makes the states of this step usable when somebody looks them up."""

    def longest_hit(
        self,
        hashes: Sequence[bytes],
        max_length_tokens: int,
        *,
        members: Sequence[int],
        drop_last_block: bool,
        alignment_tokens: int,
    ) -> list[list[int]]:
        self.new_step_starts()
        return super().longest_hit(
            hashes,
            max_length_tokens,
            members=members,
            drop_last_block=drop_last_block,
            alignment_tokens=alignment_tokens,
        )


class RefusalKeepsHits(HybridCoordinator):
    """Group 0 takes its hits before the need of all groups is seen to be too high."""

    def num_blocks_needed(self, request_id: str, hits: KVCacheBlocks, demand: Demand) -> int:
        need = super().num_blocks_needed(request_id, hits, demand)
        first = self.groups[0]
        if hits.groups[0] and need > first.pool.num_free_blocks:
            first.take_hits(request_id, hits.groups[0], demand)
        return need


class CopiesBeforeWriting(SlidingWindowGroup):
    """Puts a new block in the place of one that the step goes on to fill."""

    def allocate_new(self, request_id: str, demand: Demand) -> list[int]:
        held = len(self.blocks_of(request_id))
        answer = super().allocate_new(request_id, demand)
        blocks = self.block_lists.get(request_id, [])
        if held and blocks[held - 1] and self.pool.num_free_blocks:
            old = blocks[held - 1]
            blocks[held - 1 : held] = self.pool.allocate(1)
            self.pool.release([old])
        return answer


class EvictsOneTooMany(SlidingWindowGroup):
    """Drops the identity of the first block that is still in the window."""

    def remove_skipped_blocks(self, request_id: str, num_computed_tokens: int) -> None:
        super().remove_skipped_blocks(request_id, num_computed_tokens)
        for block in [block for block in self.blocks_of(request_id) if block != NULL_BLOCK][:1]:
            self.pool.drop_keys(block)


class ReleasedCopiesGoLast(SlidingWindowGroup):
    """What fell out of a window is found only after all its copies."""

    def remove_skipped_blocks(self, request_id: str, num_computed_tokens: int) -> None:
        before = list(self.blocks_of(request_id))
        super().remove_skipped_blocks(request_id, num_computed_tokens)
        for block in set(before) - set(self.blocks_of(request_id)):
            for key in self.pool.keys[block]:
                self.pool.cached[key].remove(block)
                self.pool.cached[key].append(block)


class KeepsTheFirstBlock(SlidingWindowGroup):
    """Removes what fell out of the window but for the first block of the text."""

    def remove_skipped_blocks(self, request_id: str, num_computed_tokens: int) -> None:
        blocks = self.block_lists.get(request_id, [])
        first = blocks[:1]
        self.pool.touch(first)
        super().remove_skipped_blocks(request_id, num_computed_tokens)
        if blocks[:1] == first:
            self.pool.release(first)
        blocks[:1] = first


class MovesTheRunningState(AlignedMambaGroup):
    """Moves the state that the step reads one entry back, together with its key."""

    def allocate_new(self, request_id: str, demand: Demand) -> list[int]:
        running = len(self.blocks_of(request_id)) - self.num_speculative_blocks - 1
        answer = super().allocate_new(request_id, demand)
        blocks = self.block_lists.get(request_id, [])
        if answer and running > 0 and blocks[running - 1] == NULL_BLOCK:
            blocks[running - 1], blocks[running] = blocks[running], NULL_BLOCK
        return answer


class PartialEntriesCoverNothing(BlockPool):
    """Adds the key of a partial entry without noting what it covers."""

    def register_partial(self, block: int, key: bytes, num_tokens: int) -> bool:
        added = super().register_partial(block, key, num_tokens)
        self.primary_num_tokens[block] = 0
        return added


class ListsTheSinks(FullAttentionGroup):
    """Begins the list of a request with the blocks that were set aside."""

    def allocate_new(self, request_id: str, demand: Demand) -> list[int]:
        if not self.blocks_of(request_id):
            self.pool.touch(self.pool.reserved)
            self.block_lists[request_id] = list(self.pool.reserved)
        return super().allocate_new(request_id, demand)


@dataclass(frozen=True)
class BrokenPart:
    """The parts, and the invariant that the audit finds violated."""

    invariant: str
    group: tuple[type[Group], type[Group]] | None = None
    pool: type[BlockPool] = BlockPool
    hybrid: type[HybridCoordinator] = HybridCoordinator

    def __str__(self) -> str:
        broken = [self.pool, self.hybrid, *(self.group[1:] if self.group else ())]
        names = [part.__name__ for part in broken if part not in (BlockPool, HybridCoordinator)]
        return f"{self.invariant}-{'-'.join(names)}"

    def implementation(self) -> ReferenceImplementation:
        """The reference with the broken parts in place."""
        return ReferenceImplementation(
            self.pool,
            group_classes=[self.group] if self.group else [],
            hybrid_class=self.hybrid,
        )


def window(invariant: str, broken: type[Group], pool: type[BlockPool] = BlockPool) -> BrokenPart:
    """A broken window."""
    return BrokenPart(invariant, (SlidingWindowGroup, broken), pool)


BROKEN_PARTS = (
    window("has_the_right_shape", NullIsMinusOne),
    BrokenPart("null_block_is_apart", pool=ReleasesTheNullBlock),
    window("free_queue_has_no_duplicates", QueuesTwice),
    window("free_means_unreferenced", LeaksTheWindow),
    window("references_are_accounted_for", KeepsTheReferences),
    BrokenPart("keys_and_lookups_agree", pool=LooksUpLostKeys),
    BrokenPart("keys_are_listed_once", pool=PartialKeysTwice),
    window("keys_are_well_formed", KeysBehindTheLastGroup),
    window("cached_blocks_belong_to_their_group", KeysOfTheFirstGroup),
    BrokenPart("a_block_has_one_place", (AlignedMambaGroup, MovesAndKeeps)),
    window("cached_counts_fit_the_lists", CountsSkippedHitsTwice),
    window("nulls_come_first", KeepsTheFirstBlock),
    BrokenPart("keys_of_one_place", (AlignedMambaGroup, MovesTheRunningState)),
    BrokenPart("keys_are_covered", pool=PartialEntriesCoverNothing),
    BrokenPart("blocks_set_aside_are_alone", (FullAttentionGroup, ListsTheSinks)),
    window("errors_change_nothing", NeedsOneLess, RaisesWhenShort),
    BrokenPart("pure_calls_change_nothing", (MambaGroup, LookUpEndsTheStep)),
    BrokenPart("a_refusal_only_releases", hybrid=RefusalKeepsHits),
    window("a_list_only_grows_or_turns_null", CopiesBeforeWriting),
    window("blocks_that_stay_keep_their_keys", EvictsOneTooMany),
    window("lookups_keep_their_order", ReleasedCopiesGoLast),
)
