"""An open-addressing table as functions of ints, and what must hold of it (KV-POOL-13).

Places are counted in steps: place x is the slot `x * STEP & slot_mask` of the code, so that a step
leads from x to x + 1, and from the last place to 0. `key_map` shows that this names each slot once.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import z3

from proofs._z3 import Range, Term, forall, function

Function = Callable[..., Term]


@dataclass(frozen=True)
class Table:
    """Slots, and the map from keys to entries that they stand for. `size`: if written out."""

    size: int | None
    num_slots: Term
    num_entries: Term
    num_keys: Term
    has_strays: Term
    slot: Function  # place -> the entry in it; 0: empty
    home: Function  # entry -> place
    key: Function  # entry -> key
    head: Function  # key -> the entry that was added first; 0: none
    place: Function  # key -> where its slot is
    home_of: Function  # key -> the home of a key with those before it
    stray_home: Function  # key -> its home if it came alone

    @property
    def places(self) -> Range:
        return Range(0, self.num_slots, None if self.size is None else range(self.size))

    @property
    def keys(self) -> Range:
        return Range(0, self.num_keys, None if self.size is None else range(3))

    def steps(self, start: Term, end: Term) -> Term:
        """Steps from one place to another."""
        return z3.If(end >= start, end - start, end - start + self.num_slots)

    def before(self, x: Term, y: Term) -> Term:
        """Whether y lies on the way from the home of what is at x, before x."""
        home = self.home(self.slot(x))
        return self.steps(home, y) < self.steps(home, x)

    def with_slot(self, place: Term, entry: Term) -> Table:
        """With an entry, or 0, in a place."""
        return replace(self, slot=lambda x: z3.If(x == place, entry, self.slot(x)))

    def with_head(self, key: Term, entry: Term, place: Term) -> Table:
        """With a first entry, or 0, of a key, and the place of its slot."""
        return replace(
            self,
            head=lambda k: z3.If(k == key, entry, self.head(k)),
            place=lambda k: z3.If(k == key, place, self.place(k)),
        )

    def with_entry(self, entry: Term, key: Term, home: Term) -> Table:
        """With what a new entry is."""
        return replace(
            self,
            key=lambda e: z3.If(e == entry, key, self.key(e)),
            home=lambda e: z3.If(e == entry, home, self.home(e)),
        )


def any_table(size: int | None = None) -> Table:
    """A table of which nothing is known."""
    return Table(
        size=size,
        num_slots=z3.Int("num_slots"),
        num_entries=z3.Int("num_entries"),
        num_keys=z3.Int("num_keys"),
        has_strays=z3.Bool("has_strays"),
        slot=function("slot"),
        home=function("home_of_entry"),
        key=function("key"),
        head=function("head"),
        place=function("place"),
        home_of=function("home_of"),
        stray_home=function("stray_home"),
    )


def world(table: Table) -> Term:
    """There are slots, keys, and homes of keys."""
    homes = forall(
        [table.keys],
        lambda k: z3.And(table.places.has(table.home_of(k)), table.places.has(table.stray_home(k))),
    )
    some = z3.And(table.num_slots >= 2, table.num_keys >= 1, table.num_entries >= 1, homes)
    if table.size is None:
        return some
    few = z3.And(table.num_slots == table.size, table.num_keys == 3, table.num_entries == 6)
    return z3.And(some, few)


def stands_for_map(table: Table) -> Term:
    """Each first entry of a key has one slot, and nothing else has one."""

    def slot_is_of_first(x: Term) -> Term:
        entry = table.slot(x)
        key = table.key(entry)
        first = z3.And(entry >= 0, entry < table.num_entries, table.head(key) == entry)
        return z3.Or(entry == 0, z3.And(first, table.keys.has(key), table.place(key) == x))

    def first_has_slot(k: Term) -> Term:
        head, place = table.head(k), table.place(k)
        found = z3.And(table.places.has(place), table.slot(place) == head, table.key(head) == k)
        return z3.Or(head == 0, z3.And(found, has_home(table, k)))

    return z3.And(forall([table.places], slot_is_of_first), forall([table.keys], first_has_slot))


def has_home(table: Table, key: Term) -> Term:
    """The home of a key's first entry is one at which `find` begins."""
    home = table.home(table.head(key))
    stray = z3.And(table.has_strays, home == table.stray_home(key))
    return z3.Or(home == table.home_of(key), stray)


def is_reachable(table: Table, *, but: Term | None = None) -> Term:
    """No empty place on the way from a home to a slot, except one that is left out."""

    def full(x: Term, y: Term) -> Term:
        on_way = z3.And(table.slot(x) != 0, table.before(x, y))
        return z3.Implies(on_way if but is None else z3.And(on_way, y != but), table.slot(y) != 0)

    return forall([table.places, table.places], full)


def is_map(table: Table) -> Term:
    """The table is the map from keys to first entries."""
    return z3.And(stands_for_map(table), is_reachable(table))


def probed(table: Table, home: Term, steps: Term, wanted: Callable[[Term], Term]) -> Term:
    """So many places from a home on are full, and none has what is wanted."""
    return forall(
        [table.places],
        lambda y: z3.Implies(
            table.steps(home, y) < steps,
            z3.And(table.slot(y) != 0, z3.Not(wanted(table.slot(y)))),
        ),
    )


def has_hole(table: Table, hole: Term, done: Term) -> Term:
    """Between two rounds of `empty_slot`: `done` places behind the hole have been looked at.

    They are full, and the way to none of them leads through the hole. To those further behind it
    may: they are still to be looked at.
    """

    def full(y: Term) -> Term:
        steps = table.steps(hole, y)
        return z3.Or(steps == 0, steps > done, table.slot(y) != 0)

    def beyond(x: Term) -> Term:
        through = z3.And(table.slot(x) != 0, table.before(x, hole))
        return z3.Implies(through, table.steps(hole, x) > done)

    return z3.And(
        stands_for_map(table),
        table.places.has(hole),
        table.slot(hole) == 0,
        done >= 0,
        is_reachable(table, but=hole),
        forall([table.places], full),
        forall([table.places], beyond),
    )
