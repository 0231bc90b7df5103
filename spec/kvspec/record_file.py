"""Record files: read line by line, refused where malformed, written all or nothing."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

from kvspec.codec import under_policy
from kvspec.errors import InvalidArgumentError
from kvspec.files.jsonlines import object_writer, read_objects
from kvspec.files.objects import Where
from kvspec.later_trace import LaterTrace, later_trace
from kvspec.operations import OPERATIONS
from kvspec.policy import Policy
from kvspec.record import (
    LATER_VERSION,
    NEWEST_VERSION,
    PLANNING_FORMAT,
    START_VERSION,
    TRACE_FORMAT,
    VERSION,
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

MOST_BYTES = 2**26
"""A record that is kept in memory as a whole is not longer than this, uncompressed."""


def read_header(path: Path) -> Header | PlanningHeader:
    """Read only the first line, which is enough to identify a file."""
    lines = read_objects(path)
    try:
        for where, value in lines:
            return decode_header(later_trace(value)[0], where)
    finally:
        lines.close()
    raise Where(str(path)).error("empty; the first line must be a header")


def read_whole_trace(
    path: Path, *, policy: Policy | None = None
) -> tuple[Header, tuple[Operation, ...]]:
    """Read the header and every operation of a trace that fits in memory."""
    header, *rest = read_trace(path, policy=policy, most_bytes=MOST_BYTES)
    if not isinstance(header, Header):
        raise TypeError("read_trace yields the header first")
    return header, tuple(line for line in rest if isinstance(line, Operation))


def read_trace(
    path: Path, *, policy: Policy | None = None, most_bytes: int | None = None
) -> Iterator[Header | Operation | Footer]:
    """Yield the header, every operation, and the footer, each checked when it is reached.

    `policy` applies to a trace that names none; None: the profile `vllm-0.24`. `most_bytes`: limit
    on all lines together, for a caller that keeps them.
    """
    lines = read_objects(path, most_bytes=most_bytes)
    header: Header | None = None
    later: LaterTrace | None = None
    operations = 0
    for where, value in lines:
        if header is None:
            value, later = later_trace(value)
            header = _trace_header(under_policy(value, policy), where)
            if later is not None:
                header = replace(header, needs=later.needs)
            if header.initial is not None:
                number = header.config.kv_cache.num_blocks
                check_lengths(header.initial, number, where.member("initial"))
            continuity = _Continuity(header)
            yield header
        elif isinstance(value, dict) and value.get("type") == "footer":
            yield decode_footer(value, where, operations)
            for beyond, _ in lines:
                raise beyond.error("a line after the footer")
            return
        else:
            value, needs = (value, ()) if later is None else later.line(value)
            if value is None:
                operations += 1
                continue
            operation = decode_operation(value, where, header, operations)
            operation = replace(operation, needs=needs) if needs else operation
            continuity.check(operation, where)
            operations += 1
            yield operation
    if header is None:
        raise Where(str(path)).error("empty; the first line must be a header")
    raise Where(str(path)).error(f"cut off: no footer after {operations} operations")


def read_planning(path: Path) -> Iterator[PlanningHeader | PlanningRecord]:
    """Yield the header and every record of a planning file."""
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
    """Write a record; the file appears only when all of it is written. Returns its footer.

    The header's version is raised to the first that has all that the record uses.
    """
    operations = tuple(operations)
    version = max([header.version, *(_needed_version(header, each) for each in operations)])
    if header.version < version == LATER_VERSION and header.initial is not None:
        version = NEWEST_VERSION  # the state was taken without the fields of the other
    with trace_writer(path, replace(header, version=version), coverage) as add:
        for operation in operations:
            add(operation)
    return Footer(len(operations), coverage)


@contextmanager
def trace_writer(
    path: Path, header: Header, coverage: Mapping[str, int] | None = None
) -> Iterator[Callable[[Operation], None]]:
    """Write a record operation by operation: a long one need not fit into memory.

    The file appears, with its footer, when the `with` block ends, and never if it ends with an
    error. `coverage` None: how often each operation was written. To add an operation that only a
    later version than the header's can hold raises InvalidArgumentError.
    """
    header = replace(header, version=max(header.version, _needed_version(header)))
    written: Counter[str] = Counter()
    with object_writer(path) as write:
        write(encode_header(header))

        def add(operation: Operation) -> None:
            needed = _needed_version(header, operation)
            if needed > header.version:
                allowed = f"an operation of version {header.version}, not of {needed}"
                raise InvalidArgumentError("operation", operation.name, allowed)
            write(encode_operation(operation))
            written[f"op:{operation.name}"] += 1

        yield add
        shown = dict(sorted(written.items()) if coverage is None else coverage)
        write({"type": "footer", "num_ops": written.total(), "coverage": shown})


def _needed_version(header: Header, operation: Operation | None = None) -> int:
    """Return the first version that can express this."""
    since = VERSION if operation is None else OPERATIONS[operation.name].since
    is_uncompared = operation is not None and len(operation.uncompared) > 0
    if header.is_stateless or header.start is not None or is_uncompared:
        return max(START_VERSION, since)
    return since


class _Continuity:
    """Checks each line against the lines before it."""

    def __init__(self, header: Header) -> None:
        self._last: dict[str, Any] = {"dup_order": {}}
        if header.initial is not None:
            self._last.update(header.initial.state)
            self._last["dup_order"] = header.initial.dup_order or {}
        self._requests: set[str] = set()
        self._num_blocks = header.config.kv_cache.num_blocks

    def check(self, operation: Operation, where: Where) -> None:
        """Refuse an operation on a request that wasn't made, and a change that is none."""
        name = operation.request_id
        if operation.name == "new_request" and name is not None:
            if operation.raises is None:
                self._requests.add(name)
        elif name is not None and name not in self._requests:
            raise where.member("req").error(f"no new_request made {name!r} before")
        observed = operation.observed
        check_lengths(observed, self._num_blocks, where)
        changed = {f"state.{field}": (field, value) for field, value in observed.state.items()}
        if observed.dup_order is not None:
            changed["dup_order"] = ("dup_order", observed.dup_order)
        for member, (field, value) in changed.items():
            if self._last[field] == value:
                raise where.member(member).error("unchanged; only changed fields are listed")
            self._last[field] = value


def check_lengths(observed: Observed, num_blocks: int, where: Where) -> None:
    """Refuse a list of a state that has not one element for each block."""
    for name in ("ref_cnt", "block_hash", "hash_tokens"):
        values = observed.state.get(name)
        if values is not None and len(values) != num_blocks:
            at = where.member(f"state.{name}")
            raise at.error(f"{len(values)} elements; must be one for each of {num_blocks} blocks")


def _trace_header(value: object, where: Where) -> Header:
    """Decode the header of a trace; that of a planning file is refused."""
    header = decode_header(value, where)
    if not isinstance(header, Header):
        raise where.member("format").error(f"not {TRACE_FORMAT!r}")
    return header
