"""A subject that is asked what a record says, and must answer what it says.

At level identity everything is compared: answers, events, ids and the whole state. At level
behaviour block ids are the subject's own, and what is left of an answer without them is compared.
Nothing is asked of a reference: the record is all there is.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from kvcheck.judge.own_blocks import OwnBlocks
from kvcheck.play.agreement import (
    AS_RECORDED,
    require_same,
    require_same_events,
    require_same_state,
    rule_of,
    without_ids,
)
from kvcheck.play.compare import BUILTIN_ERRORS
from kvcheck.play.difference import WrongAnswer, first_difference
from kvcheck.play.elsewhere import foresee
from kvcheck.play.features import can_be_left_out, needs
from kvcheck.play.fit import without_queues
from kvcheck.play.left_out import created
from kvcheck.play.player import Outcome, Player
from kvcheck.play.runner import raise_as_violation
from kvcheck.play.state import abstract_state, duplicate_order
from kvspec.errors import InvariantViolation, KVSpecError
from kvspec.interface import Feature, Implementation
from kvspec.record import Header, Operation
from kvspec.snapshot import Snapshot


@dataclass
class Expected:
    """What the record says of the state now."""

    state: dict[str, Any]
    copies: Mapping[str, list[int]]
    num_free_blocks: int
    usage: float

    def after(self, operation: Operation) -> None:
        """Take in what an operation changed."""
        observed = operation.observed
        self.state.update(observed.state)
        if observed.dup_order is not None:
            self.copies = observed.dup_order
        self.num_free_blocks, self.usage = observed.num_free_blocks, observed.usage


class Follower:
    """One subject, one record.

    `asked` lists what was asked of it so far, up to operation `num_operations` of the record.
    """

    def __init__(self, subject: Implementation, header: Header, *, exact_ids: bool) -> None:
        self.features = subject.capabilities.features
        self.exact_ids = exact_ids
        config = without_queues(header.config, self.features)
        self.player = Player(subject, created(subject, config, check_invariants=False))
        self.asked: list[tuple[str, str | None, dict[str, Any]]] = []
        self.num_operations = 0
        self.last_num_free: int | None = None
        initial = header.initial
        if initial is None:
            raise KVSpecError("a record that begins with an error cannot be followed")
        self.expected = Expected(
            dict(initial.state), initial.dup_order or {}, initial.num_free_blocks, initial.usage
        )
        self.own = OwnBlocks(self._snapshot)
        self.none_hash = header.none_hash

    def follow(self, operations: Iterable[Operation], *, every_state: bool = False) -> None:
        """All of them. Raises InvariantViolation where the subject parts from the record.

        The state is compared before and after each operation that changes it, and at the end: one
        that changes nothing and does change it is noticed soon, with `every_state` at once.
        """
        none_hash = self.player.manager.none_hash
        same("KV-HASH-3", "the parent of the first hash", self.none_hash, none_hash)
        self._compare_state("KV-POOL-2", "at the start")
        is_seen, rule, name = True, "", ""
        listed = tuple(operations)
        changing = [every_state or changes_state(operation) for operation in listed]
        for operation, changes, next_changes in zip(
            listed, changing, (*changing[1:], True), strict=True
        ):
            if changes and not is_seen:
                self._compare_state(rule, f"after {name}")
            self.num_operations += 1
            is_seen = not self._follow(operation, looks_after=changes or next_changes)
            rule, name = rule_of(operation.name), operation.name
            self.expected.after(operation)
            if changes and not is_seen:
                self._compare_state(rule, f"after {name}")
                is_seen = True
        if not is_seen:
            self._compare_state(rule, f"after {name}")

    def _follow(self, operation: Operation, *, looks_after: bool) -> bool:
        """One operation; whether it was made. `looks_after`: the state is compared next."""
        if can_be_left_out(operation) and not needs(operation) <= self.features:
            return False
        self.own.keys, self.own.copies = self.expected.state["block_hash"], self.expected.copies
        given: Mapping[str, Any] | None = operation.arguments
        if not self.exact_ids:
            given = self.own.arguments(operation)
        if given is None:
            return False
        self.asked.append((operation.name, operation.request_id, dict(given)))
        if looks_after:
            self._foresee(operation)
        outcome = self.player.perform(operation.name, operation.request_id, given)
        compare_answer(operation, outcome, exact_ids=self.exact_ids)
        if not self.exact_ids:
            self.own.note(operation, outcome.result)
        return True

    def _foresee(self, operation: Operation) -> None:
        """The state is asked along with the operation, where that saves a wait."""
        manager = self.player.manager
        if not self.exact_ids:
            foresee(manager, "get_usage")
        elif operation.observed.num_free_blocks == self.last_num_free:
            foresee(manager, "snapshot")
        else:
            foresee(manager, "snapshot", "get_usage")

    def _compare_state(self, rule: str, when: str) -> None:
        """The whole state, or below level identity the number of free blocks."""
        expected = self.expected
        if not self.exact_ids:
            free = self.player.manager.num_free_blocks
            same(rule, f"free blocks {when}", expected.num_free_blocks, free)
            return
        snapshot = self.player.manager.snapshot()
        got, copies = abstract_state(snapshot), duplicate_order(snapshot)
        require_same_state(expected.state, got, (expected.copies, copies), when, AS_RECORDED)
        self._compare_usage(rule, when)

    def _compare_usage(self, rule: str, when: str) -> None:
        """Where it is to change; of a subject in another process each question takes its time."""
        expected, manager = self.expected, self.player.manager
        if expected.num_free_blocks == self.last_num_free:
            return
        self.last_num_free = expected.num_free_blocks
        same(rule, f"free blocks {when}", expected.num_free_blocks, manager.num_free_blocks)
        same("KV-POOL-12", f"usage {when}", expected.usage, manager.usage)

    def _snapshot(self) -> Snapshot | None:
        if Feature.SNAPSHOT not in self.features:
            return None
        return self.player.manager.snapshot()


def changes_state(operation: Operation) -> bool:
    """Whether the record shows another state after it than before."""
    return bool(operation.observed.state) or operation.observed.dup_order is not None


def compare_answer(operation: Operation, outcome: Outcome, *, exact_ids: bool) -> None:
    """Raise InvariantViolation unless the operation ended as recorded."""
    name, error = operation.name, outcome.error
    if operation.raises is not None:
        _compare_error(operation, outcome)
        return
    if error is not None:
        raise_as_violation(name, error)
    if name == "take_events":
        require_same_events(operation.result, outcome.result, AS_RECORDED)
        return
    expected, got = operation.result, outcome.result
    if not exact_ids:
        expected, got = without_ids(name, expected), without_ids(name, got)
    if first_difference(expected, got) is not None:
        raise WrongAnswer(AS_RECORDED, rule_of(name), f"{name} answers", expected, got)


def _compare_error(operation: Operation, outcome: Outcome) -> None:
    """An illegal call ends with a typed error that a caller would catch by the recorded class."""
    error = outcome.error
    caught = BUILTIN_ERRORS[operation.raises or "ValueError"]
    if isinstance(error, InvariantViolation):
        raise error
    if not isinstance(error, KVSpecError) or not isinstance(error, caught):
        got = "was accepted" if error is None else f"raised {error!r}"
        detail = f"{operation.name}({dict(operation.arguments)}) {got}"
        raise InvariantViolation("illegal_calls_raise", "KV-ERR-2", detail)


def same(rule: str, what: str, expected: object, got: object) -> None:
    """Raise WrongAnswer unless these are equal."""
    require_same(rule, what, expected, got, AS_RECORDED)
