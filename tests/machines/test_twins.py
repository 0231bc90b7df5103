"""kvref and kvfast driven by one machine: both builds, single calls and whole steps."""

from __future__ import annotations

from functools import partial

import pytest
from hypothesis import HealthCheck, settings
from hypothesis.stateful import RuleBasedStateMachine, run_state_machine_as_test

import kvref
from kvcheck.play.illegal_operations import ILLEGAL_OPERATIONS
from kvcheck.play.performing import perform
from kvcheck.play.runner import Runner
from kvcheck.play.steps import Admit, Arrive, Break, Program
from kvspec.errors import InvariantViolation, SpoiltError
from kvspec.interface import Implementation
from tests.lockstep.test_lockstep import fast
from tests.machines.machine import inside, planted, production, small, twin_machine
from tests.mistakes import POOLS, mistaken, of_kvfast
from tests.programs import SCENARIOS, configure, full

__all__ = ["fast"]  # the fixture

REFERENCE = kvref.implementation()
DEEP = 30
"""So many times as many examples with `--deep`."""


def machines(
    subject: Implementation, *, is_quick: bool = True
) -> dict[str, tuple[type[RuleBasedStateMachine], int]]:
    """Each machine, and how many examples of it each commit has; `is_quick`: of few blocks."""

    large = partial(production, is_quick=is_quick)
    return {
        "calls": (twin_machine(subject, REFERENCE, small), 50),
        "audited calls": (twin_machine(subject, REFERENCE, small, audit=True), 20),
        "calls inside blocks": (twin_machine(subject, REFERENCE, inside), 20),
        "calls at production sizes": (twin_machine(subject, REFERENCE, large), 4),
    }


NAMES = tuple(machines(REFERENCE))


def run(subject: Implementation, name: str, factor: int = 1) -> None:
    machine, max_examples = machines(subject, is_quick=factor < DEEP)[name]
    run_state_machine_as_test(
        machine,
        settings=settings(
            max_examples=factor * max_examples,
            stateful_step_count=30,
            deadline=None,
            suppress_health_check=list(HealthCheck),
        ),
    )


@pytest.mark.parametrize("name", NAMES)
def test_the_twins_give_the_same_answers(fast: Implementation, name: str) -> None:
    run(fast, name)


@pytest.mark.deep
@pytest.mark.parametrize("name", NAMES)
def test_the_twins_give_the_same_answers_in_long_runs(fast: Implementation, name: str) -> None:
    run(fast, name, DEEP)


def is_caught(subject: Implementation, name: str, max_examples: int) -> bool:
    """Whether a machine fails; the bug is known, so that nothing is made smaller."""
    plain = planted(max_examples)
    try:
        run_state_machine_as_test(machines(subject, is_quick=False)[name][0], settings=plain)
    except (InvariantViolation, SpoiltError):
        return True
    return False


# These show within seconds of a processor, not tenths.
SLOWER = ("EvictionFreesTheBlock", "FreesWhatOthersStillHold", "TouchLeavesTheBlockFree")
CAUGHT_SOON = [pytest.param(pool, marks=[pytest.mark.deep] * (pool in SLOWER)) for pool in POOLS]


@pytest.mark.parametrize("pool", CAUGHT_SOON)
def test_single_calls_catch_a_broken_pool(pool: str) -> None:
    assert is_caught(mistaken(pool), "calls", 500)


@pytest.mark.parametrize(
    "mistake",
    ["GivenHashesAreTurned", "HoldsOfTheSameBlockAreOne",
     "HeldBlocksStayInTheQueue", "RestoresInOrder"],
)  # fmt: skip
def test_single_calls_catch_mistakes_of_what_an_engine_keeps_and_copies(
    mistake: str,
) -> None:
    assert is_caught(mistaken(mistake), "calls", 300)


@pytest.mark.parametrize("mistake", ["LeavesOutTheRest"])
def test_whole_steps_catch_a_broken_table(mistake: str) -> None:
    assert is_caught(mistaken(mistake), "calls", 100)


CAUGHT = ("HitsEndAt64", "RegistersOneRunOnly", "LaterRunsTrustTheirSlots")
"""A few of kvfast's mistakes at its sizes."""


@pytest.mark.deep
@pytest.mark.parametrize("mistake", CAUGHT)
def test_production_sizes_catch_a_mistake_that_short_texts_never_meet(mistake: str) -> None:
    subject = next(each for each in of_kvfast() if each.id == mistake).make()
    assert is_caught(subject, "calls at production sizes", 100)
    assert not is_caught(subject, "calls", 20)


@pytest.mark.parametrize(
    ("mistake", "name", "found"),
    [
        ("EvictsUpToTheWrongId", "evict outside the pool", "errors_change_nothing"),
        ("SkipsFromZero", "skip below zero", "illegal_calls_raise"),
        ("FailsItsAudit", "skip below zero", "audited"),
    ],
)
def test_an_illegal_call_that_does_something_is_seen(mistake: str, name: str, found: str) -> None:
    call = [illegal.name for illegal in ILLEGAL_OPERATIONS].index(name)
    steps = (Arrive((1, 2, 3, 4, 5)), Admit(), Break(call=call))
    with pytest.raises(InvariantViolation) as caught:
        perform(Runner(Program(configure(8, full()), steps), mistaken(mistake)), steps)
    assert caught.value.invariant == found


def test_each_illegal_call_has_a_story_of_its_own() -> None:
    names = [illegal.name for illegal in ILLEGAL_OPERATIONS]
    assert len(set(names)) == len(names)
    calls = {
        step.call for program in SCENARIOS for step in program.steps if isinstance(step, Break)
    }
    assert calls == set(range(len(names)))
