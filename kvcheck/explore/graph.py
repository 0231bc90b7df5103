"""The known part of the graph: the reached states, and the first path to each."""

from __future__ import annotations

from array import array
from dataclasses import dataclass, field

from kvcheck.explore.state import Move


@dataclass
class Graph:
    """States by number, the start being 0.

    `numbers`: fingerprint -> number. State n was first reached from `parents[n]` by the move
    `table[made[n]]`; states are expanded in the order of their numbers, so that path is shortest.
    """

    numbers: dict[bytes, int] = field(default_factory=dict)
    parents: array[int] = field(default_factory=lambda: array("q"))
    made: array[int] = field(default_factory=lambda: array("q"))
    table: dict[Move, int] = field(default_factory=dict)

    def __len__(self) -> int:
        return len(self.numbers)

    def add(self, name: bytes, parent: int, move: Move) -> int | None:
        """Return the number of a new state, None for a known one."""
        if name in self.numbers:
            return None
        number = self.numbers[name] = len(self.numbers)
        self.parents.append(parent)
        self.made.append(self.table.setdefault(move, len(self.table)))
        return number

    def path(self, number: int) -> tuple[Move, ...]:
        moves = tuple(self.table)
        path: list[Move] = []
        while number:
            path.append(moves[self.made[number]])
            number = self.parents[number]
        return tuple(reversed(path))
