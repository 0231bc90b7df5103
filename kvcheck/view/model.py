"""The model of a drawing: frames, each an operation with the state after it."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeAlias

from kvcheck.play.player import Player
from kvcheck.play.state import View, look
from kvspec.config import ManagerConfig
from kvspec.interface import Implementation
from kvspec.operations import LOOK_UPS
from kvspec.record import STATE_FIELDS, Header, Observed, Operation

WAITING, RUNNING, PREEMPTED, DONE = "waiting", "running", "preempted", "done"

Lives: TypeAlias = Mapping[str, Sequence[tuple[int, str]]]
"""Request → the operations at which its life turned, and to what, in order."""

_RELEASES = frozenset({"free", "pop_blocks_for_free"})


@dataclass(frozen=True)
class Marks:
    """The effects of an operation that its result and the states around it show.

    `hit`: blocks that a look-up found or an allocation took over. `evicted`: blocks that lost their
    key. `cached`: blocks that got a key. `refused`: why the call was refused.
    """

    refused: str | None = None
    hit: tuple[int, ...] = ()
    evicted: tuple[int, ...] = ()
    cached: tuple[int, ...] = ()


def marks_of(
    operation: Operation, keys_before: Sequence[str | None], keys_after: Sequence[str | None]
) -> Marks:
    """Return the marks of an operation between two states, given by the key of every block."""
    evicted, cached = [], []
    for block, (before, after) in enumerate(zip(keys_before, keys_after, strict=True)):
        if before == after:
            continue
        if before is not None:
            evicted.append(block)
        if after is not None:
            cached.append(block)
    return Marks(refusal(operation), tuple(_hits(operation)), tuple(evicted), tuple(cached))


def refusal(operation: Operation) -> str | None:
    """Return why the call was refused; None if it was not."""
    if operation.raises is not None:
        return f"refused with {operation.raises}: {operation.message or 'no message recorded'}"
    if operation.name == "allocate_slots" and operation.result is None:
        return "refused: not enough free blocks, or not admitted"
    if operation.name == "reset_prefix_cache" and operation.result is False:
        return "refused: blocks are in use"
    return None


def _hits(operation: Operation) -> Iterator[int]:
    """Yield blocks found by a look-up, or taken over by an allocation, without null blocks."""
    groups: Any = ()
    if operation.raises is not None:
        return
    if operation.name in LOOK_UPS:
        groups = operation.result["blocks"]
    elif operation.name == "allocate_slots" and operation.result is not None:
        groups = operation.arguments.get("new_computed_blocks") or ()
    seen = {0}
    for blocks in groups:
        for block in blocks:
            if block not in seen:
                seen.add(block)
                yield block


def life_of_requests(operations: Sequence[Operation]) -> Lives:
    """Return the phases of each request.

    A request whose blocks are released counts as preempted if it is looked up or allocated for
    again, and otherwise as finished: only later calls show which.
    """
    lives: dict[str, list[tuple[int, str]]] = {}
    comes_again = _comes_again(operations)
    for operation in operations:
        name = operation.request_id
        if name is None or operation.raises is not None:
            continue
        life = lives.setdefault(name, [])
        now = life[-1][1] if life else None
        turned = None
        if operation.name == "new_request":
            turned = WAITING
        elif operation.name == "allocate_slots" and operation.result is not None:
            turned = RUNNING
        elif operation.name in _RELEASES and now in (WAITING, RUNNING):
            back = PREEMPTED if now == RUNNING else WAITING
            turned = back if operation.index in comes_again else DONE
        if turned is not None and turned != now:
            life.append((operation.index, turned))
    return lives


def _comes_again(operations: Sequence[Operation]) -> frozenset[int]:
    """Return the releases after which the request is looked up or allocated for again."""
    again = set()
    coming: dict[str, bool] = {}
    for operation in reversed(operations):
        name = operation.request_id
        if name is None:
            continue
        if operation.name == "new_request":
            coming[name] = False  # a new request under the same name
        elif operation.name in LOOK_UPS or operation.name == "allocate_slots":
            coming[name] = True
        elif operation.name in _RELEASES and coming.get(name, False):
            again.add(operation.index)
    return frozenset(again)


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
