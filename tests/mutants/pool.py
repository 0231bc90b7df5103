"""Mutants of the pool: order, references, identity, reset (KV-POOL-*)."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from kvref.block_pool import BlockPool
from kvspec.blocks import NULL_BLOCK
from tests.mutants.make import classes_in


class HandsOutBackwards(BlockPool):
    """KV-POOL-3: the blocks taken are handed out last first."""

    def allocate(self, n: int) -> list[int]:
        return super().allocate(n)[::-1]


class StartsFromTheHighestId(BlockPool):
    """KV-POOL-2: the queue of a fresh pool runs downwards."""

    def __init__(self, num_blocks: int, **options: Any) -> None:
        super().__init__(num_blocks, **options)
        self.free_queue.reverse()


class LastBlockIsNeverUsed(BlockPool):
    """KV-POOL-2, KV-POOL-15: off by one in the fresh queue."""

    def __init__(self, num_blocks: int, **options: Any) -> None:
        super().__init__(num_blocks, **options)
        del self.free_queue[-1:]


class NullIsInTheQueue(BlockPool):
    """KV-POOL-1: block 0 is handed out like any other."""

    def __init__(self, num_blocks: int, **options: Any) -> None:
        super().__init__(num_blocks, **options)
        self.free_queue.insert(0, NULL_BLOCK)


class PrefersUncachedBlocks(BlockPool):
    """KV-POOL-3: a cached block is taken only when no other is free."""

    def allocate(self, n: int) -> list[int]:
        self.free_queue.sort(key=lambda block: bool(self.keys[block]))
        return super().allocate(n)


class SharedHitsAreNotCounted(BlockPool):
    """KV-POOL-5: only a free block gets a reference from a hit."""

    def touch(self, blocks: Sequence[int]) -> None:
        super().touch([block for block in blocks if self.is_free(block)])


class OneHitLeavesTheQueue(BlockPool):
    """KV-POOL-5: only the first free hit is taken out of the queue."""

    def touch(self, blocks: Sequence[int]) -> None:
        before = list(self.free_queue)
        super().touch(blocks)
        gone = [block for block in before if block not in self.free_queue]
        self.free_queue = [block for block in before if block not in gone[:1]]


class RevivedHitsShuffleTheQueue(BlockPool):
    """KV-POOL-5: the last free block is swapped into the place of a revived one."""

    def touch(self, blocks: Sequence[int]) -> None:
        for block in blocks:
            if self.is_free(block):
                place = self.free_queue.index(block)
                self.free_queue[place] = self.free_queue[-1]
                self.free_queue[-1] = block
            super().touch([block])


class HashedRunReversed(BlockPool):
    """KV-POOL-6: cached blocks go to the back one by one from the end of the list."""

    def release(self, blocks: Iterable[int]) -> None:
        before = set(self.free_queue)
        super().release(blocks)
        run = [b for b in self.free_queue if b not in before and self.keys[b]]
        if run:
            self.free_queue[-len(run) :] = run[::-1]


class EverythingToTheBack(BlockPool):
    """KV-POOL-6, KV-POL-2: unhashed blocks go to the back, which the profile does not say."""

    def __init__(self, num_blocks: int, **options: Any) -> None:
        super().__init__(num_blocks, **{**options, "unhashed_freed_to": "back"})


class LeaksHashedBlocks(BlockPool):
    """KV-POOL-6, KV-POOL-15: a cached block that is released never comes back."""

    def release(self, blocks: Iterable[int]) -> None:
        before = set(self.free_queue)
        super().release(blocks)
        self.free_queue = [b for b in self.free_queue if b in before or not self.keys[b]]


class QueuesHashedBlocksTwice(BlockPool):
    """KV-POOL-6, KV-POOL-15: a cached block is queued at both ends."""

    def release(self, blocks: Iterable[int]) -> None:
        before = set(self.free_queue)
        super().release(blocks)
        run = [b for b in self.free_queue if b not in before and self.keys[b]]
        self.free_queue[:0] = run


class FreesAtOneReference(BlockPool):
    """KV-POOL-6: a block is freed when one holder is left."""

    def release(self, blocks: Iterable[int]) -> None:
        shared = []
        listed = list(blocks)
        for block in listed:
            if block != NULL_BLOCK and self.ref_counts[block] == 2:
                self.ref_counts[block] = 1
                shared.append(block)
        super().release(listed)
        for block in shared:
            self.ref_counts[block] = 1


class ReleaseLosesIdentity(BlockPool):
    """KV-POOL-6: a block loses its keys when it is released, not when it is taken."""

    def release(self, blocks: Iterable[int]) -> None:
        listed = list(blocks)
        super().release(listed)
        for block in listed:
            if self.is_free(block):
                self.drop_keys(block)


class EvictsOnlyTheFirstTaken(BlockPool):
    """KV-POOL-4: of several blocks taken at once only the first loses its keys."""

    def allocate(self, n: int) -> list[int]:
        kept = {block: list(self.keys[block]) for block in self.free_queue[1:n]}
        for block in kept:
            self.keys[block] = []
        taken = super().allocate(n)
        for block, keys in kept.items():
            self.keys[block] = keys
        return taken

    def register(self, block: int, key: bytes, num_tokens: int) -> None:
        self.drop_keys(block)
        super().register(block, key, num_tokens)


class OnlyFreeBlocksAreForgotten(BlockPool):
    """KV-POOL-10: eviction by id passes over blocks in use."""

    def forget(self, block: int) -> None:
        if self.is_free(block):
            super().forget(block)


class OnlyUsedBlocksAreForgotten(BlockPool):
    """KV-POOL-10: eviction by id passes over free blocks."""

    def forget(self, block: int) -> None:
        if block not in self.free_queue:
            super().forget(block)


class LowestIdFirst(BlockPool):
    """KV-POOL-13: among copies a look-up answers the one with the lowest id."""

    def find(self, key: bytes) -> int | None:
        return min(self.cached[key]) if key in self.cached else None


class UsedCopyFirst(BlockPool):
    """KV-POOL-13: among copies a look-up prefers one in use."""

    def find(self, key: bytes) -> int | None:
        if key not in self.cached:
            return None
        used = [block for block in self.cached[key] if not self.is_free(block)]
        return (used or self.cached[key])[0]


class LastCopyTakesTheFirstPlace(BlockPool):
    """KV-POOL-13: when the first copy goes, the last one moves to its place."""

    def drop_keys(self, block: int) -> None:
        for key in self.keys[block]:
            copies = self.cached[key]
            if copies[0] == block:
                copies[1:] = copies[-1:] + copies[1:-1]
        super().drop_keys(block)


class OneRemovalForAllCopies(BlockPool):
    """KV-EVT-4, KV-POL-3: Removed goes out with the last copy, which the profile does not say."""

    def __init__(self, num_blocks: int, **options: Any) -> None:
        super().__init__(num_blocks, **{**options, "removed_event_per": "last_copy"})


class ResetOnlyWhenNothingIsCached(BlockPool):
    """KV-POOL-11: a reset is refused while a free block is cached."""

    def reset(self) -> bool:
        return not self.cached and super().reset()


class ResetForgetsTheMapOnly(BlockPool):
    """KV-POOL-11: blocks keep their keys, which then stand in no map."""

    def reset(self) -> bool:
        keys = self.keys
        done = super().reset()
        if done:
            self.keys = keys
        return done


class ResetSortsTheQueue(BlockPool):
    """KV-POOL-11: a reset puts the queue in the order of a fresh pool."""

    def reset(self) -> bool:
        done = super().reset()
        if done:
            self.free_queue.sort()
        return done


class ResetCountsTheSinks(BlockPool):
    """KV-POOL-11, KV-FULL-8: blocks set aside count as in use, so that no reset succeeds."""

    def reset(self) -> bool:
        return self.num_free_blocks == self.num_blocks - 1 and super().reset()


class ResetIsSilent(BlockPool):
    """KV-EVT-5: a reset queues no event."""

    def reset(self) -> bool:
        enabled, self.events.enabled = self.events.enabled, False
        done = super().reset()
        self.events.enabled = enabled
        return done


class RefusedResetIsTold(BlockPool):
    """KV-EVT-5: AllCleared goes out although the reset was refused."""

    def reset(self) -> bool:
        done = super().reset()
        if not done:
            self.events.cleared()
        return done


class SinksAreNotSetAside(BlockPool):
    """KV-FULL-8: sink blocks stay in the queue."""

    def set_aside(self, n: int) -> None:
        pass


class SinksComeFromTheBack(BlockPool):
    """KV-FULL-8, KV-POOL-3: the blocks set aside are the last of the queue."""

    def set_aside(self, n: int) -> None:
        self.free_queue.reverse()
        super().set_aside(n)
        self.free_queue.reverse()


class UsageCountsTheNullBlock(BlockPool):
    """KV-POOL-12: the share of all blocks, the null block among them."""

    @property
    def usage(self) -> float:
        return 1.0 - self.num_free_blocks / self.num_blocks


class UsageCountsCachedBlocks(BlockPool):
    """KV-POOL-12: cached blocks count as used although they are free."""

    @property
    def usage(self) -> float:
        unused = [block for block in self.free_queue if not self.keys[block]]
        return 1.0 - len(unused) / max(1, self.num_blocks - 1)


class NoBlocksNoUsage(BlockPool):
    """KV-POOL-12: a pool of the null block only counts as full."""

    @property
    def usage(self) -> float:
        return super().usage if self.num_blocks > 1 else 1.0


MUTANTS = classes_in(__name__)
