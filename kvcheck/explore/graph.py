"""The graph as far as it is known: which states were reached, and how first."""

from __future__ import annotations

from array import array
from dataclasses import dataclass, field

from kvcheck.explore.state import Move


@dataclass
class Graph:
    """States by number, the start being 0.

    `numbers`: fingerprint -> number. State n was first reached from `parents[n]` by the move
    `table[made[n]]`; since states are expanded in the order of their numbers, that way is shortest.
    """

    numbers: dict[bytes, int] = field(default_factory=dict)
    parents: array[int] = field(default_factory=lambda: array("q"))
    made: array[int] = field(default_factory=lambda: array("q"))
    table: dict[Move, int] = field(default_factory=dict)

    def __len__(self) -> int:
        return len(self.numbers)

    def add(self, name: bytes, parent: int, move: Move) -> int | None:
        """The number of a state that is new, None of one that is known."""
        if name in self.numbers:
            return None
        number = self.numbers[name] = len(self.numbers)
        self.parents.append(parent)
        self.made.append(self.table.setdefault(move, len(self.table)))
        return number

    def path(self, number: int) -> tuple[Move, ...]:
        """The moves from the start to a state."""
        moves = tuple(self.table)
        path: list[Move] = []
        while number:
            path.append(moves[self.made[number]])
            number = self.parents[number]
        return tuple(reversed(path))

    def cut(self, num_states: int) -> Graph:
        """The graph as it was when it had so many states."""
        names = list(self.numbers)[:num_states]
        return Graph(
            {name: number for number, name in enumerate(names)},
            self.parents[:num_states],
            self.made[:num_states],
            dict(self.table),
        )
