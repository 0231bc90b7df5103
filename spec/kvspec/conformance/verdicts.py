"""From a program to a verdict: what a level checks, and what went wrong."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from kvspec.conformance.checks import CompareCheck, EventCheck, InvariantCheck, SafetyCheck
from kvspec.conformance.performing import perform
from kvspec.conformance.runner import Check, Runner
from kvspec.conformance.situations import SituationCounter
from kvspec.conformance.steps import Program
from kvspec.errors import InvariantViolation, KVSpecError
from kvspec.interface import Implementation


class Level(StrEnum):
    """How much must be equal; each level includes those before it."""

    SAFETY = "safety"
    BEHAVIOUR = "behaviour"
    IDENTITY = "identity"


@dataclass(frozen=True)
class Violation:
    """A rule that an implementation broke, and the program that shows it.

    `operations` are those performed up to the offence: (name, request id, arguments).
    `is_example`: it was an example (`kvspec.conformance.examples`) of the program's name and rules,
    and there is nothing to replay.
    """

    rule: str
    name: str
    detail: str
    program: Program
    operations: tuple[tuple[str, str | None, dict[str, Any]], ...]
    is_example: bool = False


def first_violation(
    program: Program,
    subject: Implementation,
    level: Level,
    oracle: Implementation | None = None,
    situations: Counter[str] | None = None,
) -> Violation | None:
    """Run a program; the first rule that is broken, or None.

    Levels above safety compare with `oracle`. Whatever exception the subject raises is its fault.
    `situations` are counted up.
    """
    compared = oracle if level is not Level.SAFETY else None
    runner: Runner | None = None
    try:
        runner = Runner(program, subject, compared)
        checks: list[Check] = [SafetyCheck(runner), InvariantCheck(), EventCheck()]
        if compared is not None:
            checks.append(CompareCheck(exact_ids=level is Level.IDENTITY))
        if situations is not None:
            checks.append(SituationCounter(situations))
        runner.checks = checks
        perform(runner, program.steps)
    except InvariantViolation as found:
        rule, name, detail = found.rule, found.invariant, found.detail
    except KVSpecError as found:
        rule, name, detail = "KV-ERR-1", "legal_calls_succeed", f"{type(found).__name__}: {found}"
    except Exception as found:  # whatever a foreign implementation does is a verdict
        rule, name, detail = "KV-ERR-2", "errors_are_typed", f"{type(found).__name__}: {found}"
    else:
        return None
    operations: Sequence[tuple[str, str | None, dict[str, Any]]] = ()
    if runner is not None:
        operations = runner.operations
    return Violation(rule, name, detail, program, tuple(operations))
