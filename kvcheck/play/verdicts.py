"""From a program to a verdict: the checks of a level, and the violation found."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from operator import attrgetter
from traceback import walk_tb
from types import MappingProxyType
from typing import Any

from kvcheck.play.agreement import RULE_OF_OPERATION
from kvcheck.play.checks import CompareCheck, EventCheck, InvariantCheck, ShadowCheck
from kvcheck.play.difference import WrongAnswer
from kvcheck.play.left_out import LeftOut
from kvcheck.play.performing import perform
from kvcheck.play.runner import Check, Runner
from kvcheck.play.shadow import content_check
from kvcheck.play.shrink import shrink
from kvcheck.play.situations import SituationCounter
from kvcheck.play.steps import Batch, Program
from kvcheck.play.text import shortened
from kvcheck.play.watchdog import Hang, time_limit
from kvspec.errors import InvariantViolation, KVSpecError, RemoteError
from kvspec.interface import Implementation
from kvspec.invariants import INVARIANTS
from kvspec.transitions import TRANSITION_INVARIANTS

HANG = "calls_answer"
"""The name of the check by a time limit."""

PROTOCOL = "protocol"
"""Replaces the rule where a server violated spec/protocol.md."""


class Level(StrEnum):
    """How much must be equal; each level includes those before it."""

    SAFETY = "safety"
    BEHAVIOUR = "behaviour"
    IDENTITY = "identity"


@dataclass(frozen=True)
class Violation:
    """A rule that an implementation broke, and the program that shows it.

    `operations`: those performed up to the offence: (name, request id, arguments). `expected` and
    `observed` say in words what was wrong after the last of them, `first_at` where inside of both.
    `messages`: the operations as sent to a server (`kvcheck.judge.telling`). `is_example`: it was
    an example (`kvcheck.rules.directed`) of the program's name and rules, and there is nothing to
    replay. `like`: the known mistake, with its id, that makes the reference behave so. `cause`:
    equal for the same finding of another run (`kvcheck.judge.blame.cause_of`). `place`: the call
    and what of it was wrong, in words that are the same for every program.
    """

    rule: str
    name: str
    detail: str
    program: Program
    operations: tuple[tuple[str, str | None, dict[str, Any]], ...]
    expected: str = ""
    observed: str = ""
    is_example: bool = False
    like: str = ""
    cause: str = ""
    first_at: str = ""
    messages: tuple[str, ...] = ()
    place: str = ""

    @property
    def kind(self) -> tuple[str, str]:
        """Return rule and check; violations with both equal are of one kind."""
        return self.rule, self.name

    @property
    def way(self) -> tuple[str, str]:
        """Return rule and place: a rule may be broken in several ways; a kind has one or more."""
        return self.rule, self.place


def first_violation(
    program: Program,
    subject: Implementation,
    level: Level,
    oracle: Implementation | None = None,
    situations: Counter[str] | None = None,
) -> Violation | None:
    """Run a program and return the first rule that is broken, or None.

    Levels above safety compare with `oracle`; through whole steps content is not followed. Any
    exception of the subject is its fault. `situations` are counted up. Raises LeftOut if the
    subject refuses the configuration as one that it does not support.
    """
    compared = oracle if level is not Level.SAFETY else None
    runner: Runner | None = None
    try:
        with time_limit(subject):
            runner = Runner(program, subject, compared)
            checks: list[Check] = [EventCheck()]
            if not any(isinstance(step, Batch) for step in program.steps):
                checks[:0] = [ShadowCheck(runner), InvariantCheck()]
            if compared is not None:
                checks.append(CompareCheck(exact_ids=level is Level.IDENTITY))
            if situations is not None:
                checks.append(SituationCounter(situations))
            runner.checks = checks
            perform(runner, program.steps)
    except LeftOut:
        raise
    # Whatever a foreign implementation does is a verdict; its sys.exit(0) would end the run as if
    # all were well.
    except (Exception, SystemExit, Hang) as found:
        return violation_of(found, program, () if runner is None else runner.operations)
    return None


def made_smaller(
    violation: Violation,
    verdict: Callable[[Program], Violation | None],
    seconds: float,
    same: Callable[[Violation], object] = attrgetter("kind"),
    *,
    attempts: float = math.inf,
) -> Violation:
    """Return the same kind of violation by the smallest program found within these limits."""

    def fails(program: Program) -> bool:
        try:
            again = verdict(program)
        except LeftOut:
            return False
        return again is not None and same(again) == same(violation)

    small = shrink(violation.program, fails, seconds=seconds, attempts=attempts)
    return verdict(small) or violation


def violation_of(
    found: Exception | SystemExit | Hang,
    program: Program,
    operations: Sequence[tuple[str, str | None, dict[str, Any]]],
) -> Violation:
    """Convert an exception to a violation: one of a check, or any of the subject."""
    first_at = ""
    call = operations[-1][0] if operations else _call_of(found)
    place = f"{call} {type(found.__cause__ or found).__name__}"
    if isinstance(found, WrongAnswer):
        expected, observed, first_at = found.expected, found.observed, found.first_at
        place = found.place
    elif isinstance(found, InvariantViolation):
        expected, observed = SENTENCES.get(found.invariant, ""), shortened(found.detail)
        place = f"{found.invariant} {place}"
    else:
        rule, name = ("KV-ERR-1", "legal_calls_succeed")
        if isinstance(found, Hang):
            name = HANG
        elif isinstance(found, RemoteError) and found.is_of_protocol:
            rule, name = PROTOCOL, "speaks_the_protocol"
        elif not isinstance(found, KVSpecError):
            rule, name = "KV-ERR-2", "errors_are_typed"
        found = InvariantViolation(name, rule, f"{type(found).__name__}: {_words(found)}")
        expected, observed = "an answer, or a typed error for an illegal call", found.detail
        if rule == PROTOCOL:
            expected = "a message as spec/protocol.md has it"
    where = (found.rule, found.invariant, found.detail)
    both = (expected, observed)
    return Violation(*where, program, tuple(operations), *both, first_at=first_at, place=place)


def _words(found: BaseException) -> str:
    """Return what an exception says; of a message its name, not how many were sent before."""
    if isinstance(found, RemoteError):
        return str(found).replace(found.last, found.last.partition(",")[0])
    return str(found)


def _call_of(found: BaseException) -> str:
    """Return the call of the contract that raised an exception, where no calls were listed."""
    names = (frame.f_code.co_name for frame, _ in walk_tb(found.__traceback__))
    return next((name for name in names if name in RULE_OF_OPERATION), "")


SENTENCES: Mapping[str, str] = MappingProxyType(
    {invariant.name: invariant.sentence for invariant in INVARIANTS}
    | {invariant.name: invariant.sentence for invariant in TRANSITION_INVARIANTS}
    | dict(content_check.SENTENCES)
)
"""The sentence of an invariant or a check of content, by its name."""
