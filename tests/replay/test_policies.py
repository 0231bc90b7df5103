"""Other orders of eviction: equal to a model that keeps whole histories in lists, and bounded."""

from __future__ import annotations

import json
import re
from array import array
from dataclasses import dataclass, field
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvcheck.cli import main
from kvcheck.tools.replay import policies
from kvcheck.tools.replay.policies import policy_hits, policy_of
from kvcheck.tools.replay.units import Asked, Units
from kvcheck.tools.replay.whatif import look_up, lru_hits, optimal_hits

NAMES = ("arc", "lfu", "priority", "ttl:1", "ttl:3", "quota:30", "quota:50", "pin:2", "pin:3")

PARENTS = (None, None, 0, 0, 1, 2, 2, 5)
WEIGHTS = (1, 2, 1, 1, 2, 1, 1, 1)


def path_to(unit: int | None) -> list[int]:
    return [] if unit is None else [*path_to(PARENTS[unit]), unit]


@st.composite
def traces(draw: st.DrawFn) -> Units:
    requests, now_ms = [], 0
    for _ in range(draw(st.integers(2, 14))):
        path = path_to(draw(st.integers(0, len(PARENTS) - 1)))
        blocks = sum(WEIGHTS[unit] for unit in path)
        full = blocks + draw(st.integers(0, 2))
        most = blocks - draw(st.integers(0, 1)) * (WEIGHTS[path[-1]] == 1)  # units end there
        now_ms += 500 * draw(st.integers(0, 4))
        labels = (now_ms, draw(st.sampled_from("abc")), draw(st.integers(-1, 2)))
        requests.append(Asked(array("q", path), most, full, draw(st.integers(0, 1)), *labels))
    return Units(1, requests, array("q", WEIGHTS), 1000)


@dataclass(eq=False)
class Kept:
    """A block in the cache, with every request for it since it was cached."""

    block: Any
    asked: list[Asked] = field(default_factory=list)
    released: int = 0
    was_evicted: bool = False
    is_pinned: bool = False


@dataclass
class Model:
    """One pool, without queues: each eviction looks at all blocks and sorts them."""

    name: str
    amount: int
    capacity: int
    cached: list[Kept] = field(default_factory=list)
    clock: int = 0
    target: int = 0
    ghosts: dict[bool, list[Any]] = field(default_factory=lambda: {False: [], True: []})

    def often(self, kept: Kept) -> bool:
        return len(kept.asked) > 1 or kept.was_evicted

    def rank(self, kept: Kept) -> Any:
        """Return what decides before recency; the lowest goes first."""
        match self.name:
            case "lfu":
                return len(kept.asked)
            case "priority":
                return max(asked.priority for asked in kept.asked)
            case "pin":
                return kept.is_pinned
            case "quota":
                owners = {asked.tenant for asked in kept.asked}
                same = [each for each in self.cached if {a.tenant for a in each.asked} == owners]
                return not (len(owners) == 1 and len(same) > self.amount / 100 * self.capacity)
            case "arc":
                once = [each for each in self.cached if not self.often(each)]
                goes_first = len(once) > self.target or len(once) == len(self.cached)
                return self.often(kept) == goes_first
        return 0

    def evict(self) -> None:
        gone = min(self.cached, key=lambda kept: (self.rank(kept), kept.released))
        self.cached.remove(gone)
        if self.name != "arc":
            return
        self.ghosts[self.often(gone)].append(gone.block)
        num_once = sum(not self.often(each) for each in self.cached)
        if num_once + len(self.ghosts[False]) > self.capacity:
            del self.ghosts[False][:1]
        if len(self.cached) + sum(map(len, self.ghosts.values())) > 2 * self.capacity:
            del self.ghosts[True][:1]

    def taken(self, block: Any) -> Kept:
        found = next((kept for kept in self.cached if kept.block == block), Kept(block))
        self.cached = [kept for kept in self.cached if kept is not found]
        for often, sign in ((False, 1), (True, -1)):
            mine, others = self.ghosts[often], self.ghosts[not often]
            if block in mine:
                moved = self.target + sign * max(1, len(others) // len(mine))
                self.target = min(self.capacity, max(0, moved))
                mine.remove(block)
                found.was_evicted = True
        return found

    def release(self, kept: Kept, asked: Asked) -> None:
        kept.asked.append(asked)
        pins = [each for each in self.cached if each.is_pinned]
        kept.is_pinned = self.name == "pin" and len(kept.asked) >= self.amount
        kept.is_pinned = kept.is_pinned and self.capacity > 1
        if kept.is_pinned and len(pins) >= self.capacity // 2:
            self.clock += 1
            oldest = min(pins, key=lambda each: each.released)
            oldest.released, oldest.is_pinned = self.clock, False
        self.clock += 1
        kept.released = self.clock
        self.cached.append(kept)

    def hits(self, units: Units) -> int:
        found = 0
        for number, asked in enumerate(units.requests):
            if self.name == "ttl":
                oldest_ms = asked.at_ms - 1000 * self.amount
                self.cached = [k for k in self.cached if k.asked[-1].at_ms >= oldest_ms]
            blocks = [(u, n) for u in asked.units for n in range(units.weights[u])]
            there = {kept.block for kept in self.cached}
            length = 0
            while length < len(blocks) and blocks[length] in there:
                length += 1
            found += min(length, asked.most_hits)
            held = [self.taken(block) for block in blocks]
            held += [Kept(("generated", number, n)) for n in range(asked.full - len(blocks))]
            while len(self.cached) + asked.held > self.capacity:
                self.evict()
            outputs = held[len(blocks) :]
            for kept in [*outputs, *held[len(blocks) - 1 :: -1]] if blocks else outputs:
                self.release(kept, asked)
        return found


def hits(name: str, units: Units, num_blocks: int) -> int:
    return policy_hits(units, num_blocks, policy_of(name)).total()


@pytest.mark.parametrize("name", NAMES)
@given(traces(), st.integers(0, 8))
@settings(max_examples=60)
def test_a_policy_equals_the_model_and_never_beats_the_best(
    name: str, units: Units, more: int
) -> None:
    num_blocks = units.smallest_pool + more
    kind, _, amount = name.partition(":")
    found = hits(name, units, num_blocks)
    assert found == Model(kind, int(amount or 0), num_blocks - 1).hits(units)
    assert found <= optimal_hits(units, num_blocks)


@given(traces(), st.integers(0, 8))
def test_without_anything_to_tell_blocks_apart_each_is_lru(units: Units, more: int) -> None:
    num_blocks = units.smallest_pool + more
    lru = lru_hits(look_up(units), num_blocks)
    assert Model("lru", 0, num_blocks - 1).hits(units) == lru
    for name in ("ttl:999", "quota:100", "pin:999"):
        assert hits(name, units, num_blocks) == lru
    assert hits("ttl:1", units, num_blocks) <= lru


def test_a_count_that_is_off_by_one_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(policies.LFU, "choose", lambda self, block, before, asked: int(before or 1))
    with pytest.raises(AssertionError):
        test_a_policy_equals_the_model_and_never_beats_the_best("lfu")


def test_the_table_has_a_column_for_each(tmp_path: Any, capsys: pytest.CaptureFixture[str]) -> None:
    lines = [
        {"input_length": 600, "output_length": 1, "hash_ids": [n % 3, 1]}
        | {"timestamp": 1000 * n, "tenant": "ab"[n % 2], "priority": n % 2}
        for n in range(12)
    ]
    trace = tmp_path / "trace.jsonl"
    trace.write_text("\n".join(map(json.dumps, lines)), encoding="utf-8")
    names = ("arc", "lfu", "priority", "ttl:1", "quota:50", "pin:2")
    chosen = [part for name in names for part in ("--policy", name)]
    assert main(["whatif", str(trace), "--num-blocks", "4", *chosen]) == 0
    said = capsys.readouterr().out
    shown = re.search(r"^ +4 +1,536(( +[0-9.]+%)+) *$", said, re.MULTILINE)
    assert shown is not None
    assert len(shown[1].split()) == 1 + len(names) + 1
    assert max(map(len, said.splitlines()[1:])) <= 80
    assert "over LRU's: arc " in " ".join(said.split())
