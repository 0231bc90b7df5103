"""Directed checks that are no programs: an example of a rule, asked through the interface."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from kvspec.config import KVCacheConfig, ManagerConfig
from kvspec.conformance.examples.bench import Bench, LeftOut
from kvspec.conformance.steps import Program
from kvspec.conformance.verdicts import Level, Violation
from kvspec.errors import InvariantViolation, KVSpecError
from kvspec.interface import Implementation
from kvspec.policy import Policy

NOTHING = ManagerConfig(KVCacheConfig(1, ()), max_model_len_tokens=1)
"""What a violation shows in place of a program's configuration."""


@dataclass(frozen=True)
class Example:
    """An example of `rules`, whose first is what a wrong answer breaks.

    `check` raises InvariantViolation, or LeftOut if the subject lacks what it needs. `level`: the
    first level at which it binds.
    """

    name: str
    rules: tuple[str, ...]
    check: Callable[[Bench], None]
    level: Level = Level.BEHAVIOUR

    def binds_at(self, level: Level) -> bool:
        """Whether it is part of a run at this level."""
        order = list(Level)
        return order.index(self.level) <= order.index(level)


def example(
    *rules: str, level: Level = Level.BEHAVIOUR
) -> Callable[[Callable[[Bench], None]], Example]:
    """The decorator that makes an example of a function; its docstring is the name."""

    def made(check: Callable[[Bench], None]) -> Example:
        name = (check.__doc__ or check.__name__).strip().rstrip(".")
        return Example(name[0].lower() + name[1:], rules, check, level)

    return made


def example_violation(
    example: Example, subject: Implementation, policy: Policy
) -> Violation | None:
    """Try the example; how the subject breaks it, or None. Raises LeftOut.

    Whatever exception the subject raises is its fault.
    """
    try:
        example.check(Bench(subject, policy, example.rules[0]))
    except LeftOut:
        raise
    except InvariantViolation as found:
        rule, name, detail = found.rule, found.invariant, found.detail
    except KVSpecError as found:
        rule, name = example.rules[0], "legal_calls_succeed"
        detail = f"{type(found).__name__}: {found}"
    except Exception as found:  # whatever a foreign implementation does is a verdict
        rule, name, detail = "KV-ERR-2", "errors_are_typed", f"{type(found).__name__}: {found}"
    else:
        return None
    shown = Program(NOTHING, (), name=example.name, rules=example.rules)
    return Violation(rule, name, detail, shown, (), is_example=True)
