"""Record files: read line by line, refused where they are malformed, written all or nothing."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from kvspec._json import Where
from kvspec._jsonlines import read_objects, write_objects
from kvspec.record import (
    PLANNING_FORMAT,
    TRACE_FORMAT,
    Footer,
    Header,
    Observed,
    Operation,
    PlanningHeader,
    PlanningRecord,
)
from kvspec.record_lines import (
    decode_footer,
    decode_header,
    decode_operation,
    decode_planning_record,
    encode_header,
    encode_operation,
)


def read_header(path: Path) -> Header | PlanningHeader:
    """The first line only: enough to tell what a file is."""
    lines = read_objects(path)
    try:
        for where, value in lines:
            return decode_header(value, where)
    finally:
        lines.close()
    raise Where(str(path)).error("empty; the first line must be a header")


def read_trace(path: Path) -> Iterator[Header | Operation | Footer]:
    """The header, every operation, and the footer, each checked when its turn comes."""
    lines = read_objects(path)
    header: Header | None = None
    changes = _Changes()
    operations = 0
    for where, value in lines:
        if header is None:
            header = _trace_header(value, where)
            changes.start(header)
            yield header
        elif isinstance(value, dict) and value.get("type") == "footer":
            yield decode_footer(value, where, operations)
            for beyond, _ in lines:
                raise beyond.error("a line after the footer")
            return
        else:
            operation = decode_operation(value, where, header, operations)
            changes.check(operation.observed, where)
            operations += 1
            yield operation
    if header is None:
        raise Where(str(path)).error("empty; the first line must be a header")
    raise Where(str(path)).error(f"cut off: no footer after {operations} operations")


def read_planning(path: Path) -> Iterator[PlanningHeader | PlanningRecord]:
    """The header and every record of a planning file."""
    header: PlanningHeader | None = None
    for where, value in read_objects(path):
        if header is None:
            decoded = decode_header(value, where)
            if not isinstance(decoded, PlanningHeader):
                raise where.member("format").error(f"not {PLANNING_FORMAT!r}")
            header = decoded
            yield header
        else:
            yield decode_planning_record(value, where)
    if header is None:
        raise Where(str(path)).error("empty; the first line must be a header")


def write_trace(
    path: Path, header: Header, operations: Iterable[Operation], coverage: Mapping[str, int]
) -> Footer:
    """Write a record; the file appears only when all of it is written. Returns its footer."""
    written = 0

    def lines() -> Iterator[Any]:
        nonlocal written
        yield encode_header(header)
        for operation in operations:
            yield encode_operation(operation)
            written += 1
        yield {"type": "footer", "num_ops": written, "coverage": dict(coverage)}

    write_objects(path, lines())
    return Footer(written, coverage)


class _Changes:
    """Refuses a record that lists a state field whose value is the one before."""

    def __init__(self) -> None:
        self._last: dict[str, Any] = {}

    def start(self, header: Header) -> None:
        if header.initial is not None:
            self._last = {**header.initial.state, "dup_order": {}}

    def check(self, observed: Observed, where: Where) -> None:
        changed = {f"state.{name}": (name, value) for name, value in observed.state.items()}
        if observed.dup_order is not None:
            changed["dup_order"] = ("dup_order", observed.dup_order)
        for member, (name, value) in changed.items():
            if self._last[name] == value:
                raise where.member(member).error("unchanged; only changed fields are listed")
            self._last[name] = value


def _trace_header(value: object, where: Where) -> Header:
    """The header of a trace; the header of a planning file is refused."""
    header = decode_header(value, where)
    if not isinstance(header, Header):
        raise where.member("format").error(f"not {TRACE_FORMAT!r}")
    return header
