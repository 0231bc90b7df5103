"""The blocks that are to be zeroed before they are read (KV-GRP-10)."""

from __future__ import annotations

from . import objects
from .arrays import grown, zeroed
from .tables import Tables

GROUP_BASE = 1 << 32


class ZeroQueue:
    """Blocks with their groups, in the order in which they were taken, until the caller takes them.

    `size` of them, in `to_zero`.
    """

    def __init__(self) -> None:
        self.to_zero = zeroed("q", 64)
        self.size = 0

    def make_room(self, count: int) -> None:
        """Make room for `count` more."""
        if self.size + count > len(self.to_zero):
            self.to_zero = grown("q", self.to_zero, 2 * (self.size + count))

    def add(self, g: int, block: int) -> None:
        """Queue a block."""
        self.make_room(1)
        self.to_zero[self.size] = g * GROUP_BASE + block
        self.size += 1

    def add_run(self, g: int, tables: Tables, start: int, end: int) -> None:
        """Note the blocks at these places of the lists."""
        self.make_room(end - start)
        at, base = self.size - start, g * GROUP_BASE
        to_zero, arena = objects.longs_of(self.to_zero), objects.ints_of(tables.arena)
        for place in range(start, end):
            to_zero[at + place] = base + arena[place]
        self.size = at + end

    def lists(self, num_groups: int) -> list[list[int]]:
        """Return the blocks of each group, in order."""
        found: list[list[int]] = [[] for _ in range(num_groups)]
        for i in range(self.size):
            entry = self.to_zero[i]
            found[entry // GROUP_BASE].append(entry % GROUP_BASE)
        return found
