"""Runs that compare the whole state only now and then: at production sizes it is large.

Every result is compared, including ids, the number of free blocks and every event; the state
after every so many operations, and at the end.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from kvcheck.play.agreement import (
    require_same,
    require_same_copies,
    require_same_outcome,
    require_same_view,
    rule_of,
)
from kvcheck.play.checks import EventCheck
from kvcheck.play.runner import Runner, Side, Tracked, raise_as_violation
from kvcheck.play.steps import Program
from kvspec.interface import Implementation


class SparseRunner(Runner):
    """A subject beside an oracle, whose states are compared every `looks_every` operations."""

    def __init__(
        self,
        program: Program,
        subject: Implementation,
        oracle: Implementation,
        *,
        looks_every: int,
        audit: bool = False,
    ) -> None:
        super().__init__(program, subject, oracle, audit=audit)
        self.checks = [EventCheck()]
        self.looks_every = looks_every

    def do(
        self,
        name: str,
        request: Tracked | None = None,
        arguments: Mapping[str, Any] | None = None,
        own: Callable[[Side], Mapping[str, Any]] = lambda side: {},
        *,
        may_fail: bool = False,
        lost: Sequence[int] = (),
    ) -> tuple[Any, Any]:
        """Perform one operation on both sides, and compare the whole state when it is due."""
        _, outcome, expected = self.ask(name, request, arguments or {}, own)
        copies, expected_copies = self.copies_after(name, request, outcome)
        if outcome.error is not None and not may_fail:
            raise_as_violation(name, outcome.error)
        if expected is None or self.oracle is None:
            return outcome.result, None
        require_same_outcome(name, expected, outcome)
        require_same_copies(expected_copies, copies)
        free, got = (s.player.manager.num_free_blocks for s in (self.oracle, self.subject))
        require_same(rule_of(name), f"free blocks after {name}", free, got)
        if len(self.operations) % self.looks_every == 0:
            self.compare_states(f"after {name}")
        return outcome.result, expected.result

    def compare_states(self, when: str = "at the end") -> None:
        if self.oracle is not None:
            require_same_view(self.oracle.look(), self.view, when)
