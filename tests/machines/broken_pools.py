"""Pools with one bug each: neighbours of bugs that engines had. The machine must catch them all."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from kvref.block_pool import BlockPool
from kvspec.blocks import NULL_BLOCK


class LeaksUnhashedBlocks(BlockPool):
    """Forgets blocks without a hash when they are released."""

    def release(self, blocks: Iterable[int]) -> None:
        freed = []
        for block in blocks:
            if block != NULL_BLOCK:
                self.ref_counts[block] -= 1
                if self.ref_counts[block] == 0 and self.keys[block]:
                    freed.append(block)
        self.free_queue.extend(freed)


class GivesABlockTwice(BlockPool):
    """Leaves the last taken block in the queue: two owners."""

    def allocate(self, n: int) -> list[int]:
        taken = super().allocate(n)
        self.free_queue[:0] = taken[-1:]
        return taken


class TouchLeavesTheBlockFree(BlockPool):
    """Counts a hit but leaves the block in the free queue, to be taken by the next request."""

    def touch(self, blocks: Sequence[int]) -> None:
        for block in blocks:
            if block != NULL_BLOCK:
                self.ref_counts[block] += 1


class KeepsKeysOfTakenBlocks(BlockPool):
    """Does not evict the identity of a block that it hands out: hits on overwritten content."""

    def allocate(self, n: int) -> list[int]:
        taken = self.free_queue[:n]
        del self.free_queue[:n]
        for block in taken:
            self.ref_counts[block] = 1
        return taken

    def register(self, block: int, key: bytes, num_tokens: int) -> None:
        if not self.keys[block]:
            super().register(block, key, num_tokens)


class TakesFromTheBack(BlockPool):
    """Evicts the most recently used block first."""

    def allocate(self, n: int) -> list[int]:
        self.free_queue.reverse()
        taken = super().allocate(n)
        self.free_queue.reverse()
        return taken


class HashedBlocksToTheFront(BlockPool):
    """Puts every released block in front, so that fresh prefixes are evicted first."""

    def release(self, blocks: Iterable[int]) -> None:
        before = len(self.free_queue)
        super().release(blocks)
        grown = len(self.free_queue) - before
        hashed = [block for block in self.free_queue[-grown:] if self.keys[block]] if grown else []
        self.free_queue = hashed + [b for b in self.free_queue if b not in hashed]


class UnhashedRunReversed(BlockPool):
    """Pushes unhashed blocks to the front one by one, which turns the run around."""

    def release(self, blocks: Iterable[int]) -> None:
        before = set(self.free_queue)
        super().release(blocks)
        run = [b for b in self.free_queue if b not in before and not self.keys[b]]
        self.free_queue[: len(run)] = run[::-1]


class DuplicateReplacesTheFirst(BlockPool):
    """A second block with the same key takes the place of the first in the map."""

    def register(self, block: int, key: bytes, num_tokens: int) -> None:
        self.keys[block] = [key]
        self.primary_num_tokens[block] = num_tokens
        self.cached[key] = [block]

    def drop_keys(self, block: int) -> None:
        for key in self.keys[block]:
            self.cached.pop(key, None)
            self.events.removed(key)
        self.keys[block] = []


class EvictingOneDuplicateForgetsAll(BlockPool):
    """Evicting one of two copies removes the key for both."""

    def drop_keys(self, block: int) -> None:
        for key in self.keys[block]:
            for copy in self.cached.pop(key):
                self.keys[copy] = [other for other in self.keys[copy] if other != key]
            self.events.removed(key)


class NewestDuplicateFirst(BlockPool):
    """A look-up answers the block registered last."""

    def register(self, block: int, key: bytes, num_tokens: int) -> None:
        super().register(block, key, num_tokens)
        self.cached[key].reverse()


class ResetsWhileInUse(BlockPool):
    """Resets the cache although requests still hold blocks."""

    def reset(self) -> bool:
        self.keys = [[] for _ in range(self.num_blocks)]
        self.cached = {}
        self.events.cleared()
        return True


class EvictionFreesTheBlock(BlockPool):
    """Eviction by id also moves a free block to the front of the queue."""

    def forget(self, block: int) -> None:
        super().forget(block)
        if block in self.free_queue:
            self.free_queue.remove(block)
            self.free_queue.insert(0, block)


class SilentEviction(BlockPool):
    """Drops keys without telling the event stream."""

    def drop_keys(self, block: int) -> None:
        enabled, self.events.enabled = self.events.enabled, False
        super().drop_keys(block)
        self.events.enabled = enabled


class FreesWhatOthersStillHold(BlockPool):
    """Releases a shared block for everybody."""

    def release(self, blocks: Iterable[int]) -> None:
        listed = list(blocks)
        for block in listed:
            if block != NULL_BLOCK:
                self.ref_counts[block] = 1
        super().release(listed)


BROKEN_POOLS: tuple[type[BlockPool], ...] = (
    LeaksUnhashedBlocks,
    GivesABlockTwice,
    TouchLeavesTheBlockFree,
    KeepsKeysOfTakenBlocks,
    TakesFromTheBack,
    HashedBlocksToTheFront,
    UnhashedRunReversed,
    DuplicateReplacesTheFirst,
    EvictingOneDuplicateForgetsAll,
    NewestDuplicateFirst,
    ResetsWhileInUse,
    EvictionFreesTheBlock,
    SilentEviction,
    FreesWhatOthersStillHold,
)
