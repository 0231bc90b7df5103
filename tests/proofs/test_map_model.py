"""What proofs/code/key_map.py says of a table holds of kvfast's after every change."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import replace

import pytest
import z3

from kvfast._core import probing, record
from kvfast._core.columns import ring_of
from kvfast._core.key_map import KeyMap
from proofs.code._map.table import Table, any_table, is_map
from tests.proofs.tabled import tabled

NUM_SLOTS = 8
NUM_ENTRIES = 4
HOMES = (0, 0, 1)
"""Of the keys: the slots of all three are in each other's way."""

HASHES = tuple(((k << 48) + (home << 32)).to_bytes(8, "little") for k, home in enumerate(HOMES))


def seen(keys: KeyMap, rings: Sequence[Sequence[int]]) -> Table:
    """The slots of a map as the proof has them: place x is x steps from place 0."""
    slots = [keys.slots[x * probing.STEP & keys.slot_mask] for x in range(NUM_SLOTS)]
    entries = [slot & probing.ENTRY_MASK for slot in slots]
    heads = [ring[0] if ring else 0 for ring in rings]
    key_of = {entry: k for k, ring in enumerate(rings) for entry in ring}
    homes = [keys.facts[record.INTS * e + record.HOME] for e in range(NUM_ENTRIES)]
    steps = [home * probing.STEP_INVERSE & keys.slot_mask for home in homes]
    known = [home * probing.STEP_INVERSE & keys.slot_mask for home in HOMES]
    return replace(
        any_table(NUM_SLOTS),
        num_slots=z3.IntVal(NUM_SLOTS),
        num_entries=z3.IntVal(NUM_ENTRIES),
        num_keys=z3.IntVal(len(HOMES)),
        has_strays=z3.BoolVal(True),
        slot=tabled(entries),
        home=tabled(steps),
        key=tabled([key_of.get(entry, 0) for entry in range(NUM_ENTRIES)]),
        head=tabled(heads),
        place=tabled([entries.index(head) if head in entries else 0 for head in heads]),
        home_of=tabled(known),
        stray_home=tabled(known),
    )


def first_broken(keys: KeyMap, *, num_changes: int) -> int | None:
    """Add and remove at random; the change after which the table is not the map, if any."""
    rng = random.Random(1)
    rings: list[list[int]] = [[] for _ in HASHES]
    for number in range(num_changes):
        entry = rng.randrange(1, NUM_ENTRIES)
        ring = next((ring for ring in rings if entry in ring), None)
        if ring is None:
            key = rng.choice((0, 0, 1, 2))
            words = memoryview(HASHES[key]).cast("Q")
            keys.add_words(entry, words, 0, 0, rings[key][0] if rings[key] else 0)
            rings[key].append(entry)
        else:
            keys.remove(entry)
            ring.remove(entry)
        if not z3.is_true(z3.simplify(is_map(seen(keys, rings)))):
            return number
        if any(ring_of(keys, ring[0]) != ring for ring in rings if ring):
            return number
    return None


@pytest.mark.rule("KV-POOL-13", "KV-POOL-14")
def test_the_table_is_the_map_after_every_change() -> None:
    """Three keys that are in each other's way, up to three entries each."""
    keys = KeyMap(NUM_ENTRIES, 1)
    assert keys.slot_mask + 1 == NUM_SLOTS
    assert first_broken(keys, num_changes=80) is None


class NothingMovesBack(KeyMap):
    """A hole stays where it is."""

    def empty_slot(self, hole: int) -> None:
        self.slots[hole] = 0


class HeirsComeLast(KeyMap):
    """A key's slot goes to the entry that was added last."""

    def remove(self, entry: int) -> bool:
        last = self.facts[record.INTS * entry + record.DUP_PREV]
        after = self.facts[record.INTS * entry + record.DUP_NEXT]
        left = super().remove(entry)
        for i in range(self.slot_mask + 1):
            if not left and self.slots[i] & probing.ENTRY_MASK == after:
                self.slots[i] += last - after
        return left


@pytest.mark.parametrize("twin", [NothingMovesBack, HeirsComeLast])
def test_a_table_that_is_not_the_map_is_seen(twin: type[KeyMap]) -> None:
    """One that loses a key, and one that answers a later copy."""
    assert first_broken(twin(NUM_ENTRIES, 1), num_changes=80) is not None
