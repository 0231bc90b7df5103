"""Where released blocks join the free queue, if not at its back (KV-ORD-*).

The cached blocks in the queue are in the order of their ranks. A block joins right before the first
one of the next higher rank, so that is what is kept: the first block of each rank, by rank. Blocks
are taken from the front as ever.
"""

from __future__ import annotations

from collections.abc import Sequence

from kvspec.errors import InvalidArgumentError

from . import record
from .arrays import zeroed
from .key_map import KeyMap
from .tables import Tables


class Order:
    """The ranks of one pool's blocks.

    `waits[block]`: whether it is in the queue and cached. `levels`: the ranks of those that are,
    ascending; `firsts[i]`: the first one of rank `levels[i]`.
    """

    def __init__(self, num_blocks: int, keys: KeyMap, *, by_priority: bool) -> None:
        self.keys = keys
        self.by_priority = by_priority
        self.num_blocks = num_blocks
        self.ranks = zeroed("q", num_blocks)
        self.waits = zeroed("B", num_blocks)
        self.levels = zeroed("q", num_blocks)
        self.firsts = zeroed("i", num_blocks)
        self.num_levels = 0

    def begin(self, block: int, priority: int) -> None:
        """Rank a block that a request of this priority caches."""
        self.ranks[block] = priority if self.by_priority else 1

    def begin_run(self, tables: Tables, start: int, end: int, priority: int) -> None:
        """Do so for the blocks at these places that have no key yet."""
        for place in range(start, end):
            if not self.keys.is_added(tables.arena[place]):
                self.begin(tables.arena[place], priority)

    def use(self, tables: Tables, start: int, end: int, priority: int) -> None:
        """Rank anew the hits at these places, which such a request is about to touch."""
        for place in range(start, end):
            block = tables.arena[place]
            if block == 0:
                continue
            self.leave(block)
            if not self.by_priority:
                self.ranks[block] += 1
            elif priority > self.ranks[block]:
                self.ranks[block] = priority

    def move(self, source: int, block: int) -> None:
        """Give a block in use the rank of another one, whose keys it gets."""
        self.ranks[block] = self.ranks[source]

    def place_of(self, rank: int) -> int:
        """Return how many levels are lower."""
        low, high = 0, self.num_levels
        while low < high:
            middle = (low + high) // 2
            if self.levels[middle] < rank:
                low = middle + 1
            else:
                high = middle
        return low

    def join(self, block: int) -> int:
        """Return the block in the queue that this one joins behind; 0: it joins in front."""
        at = self.num_levels
        if self.keys.is_added(block):
            self.waits[block] = 1
            rank = self.ranks[block]
            at = self.place_of(rank)
            if at == self.num_levels or self.levels[at] != rank:
                for i in range(self.num_levels, at, -1):
                    self.levels[i] = self.levels[i - 1]
                    self.firsts[i] = self.firsts[i - 1]
                self.levels[at] = rank
                self.firsts[at] = block
                self.num_levels += 1
            at += 1
        after = self.firsts[at] if at < self.num_levels else 0
        return after - 1 + self.keys.facts[record.INTS * after + record.PREV]

    def leave(self, block: int) -> None:
        """Note that a block, if it waits, leaves the queue or is no longer cached.

        Its link to the next block in the queue is still right.
        """
        if self.waits[block] == 0:
            return
        self.waits[block] = 0
        at = self.place_of(self.ranks[block])
        if self.firsts[at] != block:
            return
        after = block
        while after == block or (after and self.waits[after] == 0):
            after += 1 + self.keys.facts[record.INTS * after + record.NEXT]
        if after and self.ranks[after] == self.ranks[block]:
            self.firsts[at] = after
            return
        self.num_levels -= 1
        for i in range(at, self.num_levels):
            self.levels[i] = self.levels[i + 1]
            self.firsts[i] = self.firsts[i + 1]

    def clear(self) -> None:
        """Note that no block is cached."""
        self.waits = zeroed("B", self.num_blocks)
        self.num_levels = 0

    # Showing and restoring.

    def shown(self) -> tuple[int, ...]:
        """Return the ranks; 0 for a block without a key."""
        found = zeroed("q", self.num_blocks)
        for block in range(self.num_blocks):
            if self.keys.is_added(block):
                found[block] = self.ranks[block]
        return tuple(found)

    def restore(self, ranks: Sequence[int], queue: Sequence[int]) -> None:
        """Take over ranks; InvalidArgumentError where the queue is not in their order."""
        if len(ranks) != self.num_blocks:
            raise InvalidArgumentError("snapshot.ranks", len(ranks), f"{self.num_blocks} ranks")
        for block, rank in enumerate(ranks):
            self.ranks[block] = rank
        highest = -1
        for block in queue:
            if not self.keys.is_added(block):
                continue
            self.waits[block] = 1
            if self.ranks[block] < highest:
                raise InvalidArgumentError("snapshot.ranks", ranks[block], f"{highest} or more")
            if self.ranks[block] > highest:
                highest = self.ranks[block]
                self.levels[self.num_levels] = highest
                self.firsts[self.num_levels] = block
                self.num_levels += 1
