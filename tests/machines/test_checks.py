"""Each check of the state machines, alone, on a program that its broken manager fails."""

from __future__ import annotations

from collections.abc import Callable

import pytest

import kvref
from kvcheck.judge.accounts import AccountCheck
from kvcheck.judge.longest_hit import LongestHitCheck
from kvcheck.play.checks import EventCheck
from kvcheck.play.illegal_operations import ILLEGAL_OPERATIONS
from kvcheck.play.performing import perform
from kvcheck.play.runner import Check, Runner
from kvcheck.play.steps import (
    Admit,
    Arrive,
    Break,
    EvictIds,
    GiveUp,
    NewStep,
    Program,
    Release,
    Reset,
    ReturnPopped,
    Run,
    Step,
    Take,
)
from kvspec.errors import InvariantViolation
from kvspec.interface import Implementation
from tests.machines.test_mixed import enumerated_hit
from tests.mistakes import mistaken
from tests.programs import SCENARIOS, configure, full

A = (1, 2, 3, 4, 5)


def hit_check() -> LongestHitCheck:
    return LongestHitCheck(enumerated_hit, rule="KV-FULL-2")


MAKERS: dict[str, Callable[[], Check]] = {
    "accounts": AccountCheck,
    "hit": hit_check,
    "events": EventCheck,
}
ADMITTED = (Arrive(A), Admit())
AGAIN = (*ADMITTED, Release(), Arrive(A), Admit(), Take())
REFUSED = (*ADMITTED, Release(), Arrive((9,) * 20), Admit())


def run(implementation: Implementation, check: str, *steps: Step) -> None:
    """A program on 7 blocks of 2 tokens, and nothing but one check."""
    runner = Runner(Program(configure(8, full()), steps), implementation)
    runner.checks = [MAKERS[check]()]
    perform(runner, steps)


MANAGERS: list[tuple[str, str, str, tuple[Step, ...]]] = [
    ("accounts", "CountsOneBlockMore", "KV-POOL-15", ADMITTED),
    ("accounts", "NeverInUse", "KV-POOL-12", ADMITTED),
    ("accounts", "CountsLookUpsTwice", "KV-STAT-1", AGAIN),
    ("accounts", "SaysItReset", "KV-POOL-11", (*ADMITTED, Reset())),
    ("accounts", "KeepsKeysAtAReset", "KV-POOL-11", (*ADMITTED, Release(), Reset())),
    ("accounts", "RefusalEvicts", "KV-MGR-7", REFUSED),
    ("accounts", "FreesFirstToLast", "KV-POOL-7", (*ADMITTED, Release())),
    ("accounts", "PoppedBackwards", "KV-MGR-13", (*ADMITTED, Release(later=True))),
    ("accounts", "KeepsWhatFailed", "KV-POOL-10", (*ADMITTED, EvictIds((1, 0)))),
    ("hit", "HitsOneBlockLess", "KV-FULL-2", AGAIN),
    ("hit", "SaysOneTokenLess", "KV-MGR-1", AGAIN),
    ("events", "SilentlyCaching", "KV-EVT-7", ADMITTED),
]


@pytest.mark.parametrize(
    ("check", "mistake", "rule", "steps"), MANAGERS, ids=[case[1] for case in MANAGERS]
)
def test_a_check_sees_a_broken_manager(
    check: str, mistake: str, rule: str, steps: tuple[Step, ...]
) -> None:
    run(kvref.implementation(), check, *steps)
    with pytest.raises(InvariantViolation) as caught:
        run(mistaken(mistake), check, *steps)
    assert caught.value.rule == rule


def test_a_block_that_is_never_given_back_is_missed_at_the_end() -> None:
    """It is counted as in use, so only the idle pool shows it."""
    steps = (Arrive(A), GiveUp(), NewStep())
    run(kvref.implementation(), "accounts", *steps)
    with pytest.raises(InvariantViolation, match="free once idle"):
        run(mistaken("TakesABlockEachStep"), "accounts", *steps)


def test_a_deferred_free_is_one_release() -> None:
    """Two unhashed blocks: together they keep their order in front of the queue."""
    config = configure(8, full(), enable_caching=False)
    steps = (Arrive(A), Admit(), Release(later=True), ReturnPopped(9))
    runner = Runner(Program(config, steps), mistaken("ReturnedOneByOne"))
    runner.checks = [AccountCheck()]
    with pytest.raises(InvariantViolation) as caught:
        perform(runner, steps)
    assert caught.value.rule == "KV-POOL-6"


@pytest.mark.parametrize("mistake", ["ForgetsAHash", "HashesTheGrowthTwice"])
def test_hashes_are_counted(mistake: str) -> None:
    """Of the prompt, and of what grows."""
    with pytest.raises(InvariantViolation) as caught:
        run(mistaken(mistake), "accounts", *ADMITTED, Run(), Run())
    assert caught.value.rule == "KV-HASH-4"


def test_a_request_that_must_not_read_hits_nothing() -> None:
    steps = (*ADMITTED, Release(), Arrive(A, skip_reading=True), Admit(), Take())
    for check in ("hit", "accounts"):
        run(kvref.implementation(), check, *steps)


@pytest.mark.parametrize(
    ("mistake", "name", "found"),
    [
        ("EvictsUpToTheWrongId", "evict outside the pool", "errors_change_nothing"),
        ("SkipsFromZero", "skip below zero", "illegal_calls_raise"),
        ("FailsItsAudit", "skip below zero", "audited"),
    ],
)
def test_an_illegal_call_that_does_something_is_seen(mistake: str, name: str, found: str) -> None:
    """Also one that is half done; a broken invariant is no typed error."""
    call = [illegal.name for illegal in ILLEGAL_OPERATIONS].index(name)
    with pytest.raises(InvariantViolation) as caught:
        run(mistaken(mistake), "accounts", *ADMITTED, Break(call=call))
    assert caught.value.invariant == found


def test_each_illegal_call_has_a_story_of_its_own() -> None:
    """No two calls have one name, and none is left out."""
    names = [illegal.name for illegal in ILLEGAL_OPERATIONS]
    assert len(set(names)) == len(names)
    calls = {
        step.call for program in SCENARIOS for step in program.steps if isinstance(step, Break)
    }
    assert calls == set(range(len(names)))
