"""Who is blamed: the rule whose checks fail, not the call that shows it."""

from __future__ import annotations

import pytest

from kvcheck.discovery import find_implementation
from kvcheck.judge import suite
from kvcheck.judge.applying import rule_outcomes
from kvcheck.judge.blame import Evidence, Neighbour, blamed, suspects
from kvcheck.judge.faults import known_of, likenesses
from kvcheck.judge.ledger import Ledger
from kvcheck.judge.options import BUDGETS, Options
from kvcheck.judge.outcome import BROKEN, IN_DOUBT, UNBROKEN, Report
from kvcheck.judge.report import text_lines
from kvcheck.judge.suite import Suite
from kvcheck.mistakes import find, installed
from kvcheck.play.steps import Program
from kvcheck.play.verdicts import Level, Violation
from kvcheck.rules.example import NOTHING

DIRECTED = dict(BUDGETS)["directed"]
KIND = ("KV-POOL-6", "answers_as_the_reference")
OTHER = ("KV-MGR-7", "answers_as_the_reference")
EVIDENCE = (
    Evidence("a window frees early", ("KV-SW-1", "KV-GRP-2"), KIND),
    Evidence("another window", ("KV-SW-1",), KIND),
    Evidence("a group removes", ("KV-GRP-2",)),
    Evidence("a pool releases", ("KV-POOL-6",)),
)


def violation(kind: tuple[str, str]) -> Violation:
    return Violation(kind[0], kind[1], "", Program(NOTHING, ()), ())


def test_the_rule_whose_checks_fail_is_more_suspicious_than_one_whose_checks_pass_too() -> None:
    """All checks of KV-SW-1 fail, and none passes: 1. Of KV-GRP-2 one fails, one passes."""
    first, second, *_ = suspects(EVIDENCE)
    assert (first.rule, first.suspicion, first.num_failed, first.num_passed) == ("KV-SW-1", 1, 2, 0)
    assert (second.rule, second.suspicion) == ("KV-GRP-2", 0.5)


def test_a_violation_stands_under_the_rule_of_its_checks_and_not_of_its_call() -> None:
    found = blamed([violation(OTHER), violation(KIND)], EVIDENCE, suspects(EVIDENCE))
    assert [each.rule for each in found] == ["KV-SW-1", "KV-MGR-7"]


def test_a_rule_with_a_failed_check_is_in_doubt() -> None:
    assert Ledger(evidence=[*EVIDENCE]).in_doubt == {"KV-SW-1", "KV-GRP-2"}


@pytest.fixture(scope="module")
def report() -> Report:
    """Of a manager whose windows reach one token too far back."""
    options = Options(Level.IDENTITY, DIRECTED, ("KV-SW-*",))
    subject = find_implementation("tests.mistakes:SkipsOneTokenLess")
    return Suite(subject, find_implementation("kvref"), options).run()


def test_no_rule_is_unbroken_whose_check_failed(report: Report) -> None:
    found = {rule: each.verdict for rule, each in rule_outcomes(report).items()}
    assert {found[rule] for rule in report.in_doubt & set(found)} <= {BROKEN, IN_DOUBT}
    assert found[report.violations[0].rule] == BROKEN
    assert UNBROKEN in found.values()


def test_a_known_mistake_is_recognized_and_its_rule_leads(report: Report) -> None:
    first = report.violations[0]
    assert first.rule == report.suspects[0].rule == "KV-SW-1"
    assert first.like == "The window holds a token more than it has. (SkipsOneTokenLess)"
    assert any("just as   the reference with this mistake" in line for line in text_lines(report))


def test_a_mistake_that_behaves_otherwise_is_not_named(report: Report) -> None:
    options, oracle = report.options, find_implementation("kvref")
    other = find("HandsOutBackwards")
    near = [Neighbour(other.id, other.rules, 1.0)]
    assert not likenesses(report.violations, near, [other], oracle, options)


def test_ctrl_c_while_mistakes_are_looked_up_keeps_the_report(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(suite, "likenesses", interrupted)
    options = Options(Level.IDENTITY, DIRECTED, ("KV-SW-1",))
    subject = find_implementation("mistake:SkipsOneTokenLess")
    found = Suite(subject, find_implementation("kvref"), options).run()
    assert found.interrupted
    assert found.violations
    assert not any(violation.like for violation in found.violations)


def test_the_dictionary_has_mistakes_of_the_oracle_alone() -> None:
    assert {mistake.origin for mistake in known_of("kvref")} == {"kvref"}
    assert "kvfast" in {mistake.origin for mistake in installed()}
    assert not known_of("cmd:./server")


@pytest.mark.parametrize("level", [Level.BEHAVIOUR, Level.IDENTITY])
def test_a_story_is_played_again_at_the_level_of_the_run(level: Level) -> None:
    options = Options(level, DIRECTED, ("KV-FULL-2",))
    subject = find_implementation("mistake:FullPassesOverGaps")
    found = Suite(subject, find_implementation("kvref"), options).run()
    examples = [violation for violation in found.violations if violation.is_example]
    assert examples
    assert all("FullPassesOverGaps" in violation.like for violation in examples)
