"""Replay a trace: the same calls, and after each the same result and the same state.

Replays use the policy in the header (if there is none, that of the profile `vllm-0.24` or of the
profile that the caller names), with the implementation's own invariant checks on. The first
mismatch ends a trace. An operation marked with a quirk also ends it, as passed: from there on the
recorded behaviour violates the rules.

A trace that needs features the implementation does not declare is left out. If only queries are
unsupported, they are skipped, and the rest is compared.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeAlias

from kvcheck.play import fit
from kvcheck.play.compare import (
    Difference,
    Mismatch,
    compare_observed,
    compare_outcome,
    compare_usage,
    compare_values,
    describe_error,
)
from kvcheck.play.elsewhere import foresee
from kvcheck.play.features import OF_OPERATIONS, can_be_left_out, needed_features, needs
from kvcheck.play.player import Outcome, Player
from kvcheck.play.state import View, look
from kvspec import requirements
from kvspec.interface import Capabilities, Feature, Implementation
from kvspec.policy import Policy
from kvspec.record import LATER_VERSION, Footer, Header, Operation
from kvspec.record_file import read_trace

Watch: TypeAlias = Callable[[Operation | None, View], None]
"""Called with the state after each operation, as the implementation shows it; None: before any."""


@dataclass(frozen=True)
class TraceResult:
    """The result of one trace.

    `compared` operations were equal. `num_quirky` are marked with `quirks`, or follow one.
    `lacks`: missing features of the implementation; then the trace was not replayed.
    """

    path: Path
    header: Header
    compared: int
    num_quirky: int = 0
    quirks: tuple[str, ...] = ()
    mismatch: Mismatch | None = None
    lacks: tuple[str, ...] = ()

    @property
    def passed(self) -> bool:
        return self.mismatch is None and not self.lacks


@dataclass
class _Replay:
    """The implementation's side of one trace: its manager and its last state.

    `seen` is the state at the last point where the record shows one.
    """

    file: str
    player: Player
    view: View | None = None
    seen: View | None = None
    compared: int = field(default=0)
    shows_state: bool = True
    is_later: bool = False

    def start(self, header: Header) -> Mismatch | None:
        manager = self.player.manager
        self.is_later = header.shows_later_fields
        found = [*compare_values("none_hash", header.none_hash.hex(), manager.none_hash.hex())]
        if header.initial is not None:
            view, problems = self.look()
            found += problems
            if view is not None:
                found += compare_observed(header.initial, view, None)
            self.view = self.seen = view
        self.shows_state = not header.is_stateless
        return _header_mismatch(self.file, found, self.view) if found else None

    def look(self) -> tuple[View | None, list[Difference]]:
        """Return the state, or a difference if the manager cannot show it."""
        try:
            return look(self.player.manager, is_later=self.is_later), []
        except Exception as error:  # whatever an implementation raises counts as its result
            return None, [Difference("snapshot", "an answer", describe_error(error))]

    def can_ask(self, operation: Operation) -> bool:
        """Return whether to run it: unsupported queries and illegal calls are skipped."""
        features = self.player.implementation.capabilities.features
        return not can_be_left_out(operation) or needs(operation) <= features

    def step(self, operation: Operation) -> Mismatch | None:
        asked = ("snapshot", "get_usage") if self.shows_state else ("get_usage",)
        foresee(self.player.manager, *asked)
        outcome = self.player.perform(operation.name, operation.request_id, operation.arguments)
        found: list[Difference] = []
        if "result" not in operation.uncompared or outcome.error is not None:
            found += compare_outcome(operation.result, operation.raises, outcome)
        view = None
        if self.shows_state:
            view, problems = self.look()
            found += problems
        if "state" in operation.uncompared:
            manager = self.player.manager
            found += compare_usage(operation.observed, manager.num_free_blocks, manager.usage)
        elif view is not None:
            # Parts that a record omits are unchanged since the last state that it shows.
            found += compare_observed(operation.observed, view, self.seen)
            self.seen = view
        before, self.view = self.view, view
        if not found:
            self.compared += 1
            return None
        of_request = f"{operation.request_id!r}, " if operation.request_id is not None else ""
        return Mismatch(
            file=self.file,
            line=operation.line,
            what=f"operation {operation.index}, {of_request}{operation.name}".rstrip(", "),
            call=operation.name,
            arguments=operation.arguments,
            differences=tuple(found),
            before="" if before is None else before.snapshot.describe(),
            after="" if view is None else view.snapshot.describe(),
        )


def replay_trace(
    path: Path,
    implementation: Implementation,
    *,
    policy: Policy | None = None,
    watch: Watch | None = None,
) -> TraceResult:
    """Replay the trace in `path`. Raises FormatError if the file is malformed.

    `policy` applies to a trace that names none; None: the profile `vllm-0.24`. The file is always
    read to its end, so that a malformed one never passes. `watch` is called with every state,
    including that of the first mismatch.
    """
    lines = read_trace(path, policy=policy)
    header = next(lines)
    if not isinstance(header, Header):
        raise TypeError("read_trace yields the header first")
    lacks = lacking(path, header, implementation.capabilities)
    replay, mismatch = (None, None) if lacks else _begin(str(path), header, implementation)
    if watch is not None and replay is not None and replay.view is not None:
        watch(None, replay.view)
    quirks: tuple[str, ...] = ()
    num_quirky = 0
    for operation in _operations(lines):
        if mismatch is not None or replay is None or not replay.can_ask(operation):
            continue
        if quirks or operation.quirks:
            quirks = quirks or operation.quirks
            num_quirky += 1
            continue
        mismatch = replay.step(operation)
        if watch is not None and replay.view is not None:
            watch(operation, replay.view)
    compared = 0 if replay is None else replay.compared
    return TraceResult(path, header, compared, num_quirky, quirks, mismatch, lacks)


def _operations(lines: Iterator[Header | Operation | Footer]) -> Iterator[Operation]:
    return (line for line in lines if isinstance(line, Operation))


def _begin(
    file: str, header: Header, implementation: Implementation
) -> tuple[_Replay | None, Mismatch | None]:
    features = implementation.capabilities.features
    config = fit.without_queues(header.config, features)
    try:
        if header.start is not None:
            manager = implementation.restore(config, header.start)
        else:
            manager = implementation.create(config, check_invariants=True)
    except Exception as error:  # whatever an implementation raises counts as its result
        found = list(compare_outcome(None, header.raises, Outcome(error=error)))
        return None, _header_mismatch(file, found, None) if found else None
    if header.raises is not None:
        difference = Difference("error", header.raises, "none, the manager was built")
        return None, _header_mismatch(file, [difference], None)
    replay = _Replay(file, Player(implementation, manager))
    return replay, replay.start(header)


def lacking(path: Path, header: Header, can: Capabilities) -> tuple[str, ...]:
    """Return the features that a trace needs and the implementation does not declare.

    This is checked before the manager is built, so that a refusal for lack of a block type never
    counts as the error that a trace of an invalid configuration expects.
    """
    config = fit.without_queues(header.config, can.features)
    # Without a parent of first hashes the recorded manager had none, and nothing compares them.
    hashes_matter = bool(header.none_hash)
    found = requirements.lacking(config, can, hashes_matter=hashes_matter)
    needed: set[Feature] = set()
    chapters = set(header.needs)
    if header.version >= LATER_VERSION:
        chapters.update(*(each.needs for each in _operations(read_trace(path))))
    if header.start is not None:
        needed.add(Feature.RESTORE)
    if header.raises is None and not header.is_stateless:
        needed.add(Feature.SNAPSHOT)
    if not can.features >= OF_OPERATIONS:
        needed |= needed_features(_operations(read_trace(path)))
    return (*found, *sorted(chapters), *sorted(needed - can.features))


def _header_mismatch(file: str, found: list[Difference], view: View | None) -> Mismatch:
    return Mismatch(
        file=file,
        line=1,
        what="header, the freshly built manager",
        call="create",
        arguments={},
        differences=tuple(found),
        after="" if view is None else view.snapshot.describe(),
    )
