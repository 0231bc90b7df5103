"""Rules that are blamed, every way in which one is broken, and the records that show it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, cast

import pytest

import kvref
from kvcheck.discovery import find_implementation
from kvcheck.judge import suite
from kvcheck.judge.applying import rule_outcomes
from kvcheck.judge.blame import Evidence, Suspect, blamed, suspects
from kvcheck.judge.causes import MOST_WAYS, smallest_first, ways_told
from kvcheck.judge.evidence import write_record, write_records
from kvcheck.judge.expected import findings
from kvcheck.judge.faults import candidates, known_of, likenesses
from kvcheck.judge.ledger import Ledger
from kvcheck.judge.options import BUDGETS, Budget, Options
from kvcheck.judge.outcome import Report, Verdict
from kvcheck.judge.report import text_lines
from kvcheck.judge.suite import Suite
from kvcheck.mistakes import find, installed
from kvcheck.mistakes.twin import twin
from kvcheck.play.fit import random_program
from kvcheck.play.left_out import LeftOut
from kvcheck.play.steps import Program
from kvcheck.play.verdicts import Level, Violation, first_violation
from kvcheck.records.trace import replay_trace
from kvcheck.rules.example import NOTHING
from kvcheck.tools.view import load
from kvref.block_pool import BlockPool
from kvref.implementation import ReferenceImplementation
from kvspec.interface import Implementation
from kvspec.policy import Policy
from kvspec.record import Operation
from kvspec.record_file import read_trace
from tests.device.mistakes import planted
from tests.mistakes import POOLS, mistaken
from tests.programs import SCENARIOS
from tests.stand_ins import LeaksTheFirst, minimal

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
    assert {found[rule] for rule in report.in_doubt & set(found)} <= {
        Verdict.BROKEN,
        Verdict.IN_DOUBT,
    }
    assert found[report.violations[0].rule] == Verdict.BROKEN
    assert Verdict.UNBROKEN in found.values()


def test_a_known_mistake_is_recognized_and_its_rule_leads(report: Report) -> None:
    first = report.violations[0]
    assert first.rule == report.suspects[0].rule == "KV-SW-1"
    assert first.like == "The window holds a token more than it has. (SkipsOneTokenLess)"
    assert any("just as   the reference with this mistake" in line for line in text_lines(report))


def test_a_mistake_that_behaves_otherwise_is_not_named(report: Report) -> None:
    options, oracle = report.options, find_implementation("kvref")
    mine, other = find("SkipsOneTokenLess"), find("HandsOutBackwards")
    ranked = [Suspect(each.rules[0], 1.0, 1, 0) for each in (mine, other)]
    found = likenesses(report.violations, ranked, [other, mine], oracle, options)
    assert [each.mistake.id for each in found] == [mine.id]


def test_mistakes_of_what_is_suspected_most_are_tried_first() -> None:
    ranked = [Suspect("KV-SW-2", 1.0, 1, 0), Suspect("KV-SW-1", 0.5, 1, 1)]
    order = ["KV-SW-2", "KV-SW-1", KIND[0]]
    tried = candidates(known_of("kvref"), ranked, [violation(KIND)])
    places = [min(order.index(r) for r in each.rules if r in order) for each in tried]
    assert places == sorted(places)
    assert set(places) == {0, 1, 2}


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


REFERENCE = kvref.implementation()
QUEUE = "KV-POOL-6"
RULES = (QUEUE, "KV-POOL-11")


@pytest.fixture(scope="module")
def queues() -> tuple[Report, Suite]:
    """Two mistakes: the queue is in a wrong order after a release, and after a reset."""
    names = ("UnhashedRunReversed", "ResetSortsTheQueue")
    made = [cast("partial[Implementation]", find(name).make) for name in names]
    subject = twin("kvref", [change for one in made for change in one.args[1]])
    suite = Suite(
        subject, REFERENCE, Options(Level.IDENTITY, Budget(0.0, 40, 2.0).counted(150), RULES)
    )
    return suite.run(), suite


def test_each_way_has_its_own_story_the_smallest_first(queues: tuple[Report, Suite]) -> None:
    report, suite = queues
    found = {each.place: each for each in report.violations}
    assert "KV-POOL-11" in {each.rule for each in report.violations}
    rule = found["free_queue after free"].rule
    assert found["free_queue after free_blocks"].rule == rule
    sizes = [len(each.operations) for each in report.violations if each.rule == rule]
    assert len(sizes) <= MOST_WAYS
    assert sizes == sorted(sizes)
    assert max(sizes) <= 6
    for each in report.violations:
        if not each.is_example:
            again = first_violation(each.program, suite.subject, Level.IDENTITY, REFERENCE)
            assert again is not None
            assert again.place == each.place


def test_a_file_of_known_differences_has_a_cause_once(queues: tuple[Report, Suite]) -> None:
    report, suite = queues
    assert [each.cause for each in findings(report)] == list(
        dict.fromkeys(each.cause for each in report.violations)
    )
    assert len(findings(report)) == len(suite.found.violations) < len(report.violations)


def test_a_refusal_hides_no_crash_of_the_same_call() -> None:
    options = Options(Level.SAFETY, Budget(0.0, 20, 5.0).counted(60))
    suite = Suite(minimal(), None, options)
    with find("Refuses", planted(Path(__file__).with_name("sharing.diff"))).make():
        report = suite.run()
    ended = ("KV-ERR-1", "legal_calls_succeed")
    assert ended in suite.found.violations
    told = {each.place for each in report.violations if each.kind == ended}
    begin = "legal_calls_succeed allocate_slots"
    assert {f"{begin} KeyError", f"{begin} UnsupportedError"} <= told


def way(number: int, rule: str = QUEUE, cause: str = "a") -> Violation:
    told = Violation(rule, "name", "", SCENARIOS[0], (("free", "r0", {}),) * number, f"{number}")
    return replace(told, observed="0", cause=cause, place=f"{number}")


def test_few_ways_of_a_rule_are_told_and_every_cause() -> None:
    causes = [way(number, cause=f"{number}") for number in (5, 4)]
    told, more = ways_told(causes, [way(3), way(2)], [way(1), way(1, "KV-POOL-11")])
    assert [len(each.operations) for each in told] == [3, 4, 5]
    assert more == {QUEUE: 2, "KV-POOL-11": 1}
    causes = [way(number, cause=f"{number}") for number in (5, 4, 3, 2)]
    told, more = ways_told(causes, [way(1)], [])
    assert (len(told), more) == (4, {QUEUE: 1})


def test_rules_keep_their_order_and_a_story_is_told_once() -> None:
    found = smallest_first([way(3, "KV-POOL-9"), way(2), way(1, "KV-POOL-9"), way(2)])
    assert [(each.rule, len(each.operations)) for each in found] == [
        ("KV-POOL-9", 1), ("KV-POOL-9", 3), (QUEUE, 2),
    ]  # fmt: skip


def found(subject: Implementation, level: Level) -> Iterator[Violation]:
    can, policy = subject.capabilities, Policy()
    for program in SCENARIOS:
        fitting = random_program(program, can, policy, hashes_matter=False, oracle=None)
        violation = None if fitting is None else first_violation(fitting, subject, level, REFERENCE)
        if violation is not None:
            yield violation


def test_a_rule_is_looked_at_by_what_came_to_its_end() -> None:
    ledger = Ledger()
    ledger.note("came to its end", ("KV-POOL-1",), None)
    ledger.note("found something", ("KV-POOL-2",), next(found(mistaken(POOLS[0]), Level.BEHAVIOUR)))
    assert ledger.about == {"KV-POOL-1"}
    assert [one.check for one in ledger.evidence] == ["came to its end", "found something"]


def test_what_is_left_out_is_listed_with_each_reason() -> None:
    ledger = Ledger()
    ledger.leave_out("a check", LeftOut("one feature, another"))
    assert ledger.left_out == {"a check": ("one feature", "another")}


def operations(path: Path) -> list[Operation]:
    return [line for line in read_trace(path) if isinstance(line, Operation)]


@pytest.mark.parametrize("broken", POOLS)
def test_the_oracle_passes_and_the_subject_fails_at_the_end(broken: str, tmp_path: Path) -> None:
    subject = mistaken(broken, audits=True)
    violation = next(found(subject, Level.IDENTITY))
    record = write_record(violation, subject, REFERENCE, tmp_path / "record.jsonl")
    assert record.is_replayable
    assert record.path is not None
    last = operations(record.path)[-1]
    assert last.finding is not None
    assert last.finding.rule == violation.rule
    assert replay_trace(record.path, REFERENCE).passed
    mismatch = replay_trace(record.path, subject).mismatch
    assert mismatch is not None
    assert mismatch.line == last.line


def test_records_are_named_by_their_rules(tmp_path: Path) -> None:
    subject = mistaken("TakesFromTheBack", audits=True)
    violation = next(found(subject, Level.IDENTITY))
    options = Options(Level.IDENTITY, Budget(0.0, 0))
    report = Report("kvref", options, (violation, violation), 1, 0, {}, Counter(), 0.0)
    write_records(report, subject, REFERENCE, tmp_path / "new" / "folder")
    names = sorted(path.name for path in (tmp_path / "new" / "folder").iterdir())
    assert names == [f"{violation.rule}-2.jsonl", f"{violation.rule}.jsonl"]


class TakesFromTheBackAndLeaks(BlockPool):
    """Other block ids than the reference from the first block on, which is safe; and a leak."""

    def allocate(self, n: int) -> list[int]:
        self.free_queue.reverse()
        taken = super().allocate(n)
        self.free_queue.reverse()
        return taken

    def release(self, blocks: Any) -> None:
        super().release(list(blocks)[1:])


def test_at_safety_the_record_holds_what_the_subject_did(tmp_path: Path) -> None:
    subject = ReferenceImplementation(TakesFromTheBackAndLeaks)
    violation = next(found(subject, Level.SAFETY))
    record = write_record(violation, subject, REFERENCE, tmp_path / "record.jsonl")
    assert record.path is not None
    assert not record.is_replayable
    recording = load(record.path)
    assert recording.violation is not None
    assert recording.violation.rule == violation.rule
    assert recording.violation.operation == len(operations(record.path)) - 1


def test_a_subject_that_shows_no_state_gets_what_the_oracle_answers(tmp_path: Path) -> None:
    subject = minimal(LeaksTheFirst)
    violation = next(found(subject, Level.SAFETY))
    record = write_record(violation, subject, REFERENCE, tmp_path / "record.jsonl")
    assert record.path is not None
    assert operations(record.path)[-1].finding is not None
    assert replay_trace(record.path, REFERENCE).passed


def test_what_records_cannot_hold_is_said(tmp_path: Path) -> None:
    asked: dict[str, Any] = {"prompt_token_ids": [1], "prompt_embeddings": [7]}
    config = SCENARIOS[0].config
    violation = Violation(
        "KV-HASH-9", "name", "detail", Program(config, ()), (("new_request", "r0", asked),)
    )
    written = write_record(violation, REFERENCE, REFERENCE, tmp_path / "x.jsonl")
    assert written.path is None
    assert "prompt_embeddings" in written.reason


def test_a_violation_without_operations_has_no_record(tmp_path: Path) -> None:
    violation = Violation("KV-HASH-1", "name", "detail", Program(SCENARIOS[0].config, ()), ())
    written = write_record(violation, REFERENCE, REFERENCE, tmp_path / "x.jsonl")
    assert (written.path, written.reason) == (None, "it is not shown by operations")
