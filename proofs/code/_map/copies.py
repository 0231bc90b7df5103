"""The ring of the entries with one key is a sequence, the first added in front (KV-POOL-13).

`join` and `make_ring` are run as they stand; the lines of `remove` that are about the ring are
written out beside them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import cast

import z3

from kvfast._core import record
from kvfast._core.key_map import KeyMap
from proofs._z3 import Range, Term, forall, function
from proofs.code._symbolic import Facts, as_int, value


class SymbolicMap(KeyMap):
    """kvfast's map on unknown records, without slots."""

    def __init__(self, facts: Facts) -> None:
        self.facts = cast("memoryview[int]", facts)


@dataclass(frozen=True)
class Ring:
    """Entries at the positions low … high - 1, the first added in front."""

    at: Callable[[Term], Term]
    pos: Callable[[Term], Term]
    low: Term
    high: Term
    size: int | None = None

    def positions(self, first: int, last: int) -> Range:
        """The positions low + first … high - 1 + last."""
        values = None if self.size is None else range(self.size + 3)
        return Range(self.low + first, self.high + last, values)

    def has(self, entry: Term) -> Term:
        """Whether an entry is in it."""
        place = self.pos(entry)
        return z3.And(self.low <= place, place < self.high, self.at(place) == entry)

    def appended(self, entry: Term) -> Ring:
        """With an entry behind the last."""
        return replace(
            self,
            at=lambda p: z3.If(p == self.high, entry, self.at(p)),
            pos=lambda e: z3.If(e == entry, self.high, self.pos(e)),
            high=self.high + 1,
        )

    def removed(self, place: Term) -> Ring:
        """Without the entry at a position."""
        return replace(
            self,
            at=lambda p: z3.If(p < place, self.at(p), self.at(p + 1)),
            pos=lambda e: z3.If(self.pos(e) > place, self.pos(e) - 1, self.pos(e)),
            high=self.high - 1,
        )


@dataclass(frozen=True)
class Change:
    """What allows a change of a ring, the code, and the ring after it."""

    name: str
    allowed: Callable[[Ring], Term]
    run: Callable[[SymbolicMap, Ring], None]
    after: Callable[[Ring], Ring]


def any_ring(size: int | None = None) -> Ring:
    """A ring of which nothing is known; `size`: the most entries, if written out."""
    at, pos = function("copy_at"), function("copy_pos")
    return Ring(at, pos, z3.Int("copy_low"), z3.Int("copy_high"), size)


def only(entry: Term) -> Ring:
    """A ring of one."""
    return Ring(
        lambda p: z3.If(p == 0, entry, 0), lambda e: z3.IntVal(0), z3.IntVal(0), z3.IntVal(1)
    )


def any_map() -> SymbolicMap:
    """Records of which nothing is known."""
    fields = (record.DUP_NEXT, record.DUP_PREV, record.HOME)
    return SymbolicMap(Facts({field: function(f"field_{field}") for field in fields}))


def field_of(keys: SymbolicMap, field: int, entry: Term) -> Term:
    """A field of an entry's record."""
    return value(keys.facts[record.INTS * as_int(entry) + field])


def is_ring(keys: SymbolicMap, ring: Ring) -> Term:
    """The records link the entries in a circle, and agree on their home."""

    def following(field: int, step: int, first: int, last: int) -> Term:
        return forall(
            [ring.positions(first, last)],
            lambda p: field_of(keys, field, ring.at(p)) == ring.at(p + step),
            about=lambda p: field_of(keys, field, ring.at(p)),
        )

    def known(p: Term) -> Term:
        home = field_of(keys, record.HOME, ring.at(p))
        alike = home == field_of(keys, record.HOME, ring.at(ring.low))
        return z3.And(ring.at(p) >= 1, ring.pos(ring.at(p)) == p, alike)

    first, last = ring.at(ring.low), ring.at(ring.high - 1)
    circle = z3.And(
        field_of(keys, record.DUP_NEXT, last) == first,
        field_of(keys, record.DUP_PREV, first) == last,
    )
    few = z3.BoolVal(True)
    if ring.size is not None:
        few = z3.And(ring.low == 0, ring.high <= ring.size)
    entries = forall([ring.positions(0, 0)], known, about=ring.at)
    links = following(record.DUP_NEXT, 1, 0, -1), following(record.DUP_PREV, -1, 1, 0)
    return z3.And(few, ring.low < ring.high, entries, *links, circle)


def entry() -> Term:
    """The entry that a change is about."""
    return z3.Int("entry")


def place() -> Term:
    """Where it stands in the ring."""
    return z3.Int("place")


def set_field(keys: SymbolicMap, field: int, of: Term, to: Term) -> None:
    """Write a field of an entry's record."""
    keys.facts[record.INTS * as_int(of) + field] = as_int(to)


def remove(keys: SymbolicMap, ring: Ring) -> None:
    """The lines of `remove` that are about the ring."""
    gone = ring.at(place())
    after = field_of(keys, record.DUP_NEXT, gone)
    before = field_of(keys, record.DUP_PREV, gone)
    set_field(keys, record.DUP_NEXT, gone, z3.IntVal(0))
    set_field(keys, record.DUP_PREV, gone, z3.IntVal(0))
    set_field(keys, record.DUP_NEXT, before, after)
    set_field(keys, record.DUP_PREV, after, before)


def remove_forwards_only(keys: SymbolicMap, ring: Ring) -> None:
    """The entry behind keeps its way back."""
    gone = ring.at(place())
    before = field_of(keys, record.DUP_PREV, gone)
    set_field(keys, record.DUP_NEXT, before, field_of(keys, record.DUP_NEXT, gone))


def is_new(ring: Ring) -> Term:
    """The entry is in no ring."""
    return z3.And(entry() >= 1, z3.Not(ring.has(entry())))


def is_one_of_many(ring: Ring) -> Term:
    """The entry is in the ring, and another one as well."""
    inside = z3.And(ring.low <= place(), place() < ring.high)
    return z3.And(inside, ring.low + 1 < ring.high)


JOIN = Change(
    "join",
    is_new,
    lambda keys, ring: keys.join(as_int(entry()), as_int(ring.at(ring.low))),
    lambda ring: ring.appended(entry()),
)
REMOVE = Change("remove, of many", is_one_of_many, remove, lambda ring: ring.removed(place()))

CHANGES: tuple[Change, ...] = (JOIN, REMOVE)

MISTAKES: Mapping[str, tuple[str, Change]] = {
    "join: in front of the second": (
        "KV-POOL-14",
        replace(
            JOIN, run=lambda keys, ring: keys.join(as_int(entry()), as_int(ring.at(ring.low + 1)))
        ),
    ),
    "join: an entry of the ring": (
        "KV-POOL-14",
        replace(JOIN, allowed=lambda ring: ring.has(entry())),
    ),
    "remove: the entry behind keeps its way back": (
        "KV-POOL-14",
        replace(REMOVE, run=remove_forwards_only),
    ),
    "remove: an only one": (
        "KV-POOL-14",
        replace(REMOVE, allowed=lambda ring: place() == ring.low),
    ),
}
