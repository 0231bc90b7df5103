"""kvfast's need and allocation of one group, run on unknown numbers.

Stubs replace the tables, the entries of a list, the pool, the hits of the look-up, and the results
of `num_revived` and `is_too_new`. A loop over unknown bounds is run as one round that counts
for all: each of these either appends one entry, which adds as many, or writes an entry. Calls
of `Shape` are run along all paths at once, and so are `max` and `min`, so that few paths are
left.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from types import FunctionType, MethodType, SimpleNamespace
from typing import Any, cast

import z3

from kvfast._core.allocator import Allocator
from kvfast._core.demand import Demand
from proofs._z3 import Term, function, larger, smaller
from proofs.code._groups import shape_of
from proofs.code._paths import Unknown, Way, merged, term_of

HELD, HITS = z3.Ints("held hits")
"""Blocks of a request's list, and hits of the look-up."""


def revived(first: Term) -> Term:
    """Return how many hits from `first` on are in the free queue."""
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
        """Do nothing: there is always room."""

    def append(self, at: int, block: object) -> None:
        self.length[at] = self.length[at] + self.way.number(self.times)


@dataclass(frozen=True)
class Hit:
    """The block that the look-up found at a place."""

    place: Term


class Hits:
    """The results of the look-up, of a group whose hits begin at 0."""

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
    """An entry written by a round: its place, and the place of the hit, or null."""

    rounds: Rounds
    place: Term
    hit: Term | None


class Entries:
    """The entries of a list; only those written by a loop are noted."""

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
        self.order = None

    def touch(self, tables: SymbolicTables, first: object, end: object) -> None:
        """Count the free ones among the hits from `first` to before `end` of a list."""
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

    def __init__(self, way: Way, kind: str, *, has_entry: bool, was_allocated: bool) -> None:
        self.way = way
        shape = shape_of(way, kind)
        for name in ("cdiv", "skipped", "is_window_beyond"):
            setattr(shape, name, all_ways(way, getattr(shape, name)))
        self.shape = shape
        made = SymbolicTables(way, HELD, has_entry=has_entry, was_allocated=was_allocated)
        self.tables = cast(Any, made)
        self.entries = made.arena
        self.counting = CountingPool()
        self.pool = cast(Any, self.counting)
        self.lookup = cast(
            Any, SimpleNamespace(hit_blocks=[way.number(HITS)], hits=Hits(), stride=0)
        )
        self.new_from = cast(Any, [0])
        for name in ("need_of", "need_of_aligned", "take_hits_of", "grow_aligned"):
            method = in_rounds(getattr(type(self), name), made)
            setattr(self, name, MethodType(method, self))

    def num_revived(self, g: int, first: int) -> int:
        return cast(int, self.way.number(revived(z3.IntVal(0) + term_of(first))))

    def is_too_new(self, g: int) -> bool:
        """Accept every state; waiting for a new one is left out (KV-MAMBA-2)."""
        return False

    def need(self, asked: Sequence[Any], *, capped: bool) -> Term:
        """Return the number of blocks that the code asks for."""
        return term_of(self.need_of(0, 0, Demand().of(*asked), capped))

    def take(self, asked: Sequence[Any], *, with_hits: bool) -> None:
        """Take hits and external blocks, then new ones."""
        demand = Demand().of(*asked)
        if with_hits:
            self.take_hits(0, demand, 0)
        self.begun = self.list_length
        self.take_new(0, demand)

    @property
    def taken(self) -> Term:
        """Number of blocks that left the free queue."""
        return self.counting.taken

    @property
    def counts(self) -> list[Term]:
        """Number of blocks asked for in each allocation."""
        return self.counting.asked

    @property
    def list_length(self) -> Term:
        """Length of the request's block list, in entries."""
        return term_of(self.tables.length[0])

    def copies(self, skipped: Term) -> Term:
        """State that null precedes the hits, each of which is copied to its place, and touched.

        All of them count as cached.
        """
        written = self.entries.written
        nulls = [each for each in written if each.hit is None and is_plain(each.rounds.first)]
        hits = [each for each in written if each.hit is not None]
        if not (len(nulls) == len(hits) == len(self.counting.touched) == 1):
            return z3.BoolVal(False)
        null, hit, (first, end) = nulls[0], hits[0], self.counting.touched[0]
        last = larger(skipped, HITS)
        return z3.And(
            *(each.place == each.rounds.index for each in (null, hit)),
            hit.place == hit.hit,
            *(start == skipped for start in (null.rounds.end, hit.rounds.first, first)),
            *(place == last for place in (hit.rounds.end, end)),
            term_of(self.tables.cached[0]) == last + 1,
            term_of(self.tables.passed[0]) == skipped,
        )


def is_plain(first: Term) -> bool:
    """Check whether a loop begins at an int in the code: the loop over nulls does."""
    return isinstance(first, int)


def all_ways(way: Way, method: Callable[..., object]) -> Callable[..., object]:
    """Wrap the method so that it never branches: one term covers all its paths."""

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
    """Make each loop over unknown bounds one round, and each choice unbranched."""

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
