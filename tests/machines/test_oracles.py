"""The oracles of the machines, by examples worked out by hand: each bound, both sides of it."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from kvcheck.judge.longest_hit import LongestHitCheck
from kvcheck.judge.oracles import expect_equal, queue_after_release
from kvcheck.play.difference import WrongAnswer
from kvcheck.play.runner import Tracked
from kvcheck.play.scheduler import Seat
from kvcheck.play.steps import Arrive
from kvspec.config import ManagerConfig
from kvspec.errors import InvariantViolation
from kvspec.snapshot import Snapshot
from tests.contract.builders import make_config


def test_what_differs_is_raised_with_rule_and_both_sides() -> None:
    expect_equal("KV-POOL-3", "blocks", (1, 2), (1, 2))
    with pytest.raises(WrongAnswer, match=r"expected blocks: \[1, 2\], got \[2, 1\]") as caught:
        expect_equal("KV-POOL-3", "blocks", (1, 2), (2, 1))
    assert (caught.value.rule, caught.value.invariant) == ("KV-POOL-3", "answers_as_the_rule_says")
    assert (caught.value.expected, caught.value.observed) == ("blocks: [1, 2]", "[2, 1]")


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
    keys = tuple((b"key",) if block in (4, 5) else () for block in range(10))
    state = Snapshot(10, (9,), (0, 2, 1, 1, 1, 1, 1, 1, 1, 0), keys, {}, (), b"", {})
    assert queue_after_release(state, lists) == queue


CONFIG = replace(make_config(7), scheduler_block_size_tokens=4, hash_block_size_tokens=4)


def tracked(num_tokens: int, *, skip_reading: bool = False) -> Tracked:
    """Request r, which waits."""
    arrival = Arrive((7,) * num_tokens, skip_reading=skip_reading)
    return Tracked("r", arrival, Seat.of(arrival.prompt))


def operation(name: str, result: object, **members: Any) -> Any:
    """An operation on request r of 9 tokens."""
    outcome = SimpleNamespace(error=None, result=result)
    parts = {"request": tracked(9), "outcome": outcome, "before": SimpleNamespace(snapshot=None)}
    return SimpleNamespace(name=name, arguments={}, **{**parts, **members})


def runner_of(config: ManagerConfig) -> Any:
    """A runner as far as these checks look at it."""
    return SimpleNamespace(
        config=config, subject=SimpleNamespace(player=SimpleNamespace(requests={"r": None}))
    )


def hit_check(most: list[int]) -> LongestHitCheck:
    """Two blocks are hit; the oracle notes how many tokens it was asked for."""

    def oracle(config: ManagerConfig, state: Snapshot, request: Any, most_tokens: int) -> Any:
        most.append(most_tokens)
        return 8, [[4, 3]]

    return LongestHitCheck(oracle, rule="KV-FULL-2")


def answer(length: int, *blocks: int) -> dict[str, object]:
    """The result of a look-up."""
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
        check.after_operation(runner, operation("get_computed_blocks", answer(8, 4, 3), **members))


@pytest.mark.parametrize(
    "done",
    [
        operation("free", None),
        operation("get_computed_blocks", None, request=None),
        operation("get_computed_blocks", None, outcome=FAILED),
    ],
)
def test_other_operations_and_errors_are_left_to_others(done: Any) -> None:
    hit_check([]).after_operation(runner_of(CONFIG), done)
    hit_check([]).after_step(runner_of(CONFIG))
