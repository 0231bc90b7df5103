"""The model of a drawing: frames, each an operation with the state after it."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from kvcheck.play.player import Player
from kvcheck.play.state import View, look
from kvcheck.view.marks import Lives, Marks, marks_of
from kvspec.config import ManagerConfig
from kvspec.interface import Implementation
from kvspec.record import STATE_FIELDS, Header, Observed, Operation


@dataclass(frozen=True)
class State:
    """The recorded state of a manager at one moment: the five state fields and the rest.

    Unchanged fields are the same objects as in the frame before.
    """

    fields: Mapping[str, Any]
    dup_order: Mapping[str, list[int]]
    num_free_blocks: int
    usage: float


@dataclass(frozen=True)
class Frame:
    """An operation (None: the new manager), the state after it, and what is worth a mark."""

    operation: Operation | None
    state: State
    marks: Marks = field(default_factory=Marks)


@dataclass(frozen=True)
class Violation:
    """The operation (-1: building the manager) at which an implementation and the record differ.

    `text` states the expected and the observed result. `rule`: it is a finding of the record
    itself, of a checker that found this rule broken.
    """

    operation: int
    text: str
    rule: str | None = None


@dataclass(frozen=True)
class Recording:
    """A record ready to be shown.

    `frames` are consecutive; `num_operations` counts the operations of the whole record. `other`:
    the frames of `replayed_on`, drawn below those of `reference`. `is_part`: of another page.
    """

    path: Path
    header: Header
    frames: tuple[Frame, ...]
    lives: Lives
    num_operations: int
    replayed_on: str | None = None
    violation: Violation | None = None
    notes: tuple[str, ...] = ()
    other: tuple[Frame, ...] = ()
    reference: str = "the record"
    is_part: bool = False


def played(
    implementation: Implementation,
    config: ManagerConfig,
    operations: Sequence[tuple[str, str | None, dict[str, Any]]],
) -> tuple[Header, tuple[Frame, ...]]:
    """Run operations on an implementation that shows its state; returns the frames.

    Exceptions of the implementation are passed on.
    """
    manager = implementation.create(config, check_invariants=False)
    player, frames = Player(implementation, manager), Frames(len(operations) + 1, 0)
    frames.watch(None, look(manager))
    for index, (name, request, arguments) in enumerate(operations):
        outcome = player.perform(name, request, arguments)
        error, view = outcome.error, look(manager)
        operation = Operation(
            index=index,
            name=name,
            request_id=request,
            arguments=arguments,
            observed=Observed(view.num_free_blocks, view.usage),
            result=outcome.result,
            raises=None if error is None else type(error).__name__,
            message=None if error is None else str(error),
        )
        frames.watch(operation, view)
    source = implementation.capabilities.name
    return Header(manager.config, manager.none_hash, None, source), frames.chosen(at_end=True)


class Frames:
    """Frames in order; from the first operation `limit` are kept, and the last `limit`."""

    def __init__(self, limit: int, first_operation: int) -> None:
        self._limit = limit
        self._skipped = 0 if first_operation == 0 else first_operation + 1
        self._first: list[Frame] = []
        self._last: deque[Frame] = deque(maxlen=limit)
        self.count = 0
        self.notes: list[str] = []

    def watch(self, operation: Operation | None, view: View) -> None:
        """Add a frame with the state that an implementation shows."""
        self._add(operation, view.state, view.dup_order, view.num_free_blocks, view.usage)

    def fold(
        self, header: Header, operations: list[Operation], violation: Violation | None
    ) -> None:
        """Add the frames of a record that shows its states as changes.

        Where not all of them fit, the frames end with the violation.
        """
        if violation is not None and len(operations) >= self._limit:
            operations = operations[: violation.operation + 1]
        fields: dict[str, Any] = {}
        order: Mapping[str, list[int]] = {}
        steps: list[tuple[Operation | None, Observed | None]] = [(None, header.initial)]
        for operation, seen in steps + [(each, each.observed) for each in operations]:
            if seen is None:
                raise TypeError("a header without an initial state has no operations")
            fields.update(seen.state)
            order = order if seen.dup_order is None else seen.dup_order
            self._add(operation, fields, order, seen.num_free_blocks, seen.usage)

    def chosen(self, *, at_end: bool) -> tuple[Frame, ...]:
        """Return the frames to show: all, or as many as fit, the last ones with `at_end`."""
        if self.count - self._skipped <= self._limit:
            return tuple(self._first)
        which = "last" if at_end else "first"
        self.notes.append(
            f"This page shows the {which} {self._limit} of {self.count - self._skipped} states:"
            " more would make it too large. --from shows others."
        )
        return tuple(self._last if at_end else self._first)

    def _add(
        self,
        operation: Operation | None,
        fields: Mapping[str, Any],
        order: Mapping[str, list[int]],
        num_free_blocks: int,
        usage: float,
    ) -> None:
        before = self._last[-1].state if self._last else None
        shared = {
            name: before.fields[name]
            if before is not None and before.fields[name] == fields[name]
            else fields[name]
            for name in STATE_FIELDS
        }
        marks = Marks()
        if operation is not None and before is not None:
            marks = marks_of(operation, before.fields["block_hash"], shared["block_hash"])
        frame = Frame(operation, State(shared, order, num_free_blocks, usage), marks)
        if self.count >= self._skipped and len(self._first) < self._limit:
            self._first.append(frame)
        self._last.append(frame)
        self.count += 1
