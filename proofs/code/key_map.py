"""The slots of kvfast are the map from keys to blocks, for tables and rings of any size.

Statement (KV-POOL-13, KV-POOL-14): a search finds the entry added first under a key, or nothing if
there is none. It follows from what each change keeps: a key has one slot, that of its first entry;
no place between the key's home and its slot is empty; the entries of a key are a ring in the order
of adding (`_map.copies`).

Places are counted in steps of STEP slots, which the numbers of `kvfast._core.probing` allow for
every table of 2^1 … 2^32 slots. The loops of `place_from`, `remove` and `empty_slot` are written
out as rounds (`_map.rounds`); `steps_between`, `join` and `make_ring` are run as they stand. The
arithmetic of slots is that of 64 bits. Assumed is that a search ends: half of the slots are empty.

Each round is shown to be possible, and mistakes in it are found in a table of few slots.
"""

from __future__ import annotations

import sys
from types import SimpleNamespace
from typing import cast

import z3

from kvfast._core import probing, record
from kvfast._core.key_map import KeyMap
from proofs._z3 import Ledger, Term, ask, forall
from proofs.code._map import copies
from proofs.code._map.rounds import mistakes, rounds
from proofs.code._map.table import any_table, is_map, world
from proofs.code._symbolic import as_int

ASSUMES = ("half of the slots are empty", "no two texts have one hash")
GUARANTEES = ("a search finds the entry that was added first under a key, and no other",)

SIZES = (4, 8)
"""Slots of the tables in which a mistake is looked for."""


def check_rounds(ledger: Ledger) -> None:
    """What holds between two rounds of a loop, and after it."""
    for each in rounds():
        table, few = any_table(), any_table(SIZES[0])
        ledger.prove(each.name, [world(table), *each.before(table)], each.after(table))
        ledger.possible(f"{each.name} is possible", world(few), *each.before(few))
    for rule, mistake in mistakes():
        tables = map(any_table, SIZES)
        found = (
            ask([world(few), *mistake.before(few), z3.Not(mistake.after(few))]) == "sat"
            for few in tables
        )
        ledger.agree(f"mistake: {rule}: {mistake.name}", any(found))


def check_empty(ledger: Ledger) -> None:
    """An empty table is the empty map."""
    table = any_table()
    slots = forall([table.places], lambda x: table.slot(x) == 0)
    heads = forall([table.keys], lambda k: table.head(k) == 0)
    ledger.prove("an empty table", [world(table), slots, heads], is_map(table))


def check_copies(ledger: Ledger) -> None:
    """Rings of entries with one key."""
    for change in copies.CHANGES:
        ledger.prove(change.name, copied(change, None), changed(change, None))
        ledger.possible(f"{change.name} is possible", *copied(change, 3))
    for name, (rule, change) in copies.MISTAKES.items():
        ledger.refute(f"mistake: {rule}: {name}", copied(change, 3), changed(change, 3))
    keys, one = copies.any_map(), z3.Int("entry")
    keys.make_ring(as_int(one))
    alone = copies.only(one)
    ledger.prove("make_ring", [one >= 1], copies.is_ring(keys, alone))
    gone = copies.any_map()
    ring = copies.any_ring()
    copies.remove(gone, ring)
    added = copies.field_of(gone, record.DUP_NEXT, ring.at(copies.place())) != 0
    ledger.prove("what was removed is not in the map", copied(copies.REMOVE, None), z3.Not(added))


def copied(change: copies.Change, size: int | None) -> list[Term]:
    """What holds before a change."""
    ring = copies.any_ring(size)
    return [copies.is_ring(copies.any_map(), ring), change.allowed(ring)]


def changed(change: copies.Change, size: int | None) -> Term:
    """And after it."""
    ring, keys = copies.any_ring(size), copies.any_map()
    change.run(keys, ring)
    after = change.after(ring)
    return copies.is_ring(keys, after)


def check_steps(ledger: Ledger) -> None:
    """`steps_between` is the number of steps, in tables of 2^1 … 2^32 slots."""
    for bits in range(1, 33):
        start, end = z3.BitVecs("start end", bits)
        whole = SimpleNamespace(slot_mask=(1 << bits) - 1)
        steps: Term = KeyMap.steps_between(cast(KeyMap, whole), start, end)
        there = start + steps * probing.STEP == end
        ledger.prove(f"steps among 2^{bits} slots", [], there)
        ledger.prove(f"one step among 2^{bits} slots", [end == start + probing.STEP], steps == 1)
    start, end = z3.BitVecs("start end", 32)
    even = start + (end - start) * probing.STEP_INVERSE * (probing.STEP - 1) == end
    ledger.refute("mistake: an even number of slots is a step", [], even)


def check_words(ledger: Ledger) -> None:
    """A slot's word holds tag, steps and entry side by side, and its changes touch one of them."""
    tag, steps, entry, back, after = z3.BitVecs("tag steps entry back after", 64)

    def word(tag: Term, steps: Term, entry: Term) -> Term:
        return (tag << probing.TAG_SHIFT) | (steps << probing.STEPS_SHIFT) | entry

    slot = word(tag, steps, entry)
    mask = probing.ENTRY_MASK
    fits = [z3.ULT(tag, 1 << 24), z3.ULE(steps, probing.STEPS_MASK), z3.ULE(entry, mask)]
    fits += [entry > 0, z3.ULE(back, steps), z3.ULE(after, mask)]
    read = z3.And(
        slot > 0,
        slot & mask == entry,
        (slot >> probing.STEPS_SHIFT) & probing.STEPS_MASK == steps,
        slot >> probing.TAG_SHIFT == tag,
    )
    ledger.possible("a word", *fits)
    ledger.prove("a word is read as it was written", fits, read)
    nearer = slot - (back << probing.STEPS_SHIFT)
    ledger.prove("a slot moves back", fits, nearer == word(tag, steps - back, entry))
    ledger.prove("an heir", fits, slot + (after - entry) == word(tag, steps, after))
    further = [*fits[:4], z3.ULE(after, mask), z3.ULE(back, probing.STEPS_MASK)]
    moved = nearer == word(tag, steps - back, entry)
    ledger.refute("mistake: a slot moves to before its home", further, moved)


def main() -> int:
    """Ask everything; 0 if each answer is the expected one."""
    ledger = Ledger("key_map")
    check_empty(ledger)
    check_rounds(ledger)
    check_copies(ledger)
    check_steps(ledger)
    check_words(ledger)
    return ledger.finish()


if __name__ == "__main__":
    sys.exit(main())
