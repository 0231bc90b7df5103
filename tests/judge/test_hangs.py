"""An implementation that never answers: a verdict, soon, and no hang of ours."""

from __future__ import annotations

import signal
import sys
import time
from collections.abc import Sequence

import pytest

import kvref
from kvcheck.judge.options import BUDGETS, Options
from kvcheck.judge.report import text_lines
from kvcheck.judge.suite import Suite
from kvcheck.play import watchdog
from kvcheck.play.verdicts import Level, first_violation
from kvref.block_pool import BlockPool
from kvref.implementation import ReferenceImplementation
from tests.programs import SCENARIOS

pytestmark = pytest.mark.skipif(
    sys.platform == "win32", reason="no timer of the system interrupts Python there"
)


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
