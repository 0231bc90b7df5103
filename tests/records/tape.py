"""A record of a small pool, in memory."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

from kvcheck.discovery import find_implementation
from kvcheck.play.recorder import Recorder
from kvspec.record import Header, Operation
from kvspec.record_file import read_trace


@dataclass(frozen=True)
class Tape:
    header: Header
    operations: tuple[Operation, ...]

    @classmethod
    def read(cls, path: Path) -> Tape:
        lines = list(read_trace(path))
        header = lines[0]
        assert isinstance(header, Header)
        return cls(header, tuple(line for line in lines if isinstance(line, Operation)))

    def altered(self, index: int, change: Callable[[Operation], Operation]) -> Tape:
        operations = list(self.operations)
        operations[index] = change(operations[index])
        return replace(self, operations=tuple(operations))


def made_again(path: Path) -> Recorder:
    tape = Tape.read(path)
    again = Recorder(
        find_implementation("kvref"),
        tape.header.config,
        scenario=tape.header.scenario,
        seed=tape.header.seed,
    )
    for operation in tape.operations:
        again.play(operation.name, operation.request_id, **operation.arguments)
    return again


def assert_is_made_again(path: Path) -> None:
    """Make the record again, and compare all but the version that made it."""
    again, tape = made_again(path), Tape.read(path)
    assert replace(again.header, source="") == replace(tape.header, source="")
    assert again.operations == [replace(operation, line=0) for operation in tape.operations]
