"""A run of the suite can be stopped and gone on with, and is the same as one that was not."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Any

import pytest

import kvref
from kvcheck.judge import suite as suites
from kvcheck.judge.applying import rule_outcomes
from kvcheck.judge.options import Budget, Options
from kvcheck.judge.outcome import Reached, Report
from kvcheck.judge.parts import Answer, answer
from kvcheck.judge.report import text_lines
from kvcheck.judge.state import State, decode_program, encode_program
from kvcheck.judge.suite import Suite
from kvcheck.play.steps import Program
from kvcheck.play.verdicts import Level, Violation
from kvcheck.play.watchdog import OutOfPatienceError
from kvref.block_pool import BlockPool
from kvref.implementation import ReferenceImplementation
from kvspec._json import Where
from kvspec.errors import FormatError
from kvspec.interface import Implementation
from tests.mistakes import mistaken
from tests.programs import SCENARIOS

REFERENCE = kvref.implementation()
WHERE = Where("state.json")
OPTIONS = Options(Level.BEHAVIOUR, Budget(60.0, 10, 0.2), rules=("KV-POOL-1*",))


class Leaks(BlockPool):
    """Released blocks never come back."""

    def release(self, blocks: Iterable[int]) -> None:
        for block in blocks:
            if block:
                self.ref_counts[block] -= 1


class Stop:
    """Interrupts as soon as so many batches of random programs were begun."""

    def __init__(self, batches: int) -> None:
        self.batches = batches

    def programs(self, seed: int, batch: int, max_steps: int) -> list[Program]:
        """In place of `random_programs`: a few of the directed ones, turned by the batch."""
        if batch >= self.batches:
            raise KeyboardInterrupt
        return [SCENARIOS[(3 * batch + number) % len(SCENARIOS)] for number in range(3)]


def stopped_after(
    batches: int,
    state: State | None,
    monkeypatch: pytest.MonkeyPatch,
    subject: ReferenceImplementation | None = None,
) -> tuple[Report, State]:
    monkeypatch.setattr(suites, "random_programs", Stop(batches).programs)
    saved: list[State] = []
    run = Suite(subject or ReferenceImplementation(), REFERENCE, OPTIONS, save=saved.append)
    report = run.run(state)
    return report, State.from_json(json.loads(json.dumps(saved[-1].to_json())), WHERE)


def first_of(suite: Suite) -> Violation:
    answers = (answer(suite.sides, program) for program in SCENARIOS)
    return next(each.violation for each in answers if each.violation is not None)


@pytest.mark.parametrize("subject", [ReferenceImplementation(), ReferenceImplementation(Leaks)])
def test_two_halves_are_one_run(
    subject: ReferenceImplementation, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole, _ = stopped_after(4, None, monkeypatch, subject)
    _, state = stopped_after(2, None, monkeypatch, subject)
    assert state.batch == 2
    second, end = stopped_after(4, state, monkeypatch, subject)
    assert end.batch == 4
    assert (second.directed, second.random) == (whole.directed, whole.random)
    assert second.situations == whole.situations
    assert rule_outcomes(second) == rule_outcomes(whole)


@pytest.mark.parametrize(
    ("subject", "oracle", "rules"),
    [
        (REFERENCE, REFERENCE, set()),
        (mistaken("AnswersDifferentlyTheSecondTime"), None, {"KV-PLAN-19"}),
        (mistaken("RoundsTheNumberOfBlocksUp"), REFERENCE, {"KV-PLAN-12"}),
    ],
)
def test_random_models_are_planned_for_beside_each_batch(
    subject: Implementation,
    oracle: Implementation | None,
    rules: set[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(suites, "random_programs", Stop(1).programs)
    options = Options(Level.BEHAVIOUR, Budget(60.0, 10, 0.0, directed=False), ("KV-PLAN-*",))
    report = Suite(subject, oracle, options).run()
    assert {violation.rule for violation in report.violations} == rules
    assert report.random == 2 * suites.PLANS + 3  # the second batch is begun, too


def test_an_example_that_showed_something_is_tried_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(suites, "random_programs", Stop(0).programs)
    subject = mistaken("AnswersDifferentlyTheSecondTime")
    options = Options(Level.SAFETY, Budget(60.0, 10, 0.1), ("KV-PLAN-19",))
    saved: list[State] = []
    broken = Suite(subject, None, options, save=saved.append).run()
    assert [v.is_example for v in broken.violations] == [True]
    assert saved[-1].examples == (broken.violations[0].program.name,)
    assert Suite(subject, None, options).run(saved[-1]).violations == broken.violations
    assert Suite(REFERENCE, None, options).run(saved[-1]).violations == ()


def test_what_was_mended_in_between_is_not_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    broken, state = stopped_after(1, None, monkeypatch, ReferenceImplementation(Leaks))
    assert broken.violations
    assert state.programs
    mended, _ = stopped_after(2, state, monkeypatch)
    assert mended.violations == ()


def test_a_run_stopped_in_its_directed_programs_begins_anew() -> None:
    def stop(reached: Reached) -> None:
        raise KeyboardInterrupt

    saved: list[State] = []
    report = Suite(REFERENCE, REFERENCE, OPTIONS, stop, saved.append).run()
    assert report.interrupted
    assert saved == []


def test_an_interrupted_report_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    report, _ = stopped_after(1, None, monkeypatch)
    assert report.interrupted
    assert any(line.startswith("interrupted ") for line in text_lines(report))


@pytest.mark.parametrize("program", SCENARIOS, ids=lambda program: str(program.name))
def test_a_program_comes_back_from_json(program: Program) -> None:
    assert decode_program(json.loads(json.dumps(encode_program(program))), WHERE) == program


@pytest.mark.parametrize(
    "alter",
    [
        lambda value: value.pop("batch"),
        lambda value: value.update(version=2),
        lambda value: value.update(format="other"),
        lambda value: value.update(more=1),
        lambda value: value["programs"].append({"name": "x"}),
        lambda value: value["programs"].append(with_step({"step": "Dance"})),
        lambda value: value["programs"].append(with_step({"step": "Admit", "whom": 1})),
    ],
)
def test_a_malformed_state_is_refused(alter: Callable[[dict[str, Any]], object]) -> None:
    value = State(run={}).to_json()
    alter(value)
    with pytest.raises(FormatError, match=r"state\.json"):
        State.from_json(value, WHERE)


def with_step(step: dict[str, Any]) -> dict[str, Any]:
    return {**encode_program(SCENARIOS[0]), "steps": [step]}


def test_a_run_that_goes_on_first_tries_again_what_was_broken(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A fault that the oracle shows is compared with it again."""
    subject = mistaken("HashedBlocksToTheFront")
    options = replace(OPTIONS, level=Level.IDENTITY, rules=("KV-POOL-6",))
    monkeypatch.setattr(suites, "random_programs", Stop(1).programs)
    saved: list[State] = []
    first = Suite(subject, REFERENCE, options, save=saved.append).run()
    assert "KV-POOL-6" in {violation.rule for violation in first.violations}
    heard: list[Reached] = []
    again = Suite(subject, REFERENCE, options, heard.append)
    assert again.run(saved[-1]).violations == first.violations
    assert heard[0] == Reached("trying again", None, "what was broken before")


@pytest.mark.parametrize(
    ("spent", "is_violation", "lost"), [(1.9, True, 0.0), (2.1, True, 2.1), (2.1, False, 0.0)]
)
def test_seconds_are_lost_by_failures_that_take_long(
    spent: float, is_violation: bool, lost: float
) -> None:
    suite = Suite(ReferenceImplementation(Leaks), REFERENCE, OPTIONS)
    suite._note_answer(Answer(first_of(suite) if is_violation else None, seconds=spent))
    assert suite.lost_seconds == pytest.approx(lost)
    assert suite.is_slow is (lost > 0)
    suite.lost_seconds = 59.9
    suite._tell("directed", None, "still")
    suite.lost_seconds = 60.0
    with pytest.raises(OutOfPatienceError):
        suite._tell("directed", None, "no more")
