"""The reports and progress of a run of the suite, and its calls of others: to the word."""

from __future__ import annotations

import itertools
from dataclasses import replace
from typing import Any

import pytest

import kvref
from kvcheck.judge import suite as suites
from kvcheck.judge.coverage import exercised
from kvcheck.judge.faults import known_of
from kvcheck.judge.options import ENDLESS, Budget, Options
from kvcheck.judge.outcome import Reached, Report
from kvcheck.judge.outcomes import neighbours
from kvcheck.judge.state import State
from kvcheck.judge.suite import UNSEEN, Suite
from kvcheck.play.verdicts import PROTOCOL, Level, Violation
from kvcheck.play.watchdog import OutOfPatienceError
from kvcheck.rules.directed import EXAMPLES
from kvspec.errors import InvalidArgumentError, UnsupportedError
from tests.judge.minimal import minimal
from tests.mistakes import mistaken
from tests.programs import SCENARIOS

REFERENCE = kvref.implementation()
CAN = REFERENCE.capabilities
RULE = "KV-POOL-11"
NO_TIME = Budget(0.0, 7)
ASKED = Options(Level.BEHAVIOUR, NO_TIME, (RULE,), seed=3, name="mine")
CHOSEN = [example for example in EXAMPLES if RULE in example.rules]
PROGRAM = SCENARIOS[0]
VIOLATION = Violation(RULE, "a_check", "wrong", PROGRAM, (("free", "r0", {}),), place="free")


def test_every_member_of_a_report_is_what_the_run_found() -> None:
    suite = Suite(REFERENCE, REFERENCE, ASKED)
    report = suite.run(replace(suite.state, batch=4, directed=5, random=6, seconds=100.0))
    assert 100.0 <= report.seconds < 160.0
    assert report == Report(
        CAN.name, ASKED, (), 5, 6, {}, suite.situations, report.seconds,
        exercised=exercised((), ASKED.level, CAN), looked_at=frozenset({"directed"}),
        version=CAN.version,
    )  # fmt: skip
    fresh = Suite(REFERENCE, REFERENCE, ASKED)
    report = fresh.run()
    about = {rule for each in CHOSEN for rule in each.rules}
    assert report == Report(
        CAN.name, ASKED, (), len(fresh.found.evidence), 0, {}, fresh.situations, report.seconds,
        exercised=exercised(about, ASKED.level, CAN, by_programs=False),
        looked_at=frozenset({"directed"}), version=CAN.version,
    )  # fmt: skip
    assert 0.0 < report.seconds < 60.0
    every = [each for each in CHOSEN if each.binds_at(ASKED.level)]
    told = [(each.check, each.rules) for each in fresh.found.evidence]
    assert told == [(each.name, tuple(each.rules)) for each in every]


def test_a_report_of_a_broken_subject_says_which_rule_and_what_shows_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Known mistakes are looked up by what was found and by its evidence."""
    asked: list[Any] = []

    def likenesses(*given: Any) -> tuple[()]:
        asked.append(given)
        return ()

    monkeypatch.setattr(suites, "likenesses", likenesses)
    heard: list[Reached] = []
    options = replace(ASKED, budget=Budget(0.0, 7, 0.2))
    suite = Suite(mistaken("SaysItReset"), REFERENCE, options, heard.append)
    report = suite.run()
    evidence = suite.found.evidence
    among = known_of("kvref")
    assert asked == [(suite.found.listed, neighbours(evidence), among, REFERENCE, suite.options)]
    assert heard[-1] == Reached("looking up", None, "known mistakes that behave so")
    assert RULE in {violation.rule for violation in report.violations}
    assert {each.kind for each in evidence if each.kind} == set(suite.found.violations)
    assert report.suspects == suite.found.ranked
    assert report.in_doubt == suite.found.in_doubt
    assert RULE in report.in_doubt
    assert report.shown_by == suite.found.shown_by
    assert report.shown_by
    assert (report.interrupted, report.gave_up) == (False, False)


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

    saved: list[State] = []
    options = replace(ASKED, budget=Budget(ENDLESS, 7, directed=False))
    suite = Suite(REFERENCE, REFERENCE, options, stop, saved.append)
    suite.found.violations[RULE, "a_check"] = VIOLATION
    suite.num_random = 1234
    report = suite.run()
    assert heard == [Reached("random", None, "1,234 programs, 1 rules broken")]
    assert (report.interrupted, report.gave_up) == (True, False)
    assert [each.batch for each in saved] == [0, 0]
    assert [len(each.programs) for each in saved] == [1, 1]


def test_who_gives_up_says_so() -> None:
    def slow(reached: Reached) -> None:
        raise OutOfPatienceError

    report = Suite(REFERENCE, REFERENCE, ASKED, slow).run()
    assert (report.interrupted, report.gave_up) == (False, True)


def test_a_state_of_another_run_is_refused_with_what_differs() -> None:
    suite = Suite(REFERENCE, REFERENCE, ASKED)
    other = {**suite.state.run, "seed": 4}
    with pytest.raises(InvalidArgumentError) as caught:
        suite.run(State(other))
    assert (caught.value.field, caught.value.value) == ("resume", {"seed": 4})
    assert str(dict(suite.state.run)) in caught.value.allowed


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
    """Failures without a rule, and a silent server, are reported under every selection."""
    assert Suite(REFERENCE, None, replace(ASKED, rules=rules))._is_wanted(asked) is is_wanted
