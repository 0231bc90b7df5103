"""What-if curves: equal to replays of one request at a time, and never beyond the best there is."""

from __future__ import annotations

from array import array
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import cache, partial
from itertools import accumulate, combinations
from random import Random
from typing import Any

import pytest

import kvfast
import kvref
from kvcheck.tools.replay import turns, whatif
from kvcheck.tools.replay.driver import Driver
from kvcheck.tools.replay.formats.text import Prompt
from kvcheck.tools.replay.options import ReplayOptions
from kvcheck.tools.replay.policies import policy_hits, policy_of
from kvcheck.tools.replay.trace import TraceRecord
from kvcheck.tools.replay.units import Asked, Units, joined, units_of
from kvcheck.tools.replay.whatif import (
    curve,
    endless_hits,
    look_up,
    lru_hits,
    optimal_hits,
    sizes_between,
)
from kvspec.errors import InvalidArgumentError
from kvspec.interface import Implementation


def records(seed: int, count: int, *, aligned: bool = False) -> list[TraceRecord]:
    """Draw prompts that share prefixes, and end inside a block or all at one of 128."""
    random, found = Random(seed), []
    for line in range(1, count + 1):
        ids = [random.randrange(3)]
        while random.random() < 0.7 and len(ids) < 5:
            ids.append(10 * len(ids) + random.randrange(3))
        last = 128 * random.randrange(4) + (128 if aligned else random.randrange(1, 64))
        length = 512 * (len(ids) - 1) + last
        found.append(TraceRecord(line, 0, length, random.randrange(300), tuple(ids)))
    return found


def chats(seed: int, count: int) -> list[TraceRecord]:
    """Draw turns of four chats, each behind all before it; half of the answers are known."""
    random, found, last = Random(seed), [], 0
    prompts = [Prompt() for _ in range(4)]
    for line in range(1, count + 1):
        prompt = random.choice(prompts)
        new, answer = (random.randrange(1, 200) for _ in range(2))
        prompt.add(array("I", range(last, last + new)))
        last += new
        tokens = array("I", range(last, last + answer))
        last += answer
        found.append(prompt.record(line, 0, tokens if random.random() < 0.5 else answer))
        prompt.add(tokens)
    return [each for each in found if each.input_length % 16]


def replayed(
    implementation: Implementation,
    trace: list[TraceRecord],
    num_blocks: int,
    block_size: int,
    max_running: int = 1,
    num_host_blocks: int = 0,
    policy: str = "lru",
) -> int:
    rest: Any = {"max_running": max_running, "num_host_blocks": num_host_blocks}
    if policy.startswith("ttl"):
        rest |= {"arrival": "timestamp", "step_ms": 500}
    options = ReplayOptions(num_blocks, block_size, policy=policy, **rest)
    driver = Driver(implementation, options, trace, trace_name="test", check_invariants=False)
    return driver.run().counts.tokens_hit // block_size


@pytest.mark.parametrize(
    ("make", "block_size", "draw"),
    [
        (kvref.implementation, 128, [records]),
        *[(kvfast.implementation, size, 3 * [records]) for size in (64, 512)],
        *[(kvfast.implementation, size, 3 * [chats]) for size in (16, 48)],
    ],
)
def test_the_curve_is_that_of_replays(
    make: Callable[[], Implementation],
    block_size: int,
    draw: Sequence[Callable[[int, int], list[TraceRecord]]],
) -> None:
    for seed, drawn in enumerate(draw):
        trace = drawn(seed, 40)
        units = units_of(trace, block_size)
        sizes = sizes_between([units], 8)[0]
        looked_up = look_up(units)
        hits = [lru_hits(looked_up, size) for size in sizes]
        assert hits == [replayed(make(), trace, size, block_size) for size in sizes]
        assert hits[-1] == endless_hits(looked_up)


@pytest.mark.parametrize("policy", ["priority", "lfu", "pin:2", "ttl:20"])
@pytest.mark.parametrize("make", [kvref.implementation, kvfast.implementation])
def test_an_order_of_eviction_hits_what_the_policy_of_that_name_does(
    make: Callable[[], Implementation], policy: str
) -> None:
    differ, num_traces = 0, 1 if make is kvref.implementation else 4
    for seed in range(num_traces):
        random = Random(seed)
        trace = [replace(each, priority=random.randint(-2, 2)) for each in chats(seed, 60)]
        if policy.startswith("ttl"):  # one step each, some idle ones between
            steps = accumulate(random.choice((1, 1, 2, 30)) for _ in trace)
            times = [1000 * number for number in steps]
            trace = [
                replace(each, timestamp_ms=ms, output_length=1, output_ids=None)
                for each, ms in zip(trace, times, strict=True)
            ]
        units = units_of(trace, 16)
        sizes = sizes_between([units], 8)[0]
        hits = [policy_hits(units, size, policy_of(policy)).total() for size in sizes]
        assert hits == [replayed(make(), trace, size, 16, policy=policy) for size in sizes]
        differ += hits != [lru_hits(look_up(units), size) for size in sizes]
    assert differ == num_traces


def of_two_lists(units: Units, num_blocks: int, num_host_blocks: int) -> tuple[int, int]:
    """Return the blocks hit in a pool, and those loaded from a tier below it; lowest last."""
    pool: list[object] = []
    host: list[object] = []
    hits = loaded = 0
    for number, asked in enumerate(units.requests):
        blocks = [(unit, at) for unit in asked.units for at in range(units.weights[unit])]
        there = [block in pool for block in blocks] + [False]
        either = [block in pool or block in host for block in blocks] + [False]
        hits += min(there.index(False), asked.most_hits)
        loaded += min(either.index(False), asked.most_hits)
        rest = [block for block in pool if block not in blocks]
        outputs = [(number, "output", at) for at in range(asked.full - len(blocks))]
        pool = [*blocks, *outputs, *rest][: num_blocks - 1 - asked.partial]
        gone = [block for block in rest if block not in pool]
        host = [*gone, *(each for each in host if each not in pool)][:num_host_blocks]
    return hits, loaded - hits


@pytest.mark.parametrize("seed", range(3))
def test_a_host_tier_gives_back_what_two_lists_would(seed: int) -> None:
    units = units_of(records(seed, 60), 64)
    for num_blocks in (units.smallest_pool, units.smallest_pool + 7):
        for num_host_blocks in (1, 8, 40):
            found = curve("test", units, [num_blocks], (), num_host_blocks)
            (point,) = found.points
            hits, loaded = of_two_lists(units, num_blocks, num_host_blocks)
            assert round(point.lru * units.tokens) == hits * units.block_size
            assert point.num_loaded_tokens == loaded * units.block_size


@pytest.mark.parametrize("make", [kvref.implementation, kvfast.implementation])
def test_a_replay_with_a_host_tier_hits_up_to_what_an_endless_pool_does(
    make: Callable[[], Implementation],
) -> None:
    trace = chats(1, 40)
    units = units_of(trace, 16)
    looked_up, size = look_up(units), units.smallest_pool + 7
    hosts = (0, 1, 8, 40, 9_000)
    hits = [replayed(make(), trace, size, 16, num_host_blocks=number) for number in hosts]
    assert hits[0] == lru_hits(looked_up, size)
    assert hits[-1] == endless_hits(looked_up)
    assert hits == sorted(set(hits))
    both = [lru_hits(looked_up, size + number) for number in hosts]
    assert all(replay <= stack for replay, stack in zip(hits, both, strict=True))


def test_units_that_are_joined_count_the_same() -> None:
    whole_blocks = partial(records, aligned=True)
    for draw, size in ((records, 64), (chats, 16), (records, 512), (whole_blocks, 128)):
        for seed in range(5):
            units = units_of(draw(seed, 40), size)
            one = joined(units)
            assert sum(one.weights) == sum(units.weights)
            assert joined(one) == one
            looked_up, again = look_up(units), look_up(one)
            assert endless_hits(again) == endless_hits(looked_up)
            for pool in sizes_between([units], 6)[0]:
                assert lru_hits(again, pool) == lru_hits(looked_up, pool)
                assert optimal_hits(one, pool) == optimal_hits(units, pool)


def test_each_turn_of_a_growing_prompt_is_one_unit() -> None:
    lengths = (1_000, 1_700, 3_001)
    trace = [
        TraceRecord(line, 0, length, 0, tuple(range(length // 16 + 1)), 16)
        for line, length in enumerate(lengths, 1)
    ]
    units = joined(units_of(trace, 16))
    assert list(units.weights) == [62, 44, 81]
    assert [list(each.units) for each in units.requests] == [[0], [0, 1], [0, 1, 2]]


@pytest.mark.parametrize("max_running", [2, 256])
def test_many_at_once_hit_the_same_where_nothing_is_evicted(max_running: int) -> None:
    for seed in range(3):
        trace = chats(seed, 40)
        hits = replayed(kvfast.implementation(), trace, 9_000, 16, max_running)
        assert hits == endless_hits(look_up(units_of(trace, 16)))


def test_turns_that_do_not_wait_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    whole = turns._whole_runs
    monkeypatch.setattr(turns, "_whole_runs", lambda record: whole(record) - 1)
    with pytest.raises(AssertionError):
        test_many_at_once_hit_the_same_where_nothing_is_evicted(256)


def test_a_last_generated_token_that_counts_as_computed_is_found(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def all_of_it(record: TraceRecord) -> int:
        return record.input_length + (record.output_length if record.output_ids else 0)

    monkeypatch.setattr(TraceRecord, "cached_length", property(all_of_it))
    with pytest.raises(AssertionError):
        test_the_curve_is_that_of_replays(kvfast.implementation, 16, 3 * [chats])


def test_prompts_that_end_with_a_block_leave_copies_and_differ_a_little() -> None:
    trace = records(5, 200, aligned=True)
    units = units_of(trace, 128)
    sizes = sizes_between([units], 8)[0]
    looked_up = look_up(units)
    hits = [lru_hits(looked_up, size) for size in sizes]
    real = [replayed(kvfast.implementation(), trace, size, 128) for size in sizes]
    differences = [abs(a - b) for a, b in zip(hits, real, strict=True)]
    assert max(differences) * 128 / units.tokens < 0.02


def tiny(random: Random) -> Units:
    children = {-1: [0, 1], 0: [2, 3], 1: [4], 2: [5], 3: [], 4: [], 5: []}
    requests = []
    for _ in range(random.randrange(2, 8)):
        path, node = array("q"), -1
        while children[node] and (node == -1 or random.random() < 0.7):
            node = random.choice(children[node])
            path.append(node)
        full = len(path) + random.randrange(2)
        most = len(path) - (random.random() < 0.2)
        requests.append(Asked(path, most, full, random.randrange(2)))
    return Units(1, requests, array("q", [1] * 6), 100)


def best(units: Units, num_blocks: int) -> int:
    @cache
    def from_here(number: int, there: frozenset[int]) -> int:
        if number == len(units.requests):
            return 0
        asked = units.requests[number]
        own = frozenset(asked.units)
        found = 0
        for unit in asked.units:
            if unit not in there:
                break
            found += 1
        room = num_blocks - 1 - asked.held
        others = there - own
        ways: Iterator[frozenset[int]] = (
            frozenset(kept) | own
            for size in range(min(room, len(others)) + 1)
            for kept in combinations(sorted(others), size)
        )
        return min(found, asked.most_hits) + max(from_here(number + 1, way) for way in ways)

    return from_here(0, frozenset())


def test_the_best_is_the_best_of_all_ways() -> None:
    random, num_less = Random(1), 0
    for _ in range(200):
        units = tiny(random)
        for num_blocks in range(units.smallest_pool, units.smallest_pool + 4):
            found = optimal_hits(units, num_blocks)
            assert found == best(units, num_blocks)
            looked_up = look_up(units)
            lru, infinite = lru_hits(looked_up, num_blocks), endless_hits(looked_up)
            assert lru <= found <= infinite
            num_less += lru < found
    assert num_less > 50, "hardly ever is there anything to gain"


def test_evicting_what_was_used_longest_ago_is_not_the_best(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def in_order_of_coming(heap: list[Any], entry: tuple[int, int, int]) -> None:
        heap.append(entry)

    monkeypatch.setattr(whatif, "heappush", in_order_of_coming)
    monkeypatch.setattr(whatif, "heappop", lambda heap: heap.pop(0))
    with pytest.raises(AssertionError):
        test_the_best_is_the_best_of_all_ways()


@pytest.mark.parametrize("block_size", [64, 128, 1024])
def test_enough_blocks_hit_nine_tenths_and_one_less_does_not(block_size: int) -> None:
    for seed in range(5):
        units = units_of(records(seed, 60), block_size)
        found = curve("test", units, [units.smallest_pool])
        looked_up = look_up(units)
        wanted = 0.9 * endless_hits(looked_up)
        assert lru_hits(looked_up, found.enough_blocks) >= wanted
        if found.enough_blocks > units.smallest_pool:
            assert lru_hits(looked_up, found.enough_blocks - 1) < wanted


def test_pools_side_by_side_hold_equally_many_tokens() -> None:
    trace, larger = records(1, 30), records(2, 90)
    asked = [units_of(trace, 64), units_of(larger, 64), units_of(larger, 1024)]
    found = sizes_between(asked, 9)
    held = [
        [(each - 1) * units.block_size for each in pools]
        for units, pools in zip(asked, found, strict=True)
    ]
    longest = max(held, key=len)
    assert 2 <= len(longest) <= 9
    for units, pools, tokens in zip(asked, found, held, strict=True):
        assert tokens == longest[-len(tokens) :]  # all but those that are too small
        assert pools[0] >= units.smallest_pool
        looked_up = look_up(units)
        assert lru_hits(looked_up, pools[-1]) == endless_hits(looked_up)


def test_a_block_size_that_cuts_across_ids_is_refused() -> None:
    with pytest.raises(InvalidArgumentError, match="512"):
        units_of(records(1, 2), 48)
