"""Complete a violation: the calls that an example made, and messages as a server gets them.

A program's violation has its operations. An example runs once more with a listener, so that it
also has its configuration and calls: they can be recorded, drawn and sent.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, cast

from kvcheck.judge.options import Options
from kvcheck.judge.parts import answer
from kvcheck.judge.sides import Sides
from kvcheck.play.player import Outcome, Player
from kvcheck.play.state import abstract_state
from kvcheck.play.text import operation_text
from kvcheck.play.verdicts import HANG, Level, Violation
from kvcheck.remote.client import RemoteImplementation
from kvcheck.rules.directed import find_example
from kvcheck.rules.judging import CALL_ENDS
from kvcheck.watch.calls import ARGUMENTS, LISTS, Call
from kvcheck.watch.forwarding import Forwarding, ForwardingImplementation
from kvcheck.watch.writing import more_of
from kvspec.audit import unwrapped
from kvspec.batched import BatchedImplementation, BatchedManager
from kvspec.config import ManagerConfig
from kvspec.errors import KVSpecError
from kvspec.interface import Feature, Implementation, KVCacheManager
from kvspec.request import Request, RequestInput
from kvspec.snapshot import Snapshot

Operations = tuple[tuple[str, str | None, dict[str, Any]], ...]


def told(
    violation: Violation, subject: Implementation, oracle: Implementation | None, options: Options
) -> Violation:
    """Return the violation with all that a report shows."""
    if violation.name == HANG:  # it would hang once more
        return violation
    if violation.is_example and not violation.operations:
        violation = _retold(violation, subject, oracle, options)
    return replace(violation, messages=_messages(violation, subject))


def _retold(
    violation: Violation, subject: Implementation, oracle: Implementation | None, options: Options
) -> Violation:
    """Add an example's last manager and the calls to it up to the failure."""
    listener = Listener(subject)
    sides = Sides(cast(Implementation, listener), oracle, options)
    compared = sides.compared
    with suppress(KeyError):
        answer(sides, find_example(violation.program.name))
    if not listener.heard:
        return violation
    last = listener.heard[-1]
    operations = (*last.operations, *last.raised) if last.is_whole else ()
    if compared is None:  # the monitors read the lists
        operations = tuple(each for each in operations if each[0] != "get_block_ids")
    if compared is not None and options.level is Level.IDENTITY:
        operations = operations[: _parting(last.config, operations, subject, compared)]
    program = replace(violation.program, config=last.config)
    expected = violation.expected
    if last.unheard:
        expected = expected.replace(CALL_ENDS, f"{CALL_ENDS}, {last.unheard}", 1)
    return replace(violation, program=program, operations=operations, expected=expected)


def _parting(
    config: ManagerConfig, operations: Operations, subject: Implementation, oracle: Implementation
) -> int | None:
    """Return how many operations it takes until a result or state differs, or None."""
    try:
        sides = [_player(each, config) for each in (subject, oracle)]
        for number, operation in enumerate(operations, 1):
            ours, theirs = (_seen(side, side.perform(*operation)) for side in sides)
            if ours != theirs:
                return number
    except Exception:  # a subject may raise anything, when it is made or takes a snapshot
        return None
    return None


def _player(implementation: Implementation, config: ManagerConfig) -> Player:
    return Player(implementation, implementation.create(config, check_invariants=False))


def _seen(side: Player, outcome: Outcome) -> object:
    state = None
    if Feature.SNAPSHOT in side.implementation.capabilities.features:
        state = abstract_state(side.manager.snapshot())
    return outcome.result, outcome.error is None, state


def _messages(violation: Violation, subject: Implementation) -> tuple[str, ...]:
    """Return all messages to a fresh server up to the violation, and its last reply."""
    if not isinstance(subject, RemoteImplementation) or not violation.operations:
        return ()
    lines: list[str] = []

    def heard(sign: str, message: Mapping[str, Any]) -> None:
        if lines and lines[-1].startswith("<"):
            lines.pop()
        lines.append(f"{sign} {json.dumps(message, separators=(',', ':'))}")

    with suppress(KVSpecError):
        fresh = RemoteImplementation(subject.options, heard)
        try:
            player = _player(fresh, violation.program.config)
            for operation in violation.operations:
                outcome = player.perform(*operation)
            is_answer = violation.expected.startswith(violation.operations[-1][0])
            shows_state = Feature.SNAPSHOT in subject.capabilities.features
            if outcome.error is None and not is_answer and shows_state:
                player.manager.snapshot()  # shows that the last call left a wrong state
        finally:
            fresh.close()
    return tuple(lines)


@dataclass
class Heard:
    """One manager and the calls to it; not `is_whole` if records have no place for some.

    `raised`: a call about a request's tokens, if the last one raised. `unheard`: the last call, in
    words, if records have no place for it.
    """

    config: ManagerConfig
    operations: list[tuple[str, str | None, dict[str, Any]]] = field(default_factory=list)
    is_whole: bool = True
    raised: Operations = ()
    unheard: str = ""

    def perform(self, call: Call, make: Callable[[], Any]) -> Any:
        name, self.unheard = call.name, ""
        if name in ARGUMENTS:
            self.note(
                "get_block_ids" if name in LISTS else name,
                getattr(call.request, "request_id", None),
                lambda: ARGUMENTS[name](call),
            )
            self.is_whole &= not call.is_about_no_request
        if not self.is_whole:
            given = dict(call.arguments)
            if call.is_about_no_request:
                is_text = isinstance(call.about, str)
                given = {"request": call.about if is_text else type(call.about).__name__, **given}
            self.unheard = operation_text(name, getattr(call.request, "request_id", None), given)
        return make()

    def note(self, name: str, request: str | None, given: Callable[[], dict[str, Any]]) -> None:
        """Note one more operation, if its arguments can be encoded."""
        self.raised = ()
        try:
            self.operations.append((name, request, given()))
        except (AttributeError, TypeError, ValueError, KVSpecError):
            self.is_whole = False

    @contextmanager
    def about(self, name: str, request: str, given: Callable[[], dict[str, Any]]) -> Iterator[None]:
        """Note a call about a request's tokens; one that raises only if it is the last."""
        before = len(self.operations)
        self.note(name, request, given)
        try:
            yield
        except BaseException:
            self.raised = tuple(self.operations[before:])
            del self.operations[before:]
            raise


class Listener(ForwardingImplementation):
    """An implementation that notes the calls to the managers it creates."""

    def __init__(self, inner: Implementation) -> None:
        super().__init__(inner)
        self.heard: list[Heard] = []

    def batched(self, manager: KVCacheManager) -> BatchedManager:
        for heard in self.heard:
            heard.is_whole = False
        return cast(BatchedImplementation, self.inner).batched(unwrapped(manager))

    def create(self, config: ManagerConfig, **options: Any) -> KVCacheManager:
        return self._listened(config, self.inner.create(config, **options), is_whole=True)

    def restore(self, config: ManagerConfig, snapshot: Snapshot) -> KVCacheManager:
        """Restore a manager; the calls that led to its state are unknown."""
        return self._listened(config, self.inner.restore(config, snapshot), is_whole=False)

    def clone(self, manager: KVCacheManager) -> KVCacheManager:
        """Return a copy; its call log starts empty."""
        copy = super().clone(manager)
        return self._listened(manager.config, copy, is_whole=False)

    def _listened(
        self, config: ManagerConfig, manager: KVCacheManager, *, is_whole: bool
    ) -> KVCacheManager:
        self.heard.append(Heard(config, is_whole=is_whole))
        return Forwarding(manager, self.heard[-1].perform)  # type: ignore[abstract]  # made of the interface

    def make_request(self, manager: KVCacheManager, request: RequestInput) -> Request:
        if not self.heard:
            return super().make_request(manager, request)
        with self.heard[-1].about("new_request", request.request_id, partial(_made_from, request)):
            return super().make_request(manager, request)

    def append_tokens(
        self, manager: KVCacheManager, request: Request, token_ids: Sequence[int]
    ) -> None:
        if not self.heard:
            return super().append_tokens(manager, request, token_ids)
        given: partial[dict[str, Any]] = partial(dict, token_ids=list(token_ids))
        with self.heard[-1].about("append_tokens", request.request_id, given):
            return super().append_tokens(manager, request, token_ids)


def _made_from(request: RequestInput) -> dict[str, Any]:
    return {"prompt_token_ids": list(request.prompt_token_ids), **more_of(request)}
