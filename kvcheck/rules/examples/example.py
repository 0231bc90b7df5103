"""Directed checks that are no programs: an example of a rule, asked through the interface."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from kvcheck.play.steps import Program
from kvcheck.play.verdicts import Level, Violation, violation_of
from kvcheck.play.watchdog import Hang, time_limit
from kvcheck.rules.examples.bench import Bench, LeftOut
from kvspec.config import KVCacheConfig, ManagerConfig
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
    example: Example,
    subject: Implementation,
    policy: Policy,
    oracle: Implementation | None = None,
) -> Violation | None:
    """Try the example; how the subject breaks it, or None. Raises LeftOut.

    `oracle`: what random examples compare with; None where only what always holds is checked.

    Whatever exception the subject raises is its fault.
    """
    try:
        with time_limit(subject):
            example.check(Bench(subject, policy, example.rules[0], oracle))
    except LeftOut:
        raise
    # Whatever a foreign implementation does is a verdict.
    except (Exception, SystemExit, Hang) as found:
        shown = Program(NOTHING, (), name=example.name, rules=example.rules)
        violation = replace(violation_of(found, shown, ()), is_example=True)
        if violation.name == "legal_calls_succeed":
            return replace(violation, rule=example.rules[0])
        return violation
    return None
