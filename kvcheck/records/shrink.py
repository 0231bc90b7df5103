"""Making a record that fails smaller: fewer calls and requests, shorter prompts, plainer tokens.

Every candidate is performed on an oracle, which gives the expectations, and replayed on the
subject. It is kept if the subject fails it at its last operation in the same way.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from kvcheck.play.compare import Mismatch
from kvcheck.play.shrink import smallest
from kvcheck.play.text import shown
from kvcheck.records.script import Script, perform, script_of
from kvcheck.records.smaller import smaller
from kvcheck.records.trace import replay_trace
from kvspec.errors import InvalidArgumentError, KVSpecError
from kvspec.interface import Implementation
from kvspec.policy import Policy
from kvspec.record import START_VERSION, Finding, Header, Operation
from kvspec.record_file import read_whole_trace, write_trace


class NotFailingError(KVSpecError):
    """The subject follows the record, so there is nothing to shrink."""


@dataclass(frozen=True)
class Kind:
    """The identity of a failure: the call, and the first field that differs."""

    call: str
    field: str

    @classmethod
    def of(cls, mismatch: Mismatch) -> Kind:
        return cls(mismatch.call, mismatch.differences[0].field)


@dataclass(frozen=True)
class Shrunk:
    """The smallest script found, and the one that it began with. `tried`: candidates looked at."""

    before: Script
    after: Script
    kind: Kind
    header: Header
    operations: tuple[Operation, ...]
    tried: int

    def write(self, path: Path) -> None:
        coverage: Mapping[str, int] = {"shrunk_from_operations": len(self.before.calls)}
        write_trace(path, self.header, self.operations, coverage)


class Shrinker:
    """Shrinks one record for a subject and an oracle. `progress` is called with each smaller
    script.
    """

    def __init__(
        self,
        path: Path,
        subject: Implementation,
        oracle: Implementation,
        *,
        policy: Policy | None = None,
        progress: Callable[[Script, int], None] = lambda script, tried: None,
    ) -> None:
        self.path = path
        self.subject = subject
        self.oracle = oracle
        self.policy = policy
        self.progress = progress
        self.tried = 0
        self.strict = True
        self.mismatch: Mismatch | None = None

    def run(self, seconds: float) -> Shrunk:
        """Return the smallest record found in this time.

        Raises NotFailingError if the subject passes the record, InvalidArgumentError if the record
        cannot be shrunk: it starts from a state, or the oracle does not agree with it.
        """
        header, operations = self._read()
        played = replay_trace(self.path, self.subject, policy=self.policy)
        name, mismatch = self.subject.capabilities.name, played.mismatch
        if played.lacks:
            lacks = ", ".join(played.lacks)
            raise NotFailingError(f"{self.path}: left out, {name} does not support {lacks}")
        if mismatch is None:
            raise NotFailingError(f"{self.path}: {name} follows this record; nothing to shrink")
        kind = Kind.of(mismatch)
        # Operation 0 is on line 2; without operations the manager itself is wrong.
        last = max(mismatch.line - 1, 0)
        before = script_of(header.config, operations[:last])
        finding = operations[last - 1].finding if last else None
        with tempfile.TemporaryDirectory() as folder:
            scratch = Path(folder) / "candidate.jsonl"
            self.strict = perform(before, self.oracle) is not None
            if not self._fails(before, kind, scratch):
                raise InvalidArgumentError(
                    "oracle",
                    self.oracle.capabilities.name,
                    f"one that follows {self.path} up to the operation at which"
                    f" {self.subject.capabilities.name} fails it; name another",
                )

            def tried(script: Script) -> Script | None:
                if not self._fails(script, kind, scratch):
                    return None
                self.progress(script, self.tried)
                return script

            after = smallest(before, smaller, tried, seconds=seconds)
            self._fails(after, kind, scratch)
            shrunk_header, shrunk_operations = read_whole_trace(scratch)
        if shrunk_operations and finding is not None:
            marked = replace(shrunk_operations[-1], finding=self._finding(finding.rule))
            shrunk_operations = (*shrunk_operations[:-1], marked)
        version = START_VERSION if finding is not None else shrunk_header.version
        result = replace(shrunk_header, version=version, scenario=header.scenario, seed=header.seed)
        return Shrunk(before, after, kind, result, shrunk_operations, self.tried)

    def _read(self) -> tuple[Header, tuple[Operation, ...]]:
        header, operations = read_whole_trace(self.path, policy=self.policy)
        if header.start is not None or header.initial is None:
            allowed = "one that begins with a new manager and shows its state"
            raise InvalidArgumentError("record", str(self.path), allowed)
        return header, operations

    def _fails(self, script: Script, kind: Kind, scratch: Path) -> bool:
        """Return whether the subject fails at the end as it failed the whole; writes the record."""
        self.tried += 1
        try:
            recorder = perform(script, self.oracle, strict=self.strict)
        except KVSpecError:  # a configuration that no manager serves
            return False
        if recorder is None:
            return False
        recorder.write(scratch)
        self.mismatch = replay_trace(scratch, self.subject, policy=self.policy).mismatch
        if self.mismatch is None or self.mismatch.line != len(script.calls) + 1:
            return False
        return Kind.of(self.mismatch) == kind

    def _finding(self, rule: str) -> Finding:
        """Return the difference at the end of the shrunk record, which broke the same rule."""
        difference = self.mismatch.differences[0] if self.mismatch is not None else None
        if difference is None:
            return Finding(rule, "", "")
        said = f"{difference.field}: {shown(difference.expected)}"
        return Finding(rule, said, shown(difference.got))
