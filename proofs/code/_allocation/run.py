"""kvfast's need and allocation of one group, run on unknown numbers.

Stubs stand for the tables, the entries of a list, the pool, the hits of the look-up, and for what
`num_revived` and `is_too_new` answer. A loop over unknown bounds is run as one round that counts
for all: each of these either appends one entry, which adds as many, or writes an entry. What code
asks of `Shape` is run along all ways at once, and so are `max` and `min`, so that few ways are
left.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from types import FunctionType, MethodType, SimpleNamespace
from typing import Any, cast

import z3

from kvfast._core import kinds
from kvfast._core.allocator import Allocator
from kvfast._core.shape import Shape
from proofs._z3 import Term, function, larger, smaller
from proofs.code._paths import Unknown, Way, merged, term_of

KINDS = ("full", "sliding", "chunked", "mamba", "aligned", "cross", "encoder_only")


@dataclass
class Numbers:
    """What is unknown of a group, of a request's list there, and of what is asked for."""

    way: Way
    block_size: Term = field(default_factory=lambda: z3.Int("block_size"))
    reach: Term = field(default_factory=lambda: z3.Int("reach"))
    drafted: Term = field(default_factory=lambda: z3.Int("drafted"))
    held: Term = field(default_factory=lambda: z3.Int("held"))
    hits: Term = field(default_factory=lambda: z3.Int("hits"))

    def number(self, term: Term) -> Any:
        return self.way.number(term)


def revived(first: Term) -> Term:
    """How many hits from this one on wait in the free queue."""
    count: Term = function("revived")(first)
    return count


class SymbolicTables:
    """One list: its length, and facts that code asks about."""

    def __init__(self, way: Way, held: Term, *, has_entry: bool, was_allocated: bool) -> None:
        self.way = way
        self.length: list[Any] = [way.number(held)]
        self.cached = [int(has_entry)]
        self.allocated = [int(was_allocated)]
        self.passed: list[Any] = [0]
        self.start = [0]
        self.arena = Entries()
        self.times: Term = z3.IntVal(1)

    def make_room(self, at: int, group: int, num_blocks: object) -> None:
        """There is always room."""

    def append(self, at: int, block: object) -> None:
        self.length[at] = self.length[at] + self.way.number(self.times)


@dataclass(frozen=True)
class Hit:
    """The block that the look-up answers at a place."""

    place: Term


class Hits:
    """What the look-up left, of a group whose hits begin at 0."""

    def __getitem__(self, place: object) -> Hit:
        return Hit(z3.IntVal(0) + term_of(place))


@dataclass(frozen=True)
class Rounds:
    """A loop over unknown bounds: one round, whose index is any."""

    first: Term
    end: Term
    index: Term


@dataclass(frozen=True)
class Written:
    """What a round wrote: where, and the hit of which place, or null."""

    rounds: Rounds
    place: Term
    hit: Term | None


class Entries:
    """Of the entries of a list those are noted that a loop writes."""

    def __init__(self) -> None:
        self.rounds: Rounds | None = None
        self.written: list[Written] = []

    def __getitem__(self, place: object) -> int:
        return 0

    def __setitem__(self, place: object, block: object) -> None:
        if self.rounds is not None:
            hit = block.place if isinstance(block, Hit) else None
            self.written.append(Written(self.rounds, z3.IntVal(0) + term_of(place), hit))


class CountingPool:
    """Counts what is taken out of the free queue."""

    def __init__(self) -> None:
        self.taken: Term = z3.IntVal(0)
        self.asked: list[Term] = []
        self.touched: list[tuple[Term, Term]] = []

    def touch(self, tables: SymbolicTables, first: object, end: object) -> None:
        """The hits that a list has from `first` to before `end`: those of them that are free."""
        places = [z3.IntVal(0) + term_of(place) for place in (first, end)]
        before, behind = map(revived, places)
        self.touched.append((places[0], places[1]))
        self.taken = self.taken + before - behind

    def allocate(self, tables: SymbolicTables, at: int, count: object) -> None:
        self.asked.append(term_of(count))
        self.taken = self.taken + term_of(count)
        tables.length[at] = tables.length[at] + count

    def take(self) -> int:
        self.asked.append(z3.IntVal(1))
        self.taken = self.taken + 1
        return 1


class SymbolicAllocator(Allocator):
    """Group 0, of a kind, and row 0; what is not overridden here is the code."""

    def __init__(
        self, way: Way, kind: str, numbers: Numbers, *, has_entry: bool, was_allocated: bool
    ) -> None:
        self.numbers = numbers
        shape = object.__new__(Shape)
        shape.num_groups = 1
        lists: dict[str, Any] = {
            "kind": [getattr(kinds, kind.upper())],
            "block_size": [way.number(numbers.block_size)],
            "reach": [way.number(numbers.reach)],
            "extra": [0],
            "drafted": [way.number(numbers.drafted) if kind in ("mamba", "aligned") else 0],
            "is_zeroed": [0],
            "cap": [-1],
        }
        for name, value in lists.items():
            setattr(shape, name, value)
        for name in ("cdiv", "skipped", "is_window_beyond"):
            setattr(shape, name, all_ways(way, getattr(shape, name)))
        self.shape = shape
        made = SymbolicTables(way, numbers.held, has_entry=has_entry, was_allocated=was_allocated)
        self.tables = cast(Any, made)
        self.entries = made.arena
        self.counting = CountingPool()
        self.pool = cast(Any, self.counting)
        self.lookup = cast(
            Any, SimpleNamespace(hit_blocks=[way.number(numbers.hits)], hits=Hits(), stride=0)
        )
        self.new_from = cast(Any, [0])
        for name in ("need_of", "need_of_aligned", "take_hits_of", "grow_aligned"):
            method = in_rounds(getattr(type(self), name), made)
            setattr(self, name, MethodType(method, self))

    def num_revived(self, g: int, first: int) -> int:
        return cast(int, self.numbers.number(revived(z3.IntVal(0) + term_of(first))))

    def is_too_new(self, g: int) -> bool:
        """A state that must wait is refused (KV-MAMBA-2)."""
        return False


def all_ways(way: Way, method: Callable[..., object]) -> Callable[..., object]:
    """The method, which does not branch: its answer is one term for all its ways."""

    def call(*arguments: object) -> object:
        def run(inner: Way) -> object:
            own = (
                inner.number(each.term) if isinstance(each, Unknown) else each for each in arguments
            )
            return method(*own)

        term = merged(run)
        if isinstance(term, bool) or (z3.is_expr(term) and z3.is_bool(term)):
            return way.decide(term)
        return way.number(z3.IntVal(0) + term)

    return call


def in_rounds(method: Callable[..., Any], tables: SymbolicTables) -> FunctionType:
    """The method, whose loops over unknown bounds are one round, and which picks unbranched."""

    def rounds(*bounds: Any) -> Iterator[Any]:
        if not any(isinstance(bound, Unknown) for bound in bounds):
            yield from range(*bounds)
            return
        first, end = (0, *bounds)[-2:]
        count = term_of(end) - term_of(first)
        tables.times = z3.If(count > 0, count, 0)
        index = z3.FreshInt("index")
        tables.arena.rounds = Rounds(term_of(first), term_of(end), index)
        yield tables.way.number(index)
        tables.times = z3.IntVal(1)
        tables.arena.rounds = None

    def largest(a: object, b: object) -> Any:
        return tables.way.number(larger(z3.IntVal(0) + term_of(a), z3.IntVal(0) + term_of(b)))

    def smallest(a: object, b: object) -> Any:
        return tables.way.number(smaller(z3.IntVal(0) + term_of(a), z3.IntVal(0) + term_of(b)))

    code = cast(FunctionType, method)
    names = {**code.__globals__, "range": rounds, "max": largest, "min": smallest}
    return FunctionType(code.__code__, names, code.__name__, code.__defaults__, code.__closure__)
