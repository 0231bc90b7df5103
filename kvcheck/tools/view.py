"""Prepare a record for drawing: `kvspec view`.

Records of small pools contain their states, as changes that are folded. Those of large pools have
only hashes, so an implementation must play the operations and show its states.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from kvcheck.play.compare import Mismatch
from kvcheck.records.trace import TraceResult, replay_trace
from kvcheck.view.model import Frame, Frames, Recording, Violation, life_of_requests
from kvspec.interface import Implementation
from kvspec.policy import Policy
from kvspec.record import Header, Operation
from kvspec.record_file import read_header, read_whole_trace

MAX_CELLS = 4_000_000
"""Blocks × frames that one page holds; what is beyond is left out, and the page says so."""


LEFT_OUT = (
    "Some operations were recorded without the state after them; the last one known is shown."
    " --impl shows the states of an implementation instead."
)


class NotShownError(Exception):
    """Why this record can't be shown, in one line that says what to do."""


def load(
    path: Path,
    implementation: Implementation | None = None,
    *,
    first_operation: int = 0,
    max_cells: int = MAX_CELLS,
    policy: Policy | None = None,
) -> Recording:
    """Read a record and, with an implementation, replay it.

    `policy` applies to a record that names none; None: the profile `vllm-0.24`. The frames begin
    with the new manager, or with `first_operation` if that is not the first. Raises FormatError for
    a malformed file, NotShownError for a record with nothing to show.
    """
    header = _header(path, implementation)
    num_blocks = header.config.kv_cache.num_blocks
    operations = _operations(path, first_operation)
    # Where the record omits states, an implementation supplies them.
    leaves_out = any("state" in operation.uncompared for operation in operations)
    is_told = implementation is not None and (leaves_out or not header.is_small)
    frames, others = (Frames(max(2, max_cells // num_blocks), first_operation) for _ in range(2))
    violation = result = None
    if implementation is not None:
        watch = frames.watch if is_told else others.watch
        result = replay_trace(path, implementation, policy=policy, watch=watch)
        if result.lacks:
            name, lacks = implementation.capabilities.name, ", ".join(result.lacks)
            raise NotShownError(f"{result.path}: {name} does not support {lacks}")
        if (differs := result.mismatch) is not None:  # line 1 is the header, operation 0 on line 2
            violation = Violation(differs.line - 2, differs.render())
        frames.notes += _notes_on_quirks(result)
    if not is_told:
        if leaves_out:
            frames.notes.append(LEFT_OUT)
        frames.fold(header, operations, violation)
    violation = violation or _finding(operations[: frames.count - 1])
    if not frames.count:
        reason = violation.text if violation is not None else "the implementation shows none"
        raise NotShownError(f"{path}: no state to show: {reason}")
    if frames.count < len(operations) + 1:
        why = "it differs." if violation is not None else "later states are not known."
        frames.notes.append(
            f"This page ends with operation {frames.count - 2} of {len(operations)}: {why}"
        )
    chosen = frames.chosen(at_end=violation is not None)
    if not chosen:
        unknown = f"no state is known from operation {first_operation} on"
        raise NotShownError(f"{path}: {unknown}; choose one up to {frames.count - 2}")
    return Recording(
        path=path,
        header=header,
        frames=chosen,
        lives=life_of_requests(operations),
        num_operations=len(operations),
        replayed_on=None if implementation is None else implementation.capabilities.name,
        violation=violation,
        notes=tuple(frames.notes),
        other=_other(others, result),
    )


def _operations(path: Path, first: int) -> list[Operation]:
    """Return all operations of a record, which must include `first`."""
    operations = list(read_whole_trace(path)[1])
    if first and first >= len(operations):
        raise NotShownError(
            f"{path}: no operation {first}; there are {len(operations)}, counted from 0"
        )
    return operations


def _notes_on_quirks(result: TraceResult) -> list[str]:
    """Say where the comparison ended early."""
    if not result.quirks:
        return []
    return [
        f"Operation {result.compared} is marked as a quirk of the recorded engine"
        f" ({', '.join(result.quirks)}); from there on nothing was compared."
    ]


def _header(path: Path, implementation: Implementation | None) -> Header:
    header = read_header(path)
    if not isinstance(header, Header):
        raise NotShownError(f"{path}: a planning file; only traces can be shown")
    if header.raises is not None:
        raise NotShownError(
            f"{path}: building this manager must fail with {header.raises}, so there are no"
            " operations to show; check it with kvspec golden"
        )
    if header.is_stateless:
        raise NotShownError(f"{path}: the manager that was recorded showed no state")
    if not header.is_small and implementation is None:
        raise NotShownError(
            f"{path}: a pool of {header.config.kv_cache.num_blocks} blocks, of which a record"
            " holds only hashes; name an implementation to replay it on, such as --impl kvref"
        )
    return header


def _other(others: Frames, result: TraceResult | None) -> tuple[Frame, ...]:
    """Return the implementation's frames, if it differs from the record."""
    if result is None or result.mismatch is None or not others.count:
        return ()
    frames = others.chosen(at_end=True)
    return (*frames[:-1], _as_answered(frames[-1], result.mismatch)) if frames else ()


def _as_answered(frame: Frame, mismatch: Mismatch) -> Frame:
    """Return the last frame with the implementation's own result, if that is what differs."""
    for difference in mismatch.differences:
        if difference.field == "result" and frame.operation is not None:
            return replace(frame, operation=replace(frame.operation, result=difference.got))
    return frame


def _finding(operations: list[Operation]) -> Violation | None:
    for operation in reversed(operations):
        if (found := operation.finding) is not None:
            text = f"expected {found.expected}\nobserved {found.observed}"
            return Violation(operation.index, text, found.rule)
    return None
