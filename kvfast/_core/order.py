"""Where released blocks join the free queue, if not at its back (KV-ORD-*).

The cached blocks in the queue are in the order of their ranks. A block joins right before the first
one of the next higher level, so that is what is kept: the first block of each level. A level is a
rank; with pins, whether a block is pinned; and where blocks age, the last step that they live in,
which steps do not change. Blocks are taken from the front as ever.
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

    `waits[block]`: whether it is in the queue and cached. `levels[i]`, with i from `low` to before
    `high`: the levels of those that are, ascending; `firsts[i]`: the first one of this level.
    `num_uses`: of a pinned block; `num_steps`: that a block may wait; 0 in other orders.
    `now`: steps so far, which are part of the ranks of blocks that wait.
    """

    def __init__(self, num_blocks: int, keys: KeyMap, name: str, number: int) -> None:
        self.keys = keys
        self.by_priority = name == "priority"
        self.num_uses = number if name == "pin" else 0
        self.num_steps = number if name == "ttl" else 0
        self.num_blocks = num_blocks
        self.ranks = zeroed("q", num_blocks)
        self.waits = zeroed("B", num_blocks)
        self.levels = zeroed("q", 2 * num_blocks)
        self.firsts = zeroed("i", 2 * num_blocks)
        self.low = 0
        self.high = 0
        self.num_pinned = 0
        self.now = 0

    def begin(self, block: int, priority: int) -> None:
        """Rank a block that a request of this priority caches."""
        self.ranks[block] = priority if self.by_priority else self.num_steps or 1

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
            if self.by_priority:
                if priority > self.ranks[block]:
                    self.ranks[block] = priority
            elif self.num_steps:
                self.ranks[block] = self.num_steps
            elif self.ranks[block] != self.num_uses:
                self.ranks[block] += 1

    def move(self, source: int, block: int) -> None:
        """Give a block in use the rank of another one, whose keys it gets."""
        self.ranks[block] = self.ranks[source]

    def level_of(self, block: int) -> int:
        """Return what places a block: its rank, or whether it is pinned."""
        if self.num_uses:
            return 1 if self.ranks[block] == self.num_uses else 0
        return self.ranks[block]

    def place_of(self, level: int) -> int:
        """Return the place of the first level that is not lower."""
        low, high = self.low, self.high
        while low < high:
            middle = (low + high) // 2
            if self.levels[middle] < level:
                low = middle + 1
            else:
                high = middle
        return low

    def join(self, block: int) -> int:
        """Return the block in the queue that this one joins behind; 0: it joins in front."""
        at = self.high
        if self.keys.is_added(block):
            if self.num_uses and self.level_of(block):
                self.pin(block)
            self.ranks[block] += self.now
            at = self.enter(block) + 1
        after = self.firsts[at] if at < self.high else 0
        return after - 1 + self.keys.facts[record.INTS * after + record.PREV]

    def enter(self, block: int) -> int:
        """Let a block wait behind those of its level; return the place of the level."""
        self.waits[block] = 1
        level = self.level_of(block)
        at = self.place_of(level)
        if at < self.high and self.levels[at] == level:
            return at
        if self.high == 2 * self.num_blocks:  # the lower half is left
            for i in range(self.low, self.high):
                self.levels[i - self.low] = self.levels[i]
                self.firsts[i - self.low] = self.firsts[i]
            at -= self.low
            self.high -= self.low
            self.low = 0
        for i in range(self.high, at, -1):
            self.levels[i] = self.levels[i - 1]
            self.firsts[i] = self.firsts[i - 1]
        self.levels[at] = level
        self.firsts[at] = block
        self.high += 1
        return at

    def pin(self, block: int) -> None:
        """Count a pinned block that is about to wait; beyond half of the pool one loses its pin
        (KV-ORD-4).

        It is the first that waits pinned, or this one. It keeps its place, now behind all others.
        """
        if self.num_pinned < (self.num_blocks - 1) // 2:
            self.num_pinned += 1
        elif self.num_pinned == 0:
            self.ranks[block] -= 1
        else:
            first = self.firsts[self.high - 1]
            self.leave(first)
            self.num_pinned += 1
            self.ranks[first] -= 1
            self.waits[first] = 1  # in no level: no block joins in front of it

    def leave(self, block: int) -> None:
        """Note that a block, if it waits, leaves the queue or is no longer cached.

        Its link to the next block in the queue is still right.
        """
        if self.waits[block] == 0:
            return
        self.waits[block] = 0
        level = self.level_of(block)
        at = self.place_of(level)
        self.ranks[block] -= self.now
        if self.num_uses:
            self.num_pinned -= level
        if self.firsts[at] != block:
            return
        after = block
        while after == block or (after and self.waits[after] == 0):
            after += 1 + self.keys.facts[record.INTS * after + record.NEXT]
        if after and self.level_of(after) == level:
            self.firsts[at] = after
            return
        if at == self.low:
            self.low += 1
            return
        self.high -= 1
        for i in range(at, self.high):
            self.levels[i] = self.levels[i + 1]
            self.firsts[i] = self.firsts[i + 1]

    def too_old(self) -> int:
        """Return the first block whose last step is over (KV-ORD-5); 0 if there is none."""
        if self.low == self.high or self.levels[self.low] >= self.now:
            return 0
        return self.firsts[self.low]

    def clear(self) -> None:
        """Note that no block is cached."""
        self.waits = zeroed("B", self.num_blocks)
        self.low = 0
        self.high = 0
        self.num_pinned = 0

    # Showing and restoring.

    def shown(self) -> tuple[int, ...]:
        """Return the ranks; 0 for a block without a key."""
        found = zeroed("q", self.num_blocks)
        for block in range(self.num_blocks):
            if self.keys.is_added(block):
                found[block] = self.ranks[block] - self.now * self.waits[block]
        return tuple(found)

    def restore(self, ranks: Sequence[int], queue: Sequence[int]) -> None:
        """Take over ranks; InvalidArgumentError where the queue is not in their order."""
        if len(ranks) != self.num_blocks:
            raise InvalidArgumentError("snapshot.ranks", len(ranks), f"{self.num_blocks} ranks")
        for block, rank in enumerate(ranks):
            self.ranks[block] = rank
        for block in queue:
            if not self.keys.is_added(block):
                continue
            if self.high and self.level_of(block) < self.levels[self.high - 1]:
                raise InvalidArgumentError(
                    "snapshot.ranks", ranks[block], "those of the queue's order"
                )
            self.enter(block)
            if self.num_uses:
                self.num_pinned += self.level_of(block)
