"""`kvspec check` with the static vectors: planted bugs, few failures, reports, going on later."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import pytest

import kvref
from kvcheck.discovery import find_implementation
from kvcheck.judge import report as reports
from kvcheck.judge.applying import verdicts
from kvcheck.judge.evidence import write_records
from kvcheck.judge.options import Budget, Options
from kvcheck.judge.outcome import Reached, Report
from kvcheck.judge.page import report_html
from kvcheck.judge.smaller_walk import smaller_walk
from kvcheck.judge.state import State
from kvcheck.judge.static import FAILURES_OF_A_SET, walk_violation
from kvcheck.judge.suite import Suite
from kvcheck.mistakes import find
from kvcheck.play.verdicts import Level
from kvcheck.records.trace import replay_trace
from kvspec._json import Where
from kvspec.interface import Implementation
from kvspec.policy import Policy
from tests.judge.minimal import minimal
from tests.mistakes import mistaken, of_kvfast
from tests.vectors.having import first_parting, walks

REFERENCE = kvref.implementation()
STATIC = Budget(0.0, 0, static=True, directed=False)

PLANTED: tuple[tuple[str, str, str], ...] = (
    ("TakesFromTheBack", "uncached", "KV-MGR-7"),
    ("UnhashedRunReversed", "uncached", "KV-POOL-6"),
    ("LeaksUnhashedBlocks", "uncached", "KV-POOL-6"),
    ("GivesABlockTwice", "uncached", "KV-POOL-6"),
    ("TouchLeavesTheBlockFree", "base", "KV-POOL-6"),
    ("KeepsKeysOfTakenBlocks", "base", "KV-POOL-13"),
    ("NewestDuplicateFirst", "base", "KV-POOL-13"),
    ("EvictingOneDuplicateForgetsAll", "base", "KV-POOL-13"),
    ("ResetsWhileInUse", "base", "KV-POOL-11"),
    ("SilentEviction", "base", "KV-EVT-1"),
    ("ReturnedOneByOne", "pool", "KV-POOL-6"),
    ("OneBlockMustStay", "uncached", "KV-MGR-7"),
    ("EvictsUpToTheWrongId", "pool", "KV-POOL-13"),
    ("TellsOfErrors", "pool", "KV-EVT-2"),
    ("LastTokenMayHit", "manager", "KV-MGR-1"),
    ("SkipsOneTokenMore", "window", "KV-POOL-6"),
    ("SkipsTheChunkItself", "chunked", "KV-COORD-9"),
    ("FullKeepsTheEagleBlock", "eagle", "KV-MGR-1"),
    ("LookaheadIsForgotten", "eagle", "KV-MGR-7"),
    ("LoadsAreCachedAtOnce", "external", "KV-POOL-13"),
    ("WatermarkForAll", "admission", "KV-MGR-7"),
    ("ReservedBlocksAreTaken", "admission", "KV-MGR-7"),
    ("FreeHitsCostNothing", "mamba", "KV-ERR-1"),
    ("LooksNoFurther", "unequal", "KV-MGR-1"),
    ("StatesOfGeneratedTokens", "mamba-retention", "KV-POOL-13"),
    ("WholeFitsWithoutWatermark", "gate", "KV-MGR-7"),
)


@pytest.mark.parametrize(
    ("broken", "name", "rule"), PLANTED, ids=[f"{each[0]}-{each[1]}" for each in PLANTED]
)
def test_a_planted_bug_is_caught_by_one_set_alone(broken: str, name: str, rule: str) -> None:
    parting = first_parting(name, mistaken(broken), Level.IDENTITY)
    assert parting is not None
    assert parting.violation.rule == rule
    assert parting.violation.walk is not None
    again = walk_violation(*parting.violation.walk, mistaken(broken), Level.IDENTITY)
    assert again == parting.violation


@pytest.mark.parametrize(
    ("broken", "name"),
    [(broken, name) for broken, name, _ in PLANTED if broken != "UnhashedRunReversed"][3:],
)
def test_at_behaviour_it_is_caught_by_its_effects(broken: str, name: str) -> None:
    """Another order of free blocks is none; everything else shows in answers and events."""
    assert first_parting(name, mistaken(broken), Level.BEHAVIOUR) is not None


def test_without_events_a_key_inside_a_block_that_stays_is_caught() -> None:
    """A mistake of kvfast that events hide: they take another way."""
    stays = find("FastPathKeepsPartialKeys", of_kvfast()).make()
    assert first_parting("no-events", stays, Level.IDENTITY) is not None
    assert first_parting("partial", stays, Level.IDENTITY) is None


def test_a_violation_is_made_small_and_still_the_same() -> None:
    """From the middle of a walk to the few calls that it takes, beside the oracle."""
    subject = mistaken("TouchLeavesTheBlockFree", audits=True)
    parting = first_parting("base", subject, Level.IDENTITY)
    assert parting is not None
    assert parting.num_operations > 50
    place = parting.violation.walk
    assert place is not None
    walk = walks("base")[place[1] - 1]
    small = smaller_walk(parting, walk, subject, REFERENCE, Level.IDENTITY, 60.0)
    assert len(small.operations) <= 8
    assert (small.rule, small.name) == (parting.violation.rule, parting.violation.name)
    assert smaller_walk(parting, walk, subject, REFERENCE, Level.IDENTITY, 0) == parting.violation


def checked(
    subject: Implementation,
    level: Level = Level.IDENTITY,
    *,
    rules: Sequence[str] = ("*",),
    policy: Policy | None = None,
    name: str = "kvref",
) -> tuple[Report, Suite]:
    """The static tier alone."""
    options = Options(level, STATIC, tuple(rules), policy=policy or Policy(), name=name)
    suite = Suite(subject, REFERENCE, options)
    return suite.run(), suite


@pytest.fixture(scope="module")
def broken() -> tuple[Report, Suite]:
    return checked(
        find_implementation("tests.mistakes:ResetsWhileInUse"),
        name="tests.mistakes:ResetsWhileInUse",
    )


def test_a_failing_subject_gets_few_failures(broken: tuple[Report, Suite]) -> None:
    report, _ = broken
    assert not report.conforms
    assert report.directed == report.random == 0
    assert 0 < len(report.violations) < 6
    assert report.static.sets == 21
    assert report.static.walks <= 21 * FAILURES_OF_A_SET + 58  # those that are followed whole
    assert verdicts(report)["KV-POOL-11"] == "broken"


def test_the_report_says_what_was_followed_and_where_it_ended(
    broken: tuple[Report, Suite],
) -> None:
    report, _ = broken
    lines = list(reports.text_lines(report))
    assert any(line.startswith("static vectors     21 sets, ") for line in lines)
    assert not any(line.startswith("never came up") for line in lines)
    assert "  shown by  static vectors 'base', walk 1" in lines
    assert '    assert walk_violation("base", 1, subject, level) is None' in "\n".join(lines)
    shown = json.loads(json.dumps(reports.to_json(report)))["static"]
    assert shown == report.static.to_json()
    assert f"{report.static.operations:,} recorded operations" in report_html(report)


def test_a_failure_becomes_a_record_that_fails_at_its_end(
    broken: tuple[Report, Suite], tmp_path: Path
) -> None:
    report, suite = broken
    written = write_records(report, suite.subject, REFERENCE, tmp_path)
    assert all(each.is_replayable for each in written)
    for each in written:
        assert each.path is not None
        assert replay_trace(each.path, REFERENCE).passed
        assert not replay_trace(each.path, suite.subject).passed


def test_the_test_to_paste_fails_as_long_as_the_bug_is_there(
    broken: tuple[Report, Suite],
) -> None:
    report, _ = broken
    test = reports.test_of(report.options, report.violations[0])
    names: dict[str, object] = {}
    exec(test, names)
    function = names["test_" + report.violations[0].rule.lower().replace("-", "_")]
    assert callable(function)
    with pytest.raises(AssertionError):
        function()


def test_a_run_that_goes_on_tries_a_broken_walk_again(broken: tuple[Report, Suite]) -> None:
    report, suite = broken
    saved: list[State] = []
    again = Suite(suite.subject, REFERENCE, suite.options, save=saved.append)
    state = suite.state
    kept = json.loads(json.dumps(suite.found.kept_in(state).to_json()))
    state = State.from_json(kept, Where("state.json"))
    assert state.walks
    second = again.run(state)
    assert [found.rule for found in second.violations] == [v.rule for v in report.violations]
    assert second.static == report.static
    mended = Suite(REFERENCE, REFERENCE, suite.options).run(state)
    assert mended.conforms


def test_what_a_subject_lacks_is_left_out_and_said() -> None:
    """One without snapshot, events, statistics and reset: the base set is too much for it."""
    report, suite = checked(minimal(), Level.BEHAVIOUR)
    assert report.static.sets == report.static.walks == 0
    assert report.static.left_out.keys() >= {"base", "mamba"}
    assert "reset" in report.static.left_out["base"]
    assert any("21 sets of static vectors" in line for line in reports.text_lines(report))
    assert "sets of static vectors need" in report_html(report)
    assert suite.static.about == set()


def test_answers_under_another_policy_are_no_fault() -> None:
    report, _ = checked(REFERENCE, policy=Policy(unhashed_freed_to="back"))
    assert report.static.walks == 0
    assert report.static.left_out["pool"] == ("records with unhashed_freed_to='back'",)


def test_level_safety_has_no_vectors_and_rules_choose_sets() -> None:
    report, _ = checked(REFERENCE, Level.SAFETY)
    assert report.static.walks == 0
    heard: list[Reached] = []
    options = Options(Level.IDENTITY, STATIC, ("KV-PART-*",))
    chosen = Suite(REFERENCE, REFERENCE, options, heard.append).run()
    assert chosen.static.sets == 2  # partial, no-events
    assert {reached.phase for reached in heard} == {"static"}
    assert heard[0].note.startswith("partial, walk 1 of ")
    assert set(verdicts(chosen).values()) == {"unbroken"}
