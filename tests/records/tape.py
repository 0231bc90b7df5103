"""A record of a small pool, in memory."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

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
