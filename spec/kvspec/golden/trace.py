"""Replaying one trace: the same calls, and after each the same answer and the same state.

Replays run under the policy in the header (that of the profile `vllm-0.24`, or of the one that the
caller names, where there is none), with the implementation's own invariant checks on. The first
mismatch ends a trace. A record marked with a quirk ends it too, as passed: from there on the
recorded behaviour is not what the rules say.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeAlias

from kvspec.golden.compare import (
    Difference,
    Mismatch,
    compare_observed,
    compare_outcome,
    compare_usage,
    compare_values,
    describe_error,
)
from kvspec.golden.player import Outcome, Player
from kvspec.golden.state import View, look
from kvspec.interface import Feature, Implementation, KVCacheManager
from kvspec.policy import Policy
from kvspec.record import Footer, Header, Operation
from kvspec.record_file import read_trace
from kvspec.remote.manager import foresee

Watch: TypeAlias = Callable[[Operation | None, View], None]
"""Told the state after each operation as the implementation shows it; None: freshly built."""


@dataclass(frozen=True)
class TraceResult:
    """How one trace went.

    `compared` operations were equal. `left_out` come at or behind the record marked with `quirks`.
    """

    path: Path
    header: Header
    compared: int
    left_out: int = 0
    quirks: tuple[str, ...] = ()
    mismatch: Mismatch | None = None

    @property
    def passed(self) -> bool:
        """Whether everything that was compared was equal."""
        return self.mismatch is None


@dataclass
class _Replay:
    """The implementation's side of one trace: its manager and what it looked like last.

    `seen` is what it looked like when the record last said so.
    """

    file: str
    player: Player
    view: View | None = None
    seen: View | None = None
    compared: int = field(default=0)

    def start(self, header: Header) -> Mismatch | None:
        """Compare the freshly built manager."""
        manager = self.player.manager
        found = [*compare_values("none_hash", header.none_hash.hex(), manager.none_hash.hex())]
        if header.initial is not None:
            view, problems = _look(manager)
            found += problems
            if view is not None:
                found += compare_observed(header.initial, view, None)
            self.view = self.seen = view
        return _header_mismatch(self.file, found, self.view) if found else None

    def step(self, operation: Operation) -> Mismatch | None:
        """Play one operation and compare its answer and the state after it."""
        foresee(self.player.manager, "snapshot", "get_usage")
        outcome = self.player.perform(operation.name, operation.request_id, operation.arguments)
        found: list[Difference] = []
        if "result" not in operation.uncompared or outcome.error is not None:
            found += compare_outcome(operation.result, operation.raises, outcome)
        view, problems = _look(self.player.manager)
        found += problems
        if view is not None and "state" in operation.uncompared:
            found += compare_usage(operation.observed, view)
        elif view is not None:
            # What a record does not mention is as in the last state that it did not leave out.
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
    """Replay the trace in `path`. Raises FormatError where the file is malformed.

    `policy` is that of a trace which names none; None: the profile `vllm-0.24`.
    The file is read to its end whatever happens, so that a malformed one is never called passed.
    `watch` sees every state, that of the first mismatch included.
    """
    lines = read_trace(path, policy=policy)
    header = next(lines)
    if not isinstance(header, Header):
        raise TypeError("read_trace yields the header first")
    replay, mismatch = _begin(str(path), header, implementation)
    if watch is not None and replay is not None and replay.view is not None:
        watch(None, replay.view)
    quirks: tuple[str, ...] = ()
    left_out = 0
    for operation in _operations(lines):
        if mismatch is not None or replay is None:
            continue
        if quirks or operation.quirks:
            quirks = quirks or operation.quirks
            left_out += 1
            continue
        mismatch = replay.step(operation)
        if watch is not None and replay.view is not None:
            watch(operation, replay.view)
    compared = 0 if replay is None else replay.compared
    return TraceResult(path, header, compared, left_out, quirks, mismatch)


def _operations(lines: Iterator[Header | Operation | Footer]) -> Iterator[Operation]:
    return (line for line in lines if isinstance(line, Operation))


def _begin(
    file: str, header: Header, implementation: Implementation
) -> tuple[_Replay | None, Mismatch | None]:
    """Build the manager and compare it with the header."""
    missing = missing_capability(header, implementation)
    if missing is not None:
        return None, _header_mismatch(file, [missing], None)
    try:
        if header.start is not None:
            manager = implementation.restore(header.config, header.start)
        else:
            manager = implementation.create(header.config, check_invariants=True)
    except Exception as error:  # whatever an implementation raises is its answer
        found = list(compare_outcome(None, header.raises, Outcome(error=error)))
        return None, _header_mismatch(file, found, None) if found else None
    if header.raises is not None:
        difference = Difference("error", header.raises, "none, the manager was built")
        return None, _header_mismatch(file, [difference], None)
    replay = _Replay(file, Player(implementation, manager))
    return replay, replay.start(header)


def missing_capability(header: Header, implementation: Implementation) -> Difference | None:
    """What a trace needs and the implementation says it doesn't have.

    Asked before the manager is built, so that a refusal for lack of a block type never counts as
    the error that a trace of an invalid configuration expects.
    """
    has = implementation.capabilities
    if header.start is not None and Feature.RESTORE not in has.features:
        return Difference("feature", Feature.RESTORE.value, f"{has.name} starts afresh only")
    for group in header.config.kv_cache.groups:
        if type(group.spec) not in has.spec_types:
            known = ", ".join(sorted(cls.__name__ for cls in has.spec_types)) or "none"
            return Difference("block type", type(group.spec).__name__, f"{has.name} has {known}")
    if header.config.hash_function not in has.hash_functions:
        known = ", ".join(sorted(has.hash_functions)) or "none"
        return Difference("hash function", header.config.hash_function, f"{has.name} has {known}")
    return None


def _look(manager: KVCacheManager) -> tuple[View | None, list[Difference]]:
    """The state, or the difference that the manager can't show it."""
    try:
        return look(manager), []
    except Exception as error:  # whatever an implementation raises is its answer
        return None, [Difference("snapshot", "an answer", describe_error(error))]


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
