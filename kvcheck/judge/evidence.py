"""A violation as a record: for `kvspec golden`, `kvspec view` and `kvspec shrink`.

The record holds the oracle's results of the operations that led to the violation, so that the
oracle passes it and the subject fails it at the last operation. Below level identity the subject
may differ from the oracle long before, in block ids; then the record holds what the subject did.
Either way the last operation carries the finding.
"""

from __future__ import annotations

import tempfile
from dataclasses import dataclass
from pathlib import Path

from kvcheck.judge.outcome import Report
from kvcheck.judge.report import said
from kvcheck.play.recorder import write_finding
from kvcheck.play.verdicts import Violation
from kvcheck.records.trace import replay_trace
from kvspec.errors import FormatError, KVSpecError
from kvspec.interface import Feature, Implementation
from kvspec.operations import OPERATIONS
from kvspec.record import Finding


@dataclass(frozen=True)
class Written:
    """The record of a violation, or the reason why there is none.

    `is_replayable`: the subject fails the record at its last operation, and the oracle passes.
    """

    violation: Violation
    path: Path | None = None
    is_replayable: bool = False
    reason: str = ""


def write_records(
    report: Report, subject: Implementation, oracle: Implementation | None, folder: Path
) -> tuple[Written, ...]:
    """Write one record per violation, named by its rule: KV-POOL-6.jsonl, KV-POOL-6-2.jsonl, …"""
    folder.mkdir(parents=True, exist_ok=True)
    taken: dict[str, int] = {}
    written = []
    for violation in report.violations:
        number = taken[violation.rule] = taken.get(violation.rule, 0) + 1
        name = violation.rule if number == 1 else f"{violation.rule}-{number}"
        path = folder / f"{name}.jsonl"
        written.append(write_record(violation, subject, oracle, path))
    return tuple(written)


def write_record(
    violation: Violation, subject: Implementation, oracle: Implementation | None, path: Path
) -> Written:
    if not violation.operations:
        return Written(violation, reason="it is not shown by operations")
    with tempfile.TemporaryDirectory() as folder:
        expected, observed = Path(folder) / "expected.jsonl", Path(folder) / "observed.jsonl"
        reasons = []
        if oracle is not None:
            reasons.append(_record(violation, oracle, expected))
            if expected.exists() and _fails_at_the_end(expected, subject):
                path.write_bytes(expected.read_bytes())
                return Written(violation, path, is_replayable=True)
        if Feature.SNAPSHOT in subject.capabilities.features:
            reasons.append(_record(violation, subject, observed))
        for found in (observed, expected):
            if found.exists():
                path.write_bytes(found.read_bytes())
                return Written(violation, path)
    return Written(violation, reason=next(filter(None, reasons), "the subject shows no state"))


def _record(violation: Violation, implementation: Implementation, path: Path) -> str:
    """Record what the implementation does; return why that is impossible, or an empty string."""
    for name, *_ in violation.operations:
        if name not in OPERATIONS:
            return f"records cannot hold it ({name})"
    operations = list(violation.operations)
    if violation.rule.startswith("KV-EVT-"):
        operations.append(("take_events", None, {}))
    finding = Finding(violation.rule, *said(violation))
    try:
        write_finding(path, implementation, violation.program.config, operations, finding)
    except FormatError as error:
        path.unlink(missing_ok=True)
        return f"records cannot hold it ({error})"
    except (Exception, SystemExit) as error:  # a subject may raise anything
        path.unlink(missing_ok=True)
        return f"{implementation.capabilities.name} cannot be recorded: {error}"
    return ""


def _fails_at_the_end(path: Path, subject: Implementation) -> bool:
    """Check that the subject follows the record up to a difference at its last operation."""
    try:
        result = replay_trace(path, subject)
    except (KVSpecError, SystemExit):  # a subject may quit
        return False
    lines = path.read_bytes().count(b"\n")
    # Line 1 is the header, the last line the footer, the lines between are operations.
    return result.mismatch is not None and result.mismatch.line == lines - 1
