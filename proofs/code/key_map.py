"""The slots of kvfast are the map from keys to entries: every table of a few keys and entries.

Statement (KV-POOL-13, KV-POOL-14): after every sequence of additions and removals a search finds
the entry added first under a key, or nothing if there is none, and the entries of a key are a ring
in the order of addition. `KeyMap` runs unchanged, in all states that additions and removals, one
by one and in runs, can reach: four entries, four keys of two requests and two groups, in a table of
16 slots; the home of the second request anywhere beside that of the first, its tags equal or
different; with keys added alone, with runs of two blocks, and where a slot can hold too few steps.

z3 proves the steps in tables of 2^1 … 2^32 slots. Assumption: a search ends, as half of the slots
are empty.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from itertools import permutations, product
from types import SimpleNamespace
from typing import Any, cast
from unittest.mock import patch

import z3

from kvfast._core import probing, record
from kvfast._core.key_map import KeyMap
from proofs._z3 import Ledger, Term
from proofs.code._planted import Planted

ASSUMES = ("half of the slots are empty", "no two texts have one hash")
GUARANTEES = ("a search finds the entry that was added first under a key, and no other",)

NUM_BLOCKS = 5
ENTRIES = range(1, NUM_BLOCKS)
WIDTH = 2
PER = 2
"""Hashes of a block."""
NUMBERS = (1, 3)
"""Of the hashes of the first two blocks."""
KEYS = (("a", 1, 0), ("a", 3, 0), ("b", 1, 0), ("a", 1, 1))
"""Request, number of the hash and group."""
Rings = tuple[tuple[int, ...], ...]
"""Of each key its entries, as they were added."""


@dataclass(frozen=True)
class World:
    """The homes of the second request, seen from the first, and the kinds of keys."""

    side: int
    line: int
    same_tag: bool
    strays: bool
    most_steps: int

    def request(self, name: str) -> Any:
        """Return four hashes of two words, which differ from the others' in the last or before."""
        is_b = name == "b"
        side, line, tag = (self.side, self.line, not self.same_tag) if is_b else (0, 0, 0)
        words = memoryview(bytearray(8 * WIDTH * 4)).cast("Q")
        for number in range(4):
            words[WIDTH * number] = tag << 40 | side << 37 | line << 8
            words[WIDTH * number + 1] = 10 * number + is_b
        return SimpleNamespace(digest_words=words, num_hashes=4)


def worlds() -> Iterator[World]:
    for side, line in ((1, 1), (0, 0), (2, 1)):
        yield World(side, line, same_tag=False, strays=False, most_steps=1)
        yield World(side, line, same_tag=True, strays=True, most_steps=probing.STEPS_MASK)
    for side, line in product(range(8), range(2)):
        yield World(side, line, same_tag=side % 3 > 0, strays=False, most_steps=probing.STEPS_MASK)


class Explored:
    """A map of kvfast in one of its states, and the rings that it must represent."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.requests = {name: world.request(name) for name in "ab"}
        self.map = KeyMap(NUM_BLOCKS, WIDTH)
        self.rings: Rings = ((),) * len(KEYS)
        self.out = memoryview(bytearray(4 * 8)).cast("i")

    def saved(self) -> tuple[Any, ...]:
        found = self.map
        return self.rings, bytes(found.slots), bytes(found.facts), found.has_strays

    def load(self, state: tuple[Any, ...]) -> None:
        """Put the map into that state."""
        self.rings, slots, facts, self.map.has_strays = state
        self.map.slots.cast("B")[:] = slots
        self.map.facts.cast("B")[:] = facts

    def changes(self) -> Iterator[Callable[[], None]]:
        """Yield every legal addition and removal of one or several entries."""
        within = [entry for ring in self.rings for entry in ring]
        outside = [entry for entry in ENTRIES if entry not in within]
        for entry, key in product(outside, range(len(KEYS))):
            yield partial(self.add, entry, key)
        for blocks in permutations((0, *outside), 2):
            yield partial(self.add_run, blocks)
        for entry in within:
            yield partial(self.remove, entry)
        for blocks in permutations(ENTRIES, 2):
            yield partial(self.remove_run, blocks)

    def add(self, entry: int, key: int) -> None:
        """Add an entry under a key: by its words in a world with strays."""
        name, number, group = KEYS[key]
        request = self.requests[name]
        if self.world.strays and (name == "b" or group):
            head = self.rings[key][0] if self.rings[key] else 0
            self.map.add_words(entry, request.digest_words, WIDTH * number, group, head)
        else:
            self.map.add(entry, request, number, group)
        self.note(entry, key)

    def note(self, entry: int, key: int) -> None:
        """Note an entry as the last of a key."""
        ring = (*self.rings[key], entry)
        self.rings = (*self.rings[:key], ring, *self.rings[key + 1 :])

    def add_run(self, blocks: tuple[int, ...]) -> None:
        """Add blocks of the first request; null has no key."""
        tables: Any = SimpleNamespace(arena=[7, *blocks])
        ended = self.map.add_run(tables, 1, 0, 2, self.requests["a"], PER, 0)
        assert ended == 2, "all of them"
        for key, block in enumerate(blocks):
            covered = self.map.facts[record.INTS * block + record.COVERED]
            assert block == 0 or covered == (key + 1) * PER, "what the key covers"
            if block:
                self.note(block, key)

    def remove(self, entry: int) -> None:
        """Remove an entry, and its key if it is the only one."""
        ring = next(ring for ring in self.rings if entry in ring)
        assert self.map.remove(entry) == (len(ring) == 1), "whether the key left"
        self.forget(entry)

    def forget(self, *entries: int) -> None:
        """Remove these from all rings."""
        self.rings = tuple(tuple(e for e in ring if e not in entries) for ring in self.rings)

    def remove_run(self, blocks: tuple[int, ...]) -> None:
        """Remove those blocks of a list that are in the map."""
        tables: Any = SimpleNamespace(arena=[*ENTRIES, *blocks])
        self.map.remove_run(tables, len(ENTRIES), len(ENTRIES) + len(blocks))
        self.forget(*blocks)

    def check(self) -> None:
        """Check that searches find the first entry, runs end rightly, and rings are in order."""
        heads = [ring[0] if ring else 0 for ring in self.rings]
        for (name, number, group), head in zip(KEYS, heads, strict=True):
            assert self.map.find(self.requests[name], number, group) == head, "first, or nothing"
        for entry in ENTRIES:
            assert self.map.is_added(entry) == any(entry in ring for ring in self.rings)
        for ring in self.rings:
            for entry, after in zip(ring, ring[1:] + ring[:1], strict=True):
                facts = self.map.facts
                assert facts[record.INTS * entry + record.DUP_NEXT] == after, "the ring"
                assert facts[record.INTS * after + record.DUP_PREV] == entry, "its way back"
        for first, limit in ((0, 2), (1, 2), (0, 1), (0, 0)):
            end = next((i for i in range(first, limit) if not heads[i]), limit)
            found = self.map.find_run(self.requests["a"], PER, 0, first, limit, self.out, 3)
            assert found == end, "the end of the run"
            assert list(self.out[3 + first : 3 + end]) == heads[first:end], "its blocks"

    def grow(self) -> None:
        """Double the room; everything is found as before."""
        self.map.grow(4 * NUM_BLOCKS)
        self.check()


def first_wrong(world: World) -> str | None:
    """Return the error in a state that changes can reach, or None."""
    with patch.object(probing, "STEPS_MASK", world.most_steps), patch.object(
        probing, "RUN_BLOCKS", 1 if world.same_tag else 2
    ):  # fmt: skip
        explored = Explored(world)
        waiting = [explored.saved()]
        seen = {waiting[0][:2]}
        try:
            while waiting:
                state = waiting.pop()
                explored.load(state)
                for change in list(explored.changes()):
                    explored.load(state)
                    change()
                    explored.check()
                    after = explored.saved()
                    if after[:2] not in seen:
                        seen.add(after[:2])
                        waiting.append(after)
            explored.grow()
        except Exception as error:
            return f"{type(error).__name__}: {error}"
    return None


def check_tables(ledger: Ledger) -> None:
    """Check every state of every world."""
    for world in worlds():
        ledger.agree(f"{world}", first_wrong(world) is None)


def check_steps(ledger: Ledger) -> None:
    """Prove that `steps_between` is the number of steps, for 2^1 … 2^32 slots."""
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


PLANTED = (
    Planted("KV-POOL-13", (KeyMap, "find", "if entry == 0 and", "if entry == 1 and")),
    Planted("KV-POOL-13", (KeyMap, "place_from", "if slot == 0:", "if slot <= 1:")),
    Planted("KV-POOL-13", (KeyMap, "place_from", "i = (i + probing.STEP) &", "i = (i + 1) &")),
    Planted("KV-POOL-13", (KeyMap, "carries", "range(1, self.width)", "range(1, self.width - 1)")),
    Planted("KV-POOL-13", (KeyMap, "find_run", "number = (i + 1) * per - 1", "number = i * per")),
    Planted("KV-POOL-13", (KeyMap, "find_run", "return i\n", "return i + 1\n")),
    Planted("KV-POOL-13", (KeyMap, "add_run", "request, (i + 1) * per - 1", "request, i * per")),
    Planted("KV-POOL-13", (KeyMap, "put_slot", "steps = min(", "steps = 1 + min(")),
    Planted("KV-POOL-13", (KeyMap, "empty_slot", "if steps < back", "if steps <= back")),
    Planted("KV-POOL-13", (KeyMap, "empty_slot", "back += 1", "back += 2")),
    Planted("KV-POOL-13", (KeyMap, "remove_run", "if slots[(place + probing.STEP) & mask] == 0",
                           "if slots[(place + probing.STEP) & mask] >= 0")),
    Planted("KV-POOL-13", (KeyMap, "fill_slot", "i + probing.STEP", "i + probing.STEP + 1")),
    Planted("KV-POOL-14", (KeyMap, "remove", "+= after - entry", "+= after - entry + 1")),
    Planted("KV-POOL-14", (KeyMap, "join", "last = self.facts[first + record.DUP_PREV]",
                           "last = self.facts[first + record.DUP_NEXT]")),
    Planted("KV-POOL-14", (KeyMap, "slot_of", "i = (i + probing.STEP)",
                           "i = (i + probing.STEP - 1)")),
)  # fmt: skip


def check_planted(ledger: Ledger) -> None:
    """Find each planted mistake."""
    for planted in PLANTED:
        with planted.done():
            found = any(map(first_wrong, worlds()))
        ledger.agree(f"mistake: {planted}", found)


def main() -> int:
    """Check everything; return 0 if each answer is the expected one."""
    ledger = Ledger("key_map")
    check_tables(ledger)
    check_steps(ledger)
    check_planted(ledger)
    return ledger.finish()


if __name__ == "__main__":
    sys.exit(main())
