"""A violation becomes a record that the oracle passes and the subject fails where it was found."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import kvref
from examples.own_manager.final import MyManager
from kvcheck.judge.evidence import write_record, write_records
from kvcheck.judge.ledger import Ledger
from kvcheck.judge.options import Budget, Options
from kvcheck.judge.outcome import Report
from kvcheck.play.fit import random_program
from kvcheck.play.left_out import LeftOut
from kvcheck.play.steps import Program
from kvcheck.play.verdicts import Level, Violation, first_violation
from kvcheck.records.trace import replay_trace
from kvcheck.tools.view import load
from kvref.block_pool import BlockPool
from kvref.implementation import ReferenceImplementation
from kvspec.interface import Implementation
from kvspec.policy import Policy
from kvspec.record import Operation
from kvspec.record_file import read_trace
from tests.judge.minimal import minimal
from tests.mistakes import POOLS, mistaken
from tests.programs import SCENARIOS

REFERENCE = kvref.implementation()


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
    class Leaks(MyManager):
        def free(self, request: Any) -> None:
            self.tables.get(request.request_id, [])[:1] = []
            super().free(request)

    subject = minimal(Leaks)
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
