"""The oracles of a single group, by examples worked out by hand: each bound, both sides of it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from kvcheck.judge.longest_hit import LongestHitCheck, full_attention_hit
from kvcheck.judge.oracles import (
    blocks_needed,
    expect_equal,
    longest_full_hit,
    queue_after_allocation,
    queue_after_release,
)
from kvcheck.judge.single_group import SingleGroupCheck
from kvcheck.play.difference import WrongAnswer
from kvcheck.play.runner import Tracked
from kvcheck.play.scheduler import Seat
from kvcheck.play.steps import Arrive
from kvcheck.rules.specs import full
from kvspec.config import ManagerConfig
from kvspec.errors import InvariantViolation
from kvspec.snapshot import RequestState, Snapshot
from tests.contract.builders import make_config

HASHES = [bytes([n]) * 32 for n in (1, 2, 3, 4)]
KEYS = [block_hash + bytes(4) for block_hash in HASHES]


def state_with(
    queue: Sequence[int],
    references: Sequence[int],
    cached: dict[int, bytes] | None = None,
    **requests: tuple[int, ...],
) -> Snapshot:
    """A state with this free queue, references per block, keys of blocks and lists."""
    keys = cached or {}
    order: dict[bytes, tuple[int, ...]] = {}
    for block, key in keys.items():
        order[key] = (*order.get(key, ()), block)
    return Snapshot(
        num_blocks=len(references),
        free_queue=tuple(queue),
        ref_counts=tuple(references),
        block_keys=tuple((keys[b],) if b in keys else () for b in range(len(references))),
        lookup_order=order,
        covered_tokens=(0,) * len(references),
        none_hash=bytes(32),
        requests={name: RequestState((blocks,), (0,)) for name, blocks in requests.items()},
    )


# Blocks 4 and 5 carry the same key; block 2 carries the hash of the third block, not the second.
CACHED = state_with((), (0,) * 7, {4: KEYS[0], 5: KEYS[0], 3: KEYS[1], 2: KEYS[2]})
GAP = state_with((), (0,) * 7, {4: KEYS[0], 2: KEYS[2]})


def test_what_differs_is_raised_with_rule_and_both_sides() -> None:
    expect_equal("KV-POOL-3", "blocks", (1, 2), (1, 2))
    with pytest.raises(WrongAnswer, match=r"expected blocks: \[1, 2\], got \[2, 1\]") as caught:
        expect_equal("KV-POOL-3", "blocks", (1, 2), (2, 1))
    assert (caught.value.rule, caught.value.invariant) == ("KV-POOL-3", "answers_as_the_rule_says")
    assert (caught.value.expected, caught.value.observed) == ("blocks: [1, 2]", "[2, 1]")


@pytest.mark.parametrize(
    ("state", "num_hashes", "most_tokens", "drop", "hit"),
    [
        (CACHED, 4, 99, False, [4, 3, 2]),
        (CACHED, 4, 99, True, [4, 3]),
        (CACHED, 2, 99, False, [4, 3]),
        (CACHED, 3, 12, False, [4, 3, 2]),
        (CACHED, 3, 11, False, [4, 3]),
        (CACHED, 3, 8, False, [4, 3]),
        (CACHED, 3, 3, False, []),
        (CACHED, 0, 99, False, []),
        (CACHED, 0, 99, True, []),
        (CACHED, 1, 99, True, []),
        (GAP, 3, 99, False, [4]),
    ],
)
def test_the_longest_hit_is_the_longest_run_of_keys(
    state: Snapshot, num_hashes: int, most_tokens: int, drop: bool, hit: list[int]
) -> None:
    """Blocks of 4 tokens: the first block of each key, up to what is missing or allowed."""
    hashes = HASHES[:num_hashes]
    assert longest_full_hit(state, hashes, most_tokens, 4, drop_last_block=drop) == hit


@pytest.mark.parametrize(
    ("held", "hits", "num_slots", "need"),
    [
        (0, (), 0, 0),
        (0, (), 1, 1),
        (0, (), 4, 1),
        (0, (), 5, 2),
        (1, (), 8, 1),
        (2, (), 8, 0),
        (3, (), 8, 0),
        (0, (1,), 8, 1),  # block 1 is in use
        (0, (2,), 8, 2),  # block 2 is free, so it has to be revived
        (0, (1, 2), 8, 1),
        (0, (1, 2), 4, 1),
        (0, (2, 3), 16, 4),
    ],
)
def test_a_need_is_what_is_missing_and_what_is_revived(
    held: int, hits: tuple[int, ...], num_slots: int, need: int
) -> None:
    """Blocks of 4 tokens."""
    state = state_with((2, 3), (0, 1, 0, 0))
    assert blocks_needed(state, held, hits, num_slots, 4) == need


@pytest.mark.parametrize(
    ("lists", "queue"),
    [
        ([], (9,)),
        ([[0]], (9,)),
        ([[1]], (9,)),  # another reference is left
        ([[1, 1]], (1, 9)),
        ([[2, 3]], (2, 3, 9)),
        ([[2], [3]], (3, 2, 9)),
        ([[4, 5]], (9, 4, 5)),
        ([[4, 2, 0, 5, 3]], (2, 3, 9, 4, 5)),
    ],
)
def test_released_blocks_go_to_the_front_or_the_back(
    lists: list[list[int]], queue: tuple[int, ...]
) -> None:
    """Block 1 has two references, all others one; 4 and 5 are cached."""
    state = state_with((9,), (0, 2, 1, 1, 1, 1, 1, 1, 1, 0), {4: KEYS[0], 5: KEYS[1]})
    assert queue_after_release(state, lists) == queue


@pytest.mark.parametrize(
    ("hits", "num_taken", "taken", "left"),
    [
        ((), 0, (), (3, 1, 2)),
        ((), 2, (3, 1), (2,)),
        ((3,), 1, (1,), (2,)),
        ((1, 7), 2, (3, 2), ()),
    ],
)
def test_an_allocation_takes_from_the_front_after_the_hits_left(
    hits: tuple[int, ...], num_taken: int, taken: tuple[int, ...], left: tuple[int, ...]
) -> None:
    state = state_with((3, 1, 2), (0, 0, 0, 0, 0, 0, 0, 1))
    assert queue_after_allocation(state, hits, num_taken) == (taken, left)


CONFIG = replace(make_config(7), scheduler_block_size_tokens=4, hash_block_size_tokens=4)


@pytest.mark.parametrize(
    ("config", "blocks"),
    [
        (CONFIG, [4, 3, 2]),
        (replace(CONFIG, use_eagle=True), [4, 3]),
        (
            replace(
                CONFIG,
                kv_cache=make_config(7, specs=[full(4)], eagle_groups=[0]).kv_cache,
            ),
            [4, 3],
        ),
        (replace(CONFIG, scheduler_block_size_tokens=8), [4]),
    ],
)
def test_the_hit_of_a_group_is_its_blocks_and_their_tokens(
    config: ManagerConfig, blocks: list[int]
) -> None:
    """At most 15 tokens; a drafting head costs the last block."""
    request: Any = SimpleNamespace(block_hashes=HASHES)
    size = config.scheduler_block_size_tokens or 0
    assert full_attention_hit(config, CACHED, request, 15) == (len(blocks) * size, [blocks])


def tracked(num_tokens: int, *, skip_reading: bool = False) -> Tracked:
    """Request r, which waits."""
    arrival = Arrive((7,) * num_tokens, skip_reading=skip_reading)
    return Tracked("r", arrival, Seat.of(arrival.prompt))


def operation(name: str, result: object, **members: Any) -> Any:
    """An operation on request r of 9 tokens, from the state CACHED."""
    request = tracked(9)
    outcome = SimpleNamespace(error=None, result=result)
    before = SimpleNamespace(snapshot=CACHED)
    parts = {"request": request, "outcome": outcome, "before": before, "arguments": {}, **members}
    return SimpleNamespace(name=name, **parts)


def runner_of(config: ManagerConfig) -> Any:
    """A runner as far as these checks look at it."""
    player = SimpleNamespace(requests={"r": SimpleNamespace(block_hashes=HASHES)})
    return SimpleNamespace(config=config, subject=SimpleNamespace(player=player))


def hit_check(most: list[int]) -> LongestHitCheck:
    """With an oracle that notes how many tokens it was asked for."""

    def oracle(config: ManagerConfig, state: Snapshot, request: Any, most_tokens: int) -> Any:
        most.append(most_tokens)
        return full_attention_hit(config, state, request, most_tokens)

    return LongestHitCheck(oracle, rule="KV-FULL-2")


def answer(length: int, *blocks: int) -> dict[str, object]:
    """What a look-up answers."""
    return {"num_computed_tokens": length, "blocks": [list(blocks)]}


NOTHING_READ = tracked(9, skip_reading=True)
FAILED = SimpleNamespace(error=ValueError(), result=None)


def test_a_look_up_is_compared_in_blocks_and_tokens() -> None:
    most: list[int] = []
    check, runner = hit_check(most), runner_of(CONFIG)
    check.after_operation(runner, operation("get_computed_blocks", answer(8, 4, 3)))
    assert most == [8]  # the last of 9 tokens is always computed
    for wrong, rule in ((answer(8, 4, 5), "KV-FULL-2"), (answer(7, 4, 3), "KV-MGR-1")):
        with pytest.raises(InvariantViolation) as caught:
            check.after_operation(runner, operation("get_computed_blocks", wrong))
        assert caught.value.rule == rule


@pytest.mark.parametrize(
    ("config", "members"),
    [(replace(CONFIG, enable_caching=False), {}), (CONFIG, {"request": NOTHING_READ})],
)
def test_nothing_is_found_with_caching_off_or_by_who_must_not_read(
    config: ManagerConfig, members: dict[str, Any]
) -> None:
    check, runner = hit_check([]), runner_of(config)
    check.after_operation(runner, operation("get_computed_blocks", answer(0), **members))
    with pytest.raises(InvariantViolation):
        check.after_operation(runner, operation("get_computed_blocks", answer(4, 4), **members))


@pytest.mark.parametrize(
    "done",
    [
        operation("free", None),
        operation("get_computed_blocks", None, request=None),
        operation("get_computed_blocks", None, outcome=FAILED),
    ],
)
@pytest.mark.parametrize("check", [hit_check([]), SingleGroupCheck()], ids=type)
def test_other_operations_and_errors_are_left_to_others(check: Any, done: Any) -> None:
    check.after_operation(runner_of(CONFIG), done)
    check.after_step(runner_of(CONFIG))


@pytest.mark.parametrize(
    "members", [{"request": None}, {"outcome": FAILED}, {"name": "get_blocks"}]
)
def test_what_is_no_granted_allocation_takes_nothing(members: dict[str, Any]) -> None:
    done = operation("allocate_slots", None)
    vars(done).update(members)
    SingleGroupCheck().after_operation(runner_of(CONFIG), done)


# Seven blocks of 4 tokens: r holds block 1, blocks 2 … 6 are free, 2 is cached.
HOLDING = state_with((3, 4, 5, 6, 2), (0, 1, 0, 0, 0, 0, 0), {2: KEYS[1]}, r=(1,))
EMPTY = state_with((1, 3, 4, 5, 6, 2), (0,) * 7, {2: KEYS[0]})
LEGAL: dict[str, Any] = {"num_computed_tokens": 0, "num_new_tokens": 1, "status": "WAITING"}


def allocation(before: Snapshot, num_tokens: int = 9, **arguments: Any) -> Any:
    """A refused allocation from this state."""
    return operation(
        "allocate_slots",
        None,
        request=tracked(num_tokens),
        before=SimpleNamespace(snapshot=before),
        arguments={**LEGAL, **arguments},
    )


def is_room(config: ManagerConfig, done: Any) -> bool:
    """Whether the check calls a refusal wrong."""
    try:
        SingleGroupCheck().after_operation(runner_of(config), done)
    except InvariantViolation as violation:
        return violation.rule == "KV-MGR-7"
    return False


ROOM: list[tuple[Snapshot, dict[str, Any], dict[str, Any], bool]] = [
    (EMPTY, {}, {"num_new_tokens": 24}, True),
    (EMPTY, {}, {"num_new_tokens": 25}, False),
    (HOLDING, {}, {"num_computed_tokens": 4, "num_new_tokens": 20}, True),
    (HOLDING, {}, {"num_computed_tokens": 4, "num_new_tokens": 21}, False),
    (EMPTY, {}, {"num_new_tokens": 20, "num_lookahead_tokens": 4}, True),
    (EMPTY, {}, {"num_new_tokens": 20, "num_lookahead_tokens": 5}, False),
    (EMPTY, {}, {"num_new_tokens": 20, "num_external_computed_tokens": 4}, True),
    (EMPTY, {}, {"num_new_tokens": 20, "num_external_computed_tokens": 5}, False),
    (EMPTY, {}, {"num_new_tokens": 20, "reserved_blocks": 1}, True),
    (EMPTY, {}, {"num_new_tokens": 20, "reserved_blocks": 2}, False),
    (EMPTY, {}, {"num_new_tokens": 20, "new_computed_blocks": [[2]]}, True),
    (EMPTY, {}, {"num_new_tokens": 21, "new_computed_blocks": [[2]]}, False),
    (EMPTY, {"max_model_len_tokens": 24}, {"num_new_tokens": 99}, True),
    (EMPTY, {"max_model_len_tokens": 25}, {"num_new_tokens": 99}, False),
    (
        EMPTY,
        {"max_model_len_tokens": 24},
        {"num_new_tokens": 1, "num_external_computed_tokens": 99},
        True,
    ),
    # A watermark of 0.3 keeps 2 of 7 blocks free, from newcomers beside others.
    (EMPTY, {"watermark": 0.3}, {"num_new_tokens": 16}, True),
    (EMPTY, {"watermark": 0.3}, {"num_new_tokens": 17}, False),
    (EMPTY, {"watermark": 0.3}, {"num_new_tokens": 17, "has_scheduled_reqs": False}, True),
    (EMPTY, {"watermark": 0.3}, {"num_new_tokens": 17, "has_scheduled_reqs": True}, False),
    (EMPTY, {"watermark": 0.3}, {"num_new_tokens": 17, "status": "RUNNING"}, True),
    (EMPTY, {"watermark": 0.3}, {"num_new_tokens": 17, "status": "PREEMPTED"}, False),
]


@pytest.mark.parametrize(("before", "config", "arguments", "room"), ROOM)
def test_there_is_room_exactly_for_what_is_free(
    before: Snapshot, config: dict[str, Any], arguments: dict[str, Any], room: bool
) -> None:
    assert is_room(replace(CONFIG, **config), allocation(before, **arguments)) is room


@pytest.mark.parametrize(
    ("num_tokens", "config", "room"),
    [
        (24, {}, True),
        (25, {}, False),
        (99, {"max_model_len_tokens": 24}, True),
        (16, {"watermark": 0.3}, True),
        (17, {"watermark": 0.3}, False),
    ],
)
def test_the_whole_sequence_must_fit_where_that_is_asked(
    num_tokens: int, config: dict[str, Any], room: bool
) -> None:
    """Though one new token would."""
    arguments: list[dict[str, Any]] = [
        {"full_sequence_must_fit": True},
        {"full_sequence_must_fit": False},
        {},
    ]
    for asked in arguments:
        done = allocation(EMPTY, num_tokens, **asked)
        must_fit = asked.get("full_sequence_must_fit", False)
        assert is_room(replace(CONFIG, **config), done) is (room or not must_fit)


def test_the_whole_sequence_counts_hits_that_must_be_revived() -> None:
    """Block 2 is cached and free: a hit, and yet one of the six that are taken."""
    for num_tokens, room in ((24, True), (25, False)):
        asked = {"full_sequence_must_fit": True, "new_computed_blocks": [[2]]}
        assert is_room(CONFIG, allocation(EMPTY, num_tokens, **asked)) is room


def granted(blocks: Sequence[int], queue: Sequence[int], new: Sequence[int]) -> Any:
    """r held 1, hit 2 and got 3 and 4 for 12 more tokens, if these arguments say so."""
    done = allocation(HOLDING, num_computed_tokens=4, num_new_tokens=8, new_computed_blocks=[[2]])
    done.outcome = SimpleNamespace(error=None, result=[list(new)])
    done.after = SimpleNamespace(snapshot=state_with(queue, (0,) * 7, r=tuple(blocks)))
    return done


@pytest.mark.parametrize(
    ("blocks", "queue", "new", "rule"),
    [
        ((1, 2, 3, 4), (5, 6), (3, 4), None),
        ((1, 2, 3, 4), (6, 5), (3, 4), "KV-POOL-3"),
        ((1, 2, 4, 3), (5, 6), (4, 3), "KV-POOL-3"),
        ((1, 2, 3, 4), (5, 6), (4,), None),
        ((1, 2, 3, 4), (5, 6), (3,), "KV-MGR-3"),
        ((1, 2, 3, 4), (5, 6), (4, 3), "KV-MGR-3"),
    ],
)
def test_what_is_taken_comes_from_the_front_and_is_told(
    blocks: tuple[int, ...], queue: tuple[int, ...], new: tuple[int, ...], rule: str | None
) -> None:
    """What is told is the end of the list."""
    done = granted(blocks, queue, new)
    if rule is None:
        SingleGroupCheck().after_operation(runner_of(CONFIG), done)
        return
    with pytest.raises(InvariantViolation) as caught:
        SingleGroupCheck().after_operation(runner_of(CONFIG), done)
    assert caught.value.rule == rule
