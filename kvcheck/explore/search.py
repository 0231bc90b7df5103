"""Breadth-first search of a configuration, level by level, in one process or in several."""

from __future__ import annotations

import functools
import pickle
import time
from array import array
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any, NamedTuple, TypeAlias

from kvcheck.explore.bounds import Configuration
from kvcheck.explore.edges import Broken, Edges, Found
from kvcheck.explore.state import Move
from kvcheck.tasks import Workers, in_order
from kvspec.interface import Implementation


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


CHUNK_STATES = 64
"""States per call to a process: some seconds of work for a slow implementation."""

START: Move = ("start",)


class Item(NamedTuple):
    """A state to be expanded, with its path if there is a subject, which follows it."""

    number: int
    packed: bytes
    path: tuple[Move, ...]


@dataclass(frozen=True)
class Counts:
    """The counts of an exploration; equal for equal configurations and any number of processes.

    `depth`: moves to the state that is farthest away. `refused` and `errors` are edges too.
    """

    states: int = 1
    edges: int = 0
    refused: int = 0
    errors: int = 0
    depth: int = 0
    by_move: tuple[tuple[str, int], ...] = ()

    def plus(self, found: Found) -> Counts:
        by_move = Counter(dict(self.by_move)) + found.edges
        return replace(
            self,
            edges=self.edges + found.edges.total(),
            refused=self.refused + found.refused,
            errors=self.errors + found.errors,
            by_move=tuple(sorted(by_move.items())),
        )

    def to_json(self) -> dict[str, Any]:
        return {**asdict(self), "by_move": dict(self.by_move)}

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> Counts:
        return cls(**{**value, "by_move": tuple(sorted(value["by_move"].items()))})


@dataclass(frozen=True)
class Violation:
    """A broken rule, and the shortest path to it: `path` ends with the move that shows it."""

    configuration: Configuration
    path: tuple[Move, ...]
    broken: Broken


@dataclass
class Exploration:
    """One configuration, as far as it is explored. `level`: the states to be expanded next."""

    configuration: Configuration
    counts: Counts = field(default_factory=Counts)
    graph: Graph = field(default_factory=Graph)
    level: list[Item] = field(default_factory=list)
    violation: Violation | None = None
    is_complete: bool = False
    began: float = field(default_factory=time.monotonic)


Find: TypeAlias = Callable[[str], Implementation]


def _nobody(name: str) -> Implementation:
    raise LookupError(f"no function was given that finds {name!r} in another process")


@dataclass(frozen=True)
class Pair:
    """The implementations, and for several processes their names and how to find them."""

    oracle: Implementation
    subject: Implementation | None = None
    oracle_name: str = ""
    subject_name: str | None = None
    find: Find = _nobody


Expand: TypeAlias = Callable[[Sequence[Item]], Iterable[list[Found]]]
Heard: TypeAlias = Callable[[Exploration], None]


def explore(
    exploration: Exploration,
    pair: Pair,
    *,
    workers: Workers | None = None,
    max_edges: int | None = None,
    heard: Heard = lambda exploration: None,
) -> Exploration:
    """Explore until all is explored, a rule is broken, or there are `max_edges` edges.

    `heard` is called after some states. Without `workers` all is done in this process.
    """
    edges = Edges(exploration.configuration, pair.oracle)
    first = edges.first()
    exploration.graph.add(edges.name_of(first), 0, START)
    exploration.level = [Item(0, pickle.dumps(first, pickle.HIGHEST_PROTOCOL), ())]
    expand = expanding(exploration.configuration, pair, workers)
    while exploration.level:
        below = _below(exploration, expand, pair, max_edges, heard)
        if below is None:
            return exploration
        depth = exploration.counts.depth + (len(below) > 0)
        exploration.counts = replace(exploration.counts, depth=depth)
        exploration.level = below
    exploration.is_complete = True
    return exploration


def _below(
    exploration: Exploration,
    expand: Expand,
    pair: Pair,
    max_edges: int | None,
    heard: Heard,
) -> list[Item] | None:
    """Expand one level; return the next one, None where the exploration ends within it."""
    items, below = iter(exploration.level), list[Item]()
    graph = exploration.graph
    for chunk in expand(exploration.level):
        for found in chunk:
            item = next(items)
            exploration.counts = exploration.counts.plus(found)
            if found.broken is not None:
                broken = found.broken
                path = (*graph.path(item.number), *broken.before, broken.move)
                exploration.violation = Violation(exploration.configuration, path, found.broken)
                return None
            for move, name, packed in found.ends:
                number = graph.add(name, item.number, move)
                if number is not None and packed is not None:
                    path = () if pair.subject is None else (*item.path, move)
                    below.append(Item(number, packed, path))
        exploration.counts = replace(exploration.counts, states=len(graph))
        heard(exploration)
        if max_edges is not None and exploration.counts.edges >= max_edges:
            return None
    return below


def expanding(configuration: Configuration, pair: Pair, workers: Workers | None) -> Expand:
    if workers is None:
        edges = Edges(configuration, pair.oracle, pair.subject)
        return lambda level: (_expand(edges, chunk) for chunk in _chunks(level))
    told = (configuration, pair.find, pair.oracle_name, pair.subject_name)
    return lambda level: in_order(
        workers, ((_expand_elsewhere, (*told, chunk)) for chunk in _chunks(level))
    )


def _chunks(level: Sequence[Item]) -> Iterator[Sequence[Item]]:
    return (level[first : first + CHUNK_STATES] for first in range(0, len(level), CHUNK_STATES))


def _expand(edges: Edges, chunk: Sequence[Item]) -> list[Found]:
    """Return the edges of some states, up to a broken rule."""
    all_found = []
    for item in chunk:
        all_found.append(edges.of(pickle.loads(item.packed), item.path))
        if all_found[-1].broken is not None:
            break
    return all_found


def _expand_elsewhere(
    configuration: Configuration,
    find: Find,
    oracle: str,
    subject: str | None,
    chunk: Sequence[Item],
) -> list[Found]:
    return _expand(_edges(configuration, find, oracle, subject), chunk)


@functools.lru_cache(maxsize=1)
def _edges(configuration: Configuration, find: Find, oracle: str, subject: str | None) -> Edges:
    """Return the edges of this process, which remember the states already returned."""
    return Edges(configuration, find(oracle), None if subject is None else find(subject))
