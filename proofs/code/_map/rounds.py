"""What the map does, as single steps and as rounds of its loops, and mistakes in them.

The names are those of the methods of `kvfast._core.key_map`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import z3

from proofs._z3 import Term, forall
from proofs.code._map.table import Table, has_hole, is_map, probed


@dataclass(frozen=True)
class Round:
    """What holds before, and what must hold after."""

    name: str
    before: Callable[[Table], list[Term]]
    after: Callable[[Table], Term]


def names() -> tuple[Term, Term, Term]:
    """A place, an entry and a key."""
    x, entry, key = z3.Ints("x entry k")
    return x, entry, key


def at(table: Table, steps: Term, home: Term) -> Term:
    """x is so many steps from a home."""
    x, _, _ = names()
    return z3.And(table.places.has(x), table.places.has(home), table.steps(home, x) == steps)


# Looking up: place_from, find.


def probing(table: Table, home: Term, steps: Term) -> list[Term]:
    """`place_from` has come to x, so many steps from where it began."""
    _, _, key = names()
    passed = probed(table, home, steps, lambda entry: table.key(entry) == key)
    return [is_map(table), table.keys.has(key), at(table, steps, home), passed]


def any_probing(table: Table) -> list[Term]:
    """`probing` from any place."""
    return probing(table, z3.Int("home"), z3.Int("steps"))


def probed_one_more(table: Table) -> Term:
    """The next place is the one to look at."""
    _, _, key = names()
    home, steps = z3.Ints("home steps")
    return probed(table, home, steps + 1, lambda entry: table.key(entry) == key)


def other_key(table: Table) -> Term:
    """What is at x is not of the key."""
    x, _, key = names()
    return z3.And(table.slot(x) != 0, table.key(table.slot(x)) != key)


def missed(table: Table, home: Term, end: Term) -> Term:
    """A search for the key from a home came to an empty place."""
    _, _, key = names()
    steps = table.steps(home, end)
    passed = probed(table, home, steps, lambda entry: table.key(entry) == key)
    return z3.And(table.places.has(end), table.slot(end) == 0, passed)


def searched(table: Table, *, strays: bool = True) -> list[Term]:
    """`find` found nothing, neither from the home nor, with strays, from the other one."""
    _, _, key = names()
    first = missed(table, table.home_of(key), z3.Int("end"))
    second = z3.Implies(table.has_strays, missed(table, table.stray_home(key), z3.Int("stray_end")))
    return [is_map(table), table.keys.has(key), first, second if strays else z3.BoolVal(True)]


# Adding.


def adding(table: Table, *, probe: bool = True) -> list[Term]:
    """The place found for a key that the map lacks, and an entry that is not in it."""
    x, entry, key = names()
    home, steps = z3.Ints("home steps")
    absent = forall([table.places], lambda y: table.slot(y) != entry)
    heads = forall([table.keys], lambda k: z3.Or(table.head(k) == 0, table.head(k) != entry))
    begins = z3.Or(
        home == table.home_of(key), z3.And(table.has_strays, home == table.stray_home(key))
    )
    came = probing(table, home, steps)
    return [
        *(came if probe else came[:-1]),
        table.slot(x) == 0,
        table.head(key) == 0,
        z3.And(entry > 0, entry < table.num_entries),
        absent,
        heads,
        begins,
    ]


def added(table: Table) -> Table:
    """The map with the entry at x."""
    x, entry, key = names()
    new = table.with_entry(entry, key, z3.Int("home"))
    return new.with_slot(x, entry).with_head(key, entry, x)


# Removing.


def removing(table: Table) -> list[Term]:
    """`remove` has come to x, and the entry was at no place before."""
    _, entry, _ = names()
    steps = z3.Int("steps")
    home = table.home(entry)
    here = at(table, steps, home)
    known = z3.And(entry > 0, table.keys.has(table.key(entry)))
    return [is_map(table), known, here, probed(table, home, steps, lambda other: other == entry)]


def first_or_none(table: Table) -> Term:
    """Where the search ends: at the entry's slot if it is a first one, else at an empty place."""
    x, entry, _ = names()
    is_first = table.head(table.key(entry)) == entry
    return z3.If(is_first, table.slot(x) != 0, table.slot(x) != entry)


def with_heir(table: Table) -> list[Term]:
    """The slot of a first entry, and the next one with its key."""
    _, entry, key = names()
    after = z3.Int("after")
    alike = z3.And(table.key(after) == key, table.home(after) == table.home(entry))
    heir = z3.And(alike, after > 0, after < table.num_entries, after != entry)
    return [is_map(table), holds(table), heir]


def holds(table: Table) -> Term:
    """x is the slot of the entry, which is the first of the key."""
    x, entry, key = names()
    first = z3.And(table.places.has(x), table.slot(x) == entry, entry > 0)
    return z3.And(first, table.key(entry) == key, table.keys.has(key))


def inherited(table: Table) -> Table:
    """The next entry with the key is its first now, in the same slot."""
    x, _, key = names()
    after = z3.Int("after")
    return table.with_slot(x, after).with_head(key, after, x)


def emptied(table: Table) -> Table:
    """The slot of the last entry of a key is the first hole."""
    x, _, key = names()
    return table.with_slot(x, z3.IntVal(0)).with_head(key, z3.IntVal(0), x)


def scanning(table: Table) -> list[Term]:
    """A round of `empty_slot`: x is the next place behind the hole."""
    hole, done = z3.Ints("hole done")
    return [has_hole(table, hole, done), at(table, done + 1, hole)]


def moves(table: Table) -> Term:
    """Whether what is at x may move back: its home does not lie behind the hole."""
    x, _, _ = names()
    back = z3.Int("done") + 1
    return table.steps(table.home(table.slot(x)), x) >= back


def moved(table: Table) -> Table:
    """What is at x has moved to the hole, and x is the hole."""
    x, _, _ = names()
    hole = z3.Int("hole")
    entry = table.slot(x)
    filled = table.with_slot(hole, entry).with_slot(x, z3.IntVal(0))
    return filled.with_head(table.key(entry), entry, hole)


def full(table: Table) -> Term:
    """There is something at x."""
    x, _, _ = names()
    return table.slot(x) != 0


def rounds() -> tuple[Round, ...]:
    """All of them."""
    x, _, key = names()
    hole, done = z3.Ints("hole done")
    return (
        Round("place_from, one more", lambda t: [*any_probing(t), other_key(t)], probed_one_more),
        Round(
            "place_from, found",
            lambda t: [*any_probing(t), full(t), t.key(t.slot(x)) == key],
            lambda t: t.slot(x) == t.head(key),
        ),
        Round("find, nothing there", searched, lambda t: t.head(key) == 0),
        Round("add", adding, lambda t: is_map(added(t))),
        Round("remove, the entry's slot", removing, lambda t: first_or_none(t)),
        Round("remove, another is first", with_heir, lambda t: is_map(inherited(t))),
        Round(
            "empty_slot, the first hole",
            lambda t: [is_map(t), holds(t)],
            lambda t: has_hole(emptied(t), x, z3.IntVal(0)),
        ),
        Round(
            "empty_slot, a slot stays",
            lambda t: [*scanning(t), full(t), z3.Not(moves(t))],
            lambda t: has_hole(t, hole, done + 1),
        ),
        Round(
            "empty_slot, a slot moves back",
            lambda t: [*scanning(t), full(t), moves(t)],
            lambda t: has_hole(moved(t), x, z3.IntVal(0)),
        ),
        Round(
            "empty_slot, the end",
            lambda t: [*scanning(t), z3.Not(full(t))],
            is_map,
        ),
    )


def mistakes() -> tuple[tuple[str, Round], ...]:
    """Mistakes in these, and the rule that each breaks."""
    x, _, key = names()
    known = {each.name: each for each in rounds()}

    def wrong(name: str, sentence: str, after: Callable[[Table], Term]) -> Round:
        return replace(known[name], name=f"{name}: {sentence}", after=after)

    lost = (
        wrong("empty_slot, the first hole", "nothing moves back", lambda t: is_map(emptied(t))),
        replace(
            known["empty_slot, a slot stays"],
            name="empty_slot: a slot stays that may move",
            before=lambda t: [*scanning(t), full(t)],
        ),
        replace(
            known["empty_slot, a slot moves back"],
            name="empty_slot: a slot moves to before its home",
            before=lambda t: [*scanning(t), full(t)],
        ),
        replace(
            known["empty_slot, the end"],
            name="empty_slot: it ends at the first slot that stays",
            before=lambda t: [*scanning(t), full(t), z3.Not(moves(t))],
        ),
        replace(
            known["add"],
            name="add: to any empty place",
            before=lambda t: adding(t, probe=False),
        ),
        replace(
            known["find, nothing there"],
            name="find: strays are not looked for",
            before=lambda t: searched(t, strays=False),
        ),
    )
    kept = wrong(
        "remove, another is first",
        "the slot keeps the entry",
        lambda t: is_map(t.with_head(key, z3.Int("after"), x)),
    )
    return (*(("KV-POOL-13", each) for each in lost), ("KV-POOL-14", kept))
