"""The reports and progress of a run of the suite, and its calls of others: to the word."""

from __future__ import annotations

import itertools
import signal
import time
from collections.abc import Sequence
from dataclasses import replace

import pytest

import kvref
from kvcheck.judge import suite as suites
from kvcheck.judge.options import BUDGETS, ENDLESS, Budget, Options
from kvcheck.judge.outcome import Reached
from kvcheck.judge.parts import Answer, answer
from kvcheck.judge.report import text_lines
from kvcheck.judge.suite import UNSEEN, Suite
from kvcheck.play import watchdog
from kvcheck.play.steps import Program
from kvcheck.play.verdicts import PROTOCOL, Level, Violation, first_violation
from kvcheck.play.watchdog import OutOfPatienceError
from kvcheck.rules.directed import EXAMPLES
from kvref.block_pool import BlockPool
from kvref.implementation import ReferenceImplementation
from kvspec.errors import UnsupportedError
from kvspec.interface import Implementation
from tests.mistakes import mistaken
from tests.programs import SCENARIOS
from tests.stand_ins import minimal

REFERENCE = kvref.implementation()
RULE = "KV-POOL-11"
NO_TIME = Budget(0.0, 7)
ASKED = Options(Level.BEHAVIOUR, NO_TIME, (RULE,), seed=3, name="mine")
PROGRAM = SCENARIOS[0]
VIOLATION = Violation(RULE, "a_check", "wrong", PROGRAM, (("free", "r0", {}),), place="free")


def test_what_nobody_sees_without_a_snapshot_is_said() -> None:
    report = Suite(minimal(), None, replace(ASKED, level=Level.SAFETY)).run()
    assert report.unseen == UNSEEN
    assert report.left_out.keys() <= {each.name for each in EXAMPLES}
    assert report.left_out
    with pytest.raises(UnsupportedError) as caught:
        Suite(minimal(), None, replace(ASKED, level=Level.IDENTITY)).run()
    name = minimal().capabilities.name
    assert (caught.value.capability, caught.value.implementation) == (
        "snapshot, which level identity compares (use --level behaviour or safety)",
        name,
    )


def test_each_check_is_told_before_it_is_made_with_the_share_that_is_done(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    ticks = itertools.count()
    monkeypatch.setattr("kvcheck.judge.suite.time.monotonic", lambda: next(ticks) / 1000)
    heard: list[Reached] = []
    options = replace(ASKED, rules=("KV-STAT-4", RULE), budget=Budget(0.03, 7))
    suite = Suite(REFERENCE, REFERENCE, options, heard.append)
    suite.run()
    wanted = set(options.rules)
    chosen = [e for e in EXAMPLES if wanted & set(e.rules) and e.binds_at(Level.BEHAVIOUR)]
    expected = [
        Reached("examples", number / len(chosen), ", ".join(each.rules))
        for number, each in enumerate(chosen)
    ]
    assert heard[: len(expected)] == expected
    assert expected[-1].phase == "examples"
    random = heard[len(expected) :]
    assert random[0].note == "0 programs, 0 rules broken"
    shares = [each.share or 0.0 for each in random]
    assert shares == sorted(shares)
    assert 0.0 <= shares[0] < shares[-1] < 1.0
    assert {each.phase for each in random} == {"random"}


def test_a_run_without_an_end_knows_no_share() -> None:
    heard: list[Reached] = []

    def stop(reached: Reached) -> None:
        heard.append(reached)
        raise KeyboardInterrupt

    options = replace(ASKED, budget=Budget(ENDLESS, 7, directed=False))
    suite = Suite(REFERENCE, REFERENCE, options, stop)
    suite.found.violations[RULE, "a_check"] = VIOLATION
    suite.num_random = 1234
    report = suite.run()
    assert heard == [Reached("random", None, "1,234 programs, 1 rules broken")]
    assert (report.interrupted, report.gave_up) == (True, False)
    assert any(line.startswith("interrupted ") for line in text_lines(report))


@pytest.mark.parametrize(
    ("rules", "asked", "is_wanted"),
    [
        (("KV-MGR-*",), ("KV-MGR-1",), True),
        (("KV-MGR-*",), ("KV-POL-1",), False),
        (("KV-MGR-1", "KV-POL-?"), ("KV-EVT-1", "KV-POL-2"), True),
        (("KV-MGR-1",), ("kv-mgr-1",), False),
        (("KV-MGR-1",), (), True),
        (("KV-MGR-1",), (PROTOCOL,), True),
        ((), ("KV-MGR-1",), False),
    ],
)
def test_rules_are_wanted_by_their_patterns(
    rules: tuple[str, ...], asked: tuple[str, ...], is_wanted: bool
) -> None:
    assert Suite(REFERENCE, None, replace(ASKED, rules=rules))._is_wanted(asked) is is_wanted


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
    def few(seed: int, batch: int, max_steps: int) -> list[Program]:
        if batch:
            raise KeyboardInterrupt
        return list(SCENARIOS[:3])

    monkeypatch.setattr(suites, "random_programs", few)
    options = Options(Level.BEHAVIOUR, Budget(60.0, 10, 0.0, directed=False), ("KV-PLAN-*",))
    report = Suite(subject, oracle, options).run()
    assert {violation.rule for violation in report.violations} == rules
    assert report.random == 2 * suites.PLANS + 3  # the second batch is begun, too


@pytest.mark.parametrize(
    ("spent", "is_violation", "lost"), [(1.9, True, 0.0), (2.1, True, 2.1), (2.1, False, 0.0)]
)
def test_seconds_are_lost_by_failures_that_take_long(
    spent: float, is_violation: bool, lost: float
) -> None:
    suite = Suite(mistaken("HashedBlocksToTheFront"), REFERENCE, ASKED)
    answers = (answer(suite.sides, program) for program in SCENARIOS)
    first = next(each.violation for each in answers if each.violation is not None)
    suite._note_answer(Answer(first if is_violation else None, seconds=spent))
    assert suite.lost_seconds == pytest.approx(lost)
    assert suite.is_slow is (lost > 0)
    suite.lost_seconds = 59.9
    suite._tell("directed", None, "still")
    suite.lost_seconds = 60.0
    with pytest.raises(OutOfPatienceError):
        suite._tell("directed", None, "no more")


class NeverTouches(BlockPool):
    """Waits for ever when a hit is taken, and lets no Exception out."""

    def touch(self, blocks: Sequence[int]) -> None:
        while True:
            try:
                time.sleep(60)
            except Exception:
                continue


@pytest.fixture
def soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(watchdog, "PROGRAM_SECONDS", 0.2)
    monkeypatch.setattr(watchdog, "PATIENCE_SECONDS", 0.5)
    monkeypatch.setattr("kvcheck.judge.parts.SLOW_SECONDS", 0.1)


def test_a_program_that_hangs_is_a_violation(soon: None) -> None:
    (program,) = [p for p in SCENARIOS if p.name == "a freed prefix is revived"]
    violation = first_violation(program, ReferenceImplementation(NeverTouches), Level.SAFETY)
    assert violation is not None
    assert (violation.rule, violation.name) == ("KV-ERR-1", "calls_answer")
    assert "no answer within 0.2 s" in violation.observed
    assert violation.operations[-1][0] == "allocate_slots", "the call that hangs"


def test_the_suite_gives_up_and_says_so(soon: None) -> None:
    subject = ReferenceImplementation(NeverTouches)
    begin = time.monotonic()
    report = Suite(subject, None, Options(Level.SAFETY, dict(BUDGETS)["directed"])).run()
    assert time.monotonic() - begin < 20
    assert report.gave_up
    assert not report.conforms
    text = "\n".join(text_lines(report))
    assert "stopped early" in text
    assert "no answer within" in text


def test_whoever_answers_is_not_disturbed() -> None:
    handler = signal.getsignal(signal.SIGALRM)
    assert first_violation(SCENARIOS[0], kvref.implementation(), Level.SAFETY) is None
    assert signal.getitimer(signal.ITIMER_REAL)[0] == 0
    assert signal.getsignal(signal.SIGALRM) is handler


def test_a_timer_of_somebody_else_is_left_alone() -> None:
    signal.setitimer(signal.ITIMER_REAL, 1000)
    try:
        assert first_violation(SCENARIOS[0], kvref.implementation(), Level.SAFETY) is None
        assert signal.getitimer(signal.ITIMER_REAL)[0] > 900
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
