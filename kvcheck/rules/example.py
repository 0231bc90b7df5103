"""Directed checks that are no programs: functions that test a rule on a bench."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from types import ModuleType
from typing import Any

from kvcheck.play.fit import policy_of
from kvcheck.play.left_out import LeftOut
from kvcheck.play.steps import Program
from kvcheck.play.text import shown
from kvcheck.play.verdicts import Level, Violation, violation_of
from kvcheck.play.watchdog import Hang, time_limit
from kvcheck.rules.bench import Bench
from kvcheck.rules.judging import UNSAID, NotationError, travels
from kvspec.config import KVCacheConfig, ManagerConfig
from kvspec.editions import FIRST, has_come
from kvspec.interface import Implementation
from kvspec.policy import Policy

NOTHING = ManagerConfig(KVCacheConfig(1, ()), max_model_len_tokens=1)
"""Replaces a program's configuration in a violation."""

IDS = ("unhashed_freed_to",)
"""Choices that determine block ids: required as usual at level identity, unless stated."""


@dataclass(frozen=True)
class Example:
    """A check of `rules`; a wrong result breaks the first of them.

    `check` raises InvariantViolation, or LeftOut if the subject lacks what it needs; it is tried
    with the arguments of each of `cases`. `level`: the first level at which it binds. `choices`:
    members of the policy that must equal those of `Policy()`. `since`: the edition of the contract
    that introduced it (`kvspec.editions`). `is_watched`: it also runs at level safety, where its
    calls are watched from outside and a result that is free there ends it.
    """

    name: str
    rules: tuple[str, ...]
    check: Callable[..., None]
    level: Level = Level.BEHAVIOUR
    cases: tuple[tuple[Any, ...], ...] = ((),)
    choices: tuple[str, ...] = ()
    since: str = FIRST
    is_watched: bool = False

    def binds_at(self, level: Level) -> bool:
        if self.is_watched:
            return True
        order = list(Level)
        return order.index(self.level) <= order.index(level)

    def run(self, bench: Bench) -> None:
        """Try every case; LeftOut only if none could be tried."""
        if not has_come(self.since, bench.subject.capabilities.edition):
            raise LeftOut(f"edition {self.since}")
        bench.need_usual(*self.choices)
        reason: LeftOut | None = None
        num_tried = 0
        for case in self.cases:
            try:
                self.check(bench, *case)
                num_tried += 1
            except LeftOut as left:
                reason = left
            except Exception as error:
                travels(error)
                if len(self.cases) > 1:
                    error.add_note(f"with {shown(list(case))}")
                raise
        if reason is not None and not num_tried:
            raise reason


def example(
    *rules: str,
    level: Level = Level.BEHAVIOUR,
    choices: tuple[str, ...] | None = None,
    since: str = FIRST,
) -> Callable[[Callable[..., None]], Example]:
    """Return the decorator that makes an example of a function, named as the sentence."""

    def made(check: Callable[..., None]) -> Example:
        usual = IDS if level is Level.IDENTITY else ()
        name = check.__name__.replace("_", " ")
        fixed = usual if choices is None else choices
        return Example(name, rules, check, level, choices=fixed, since=since)

    return made


def cases(*cases: Any) -> Callable[[Example], Example]:
    """Return the arguments to try an example with; a tuple each, or one that is no tuple."""
    tuples = tuple(case if isinstance(case, tuple) else (case,) for case in cases)
    return partial(replace, cases=tuples)


def examples_of(chapter: ModuleType) -> tuple[Example, ...]:
    return tuple(found for found in vars(chapter).values() if isinstance(found, Example))


def example_violation(
    example: Example,
    subject: Implementation,
    policy: Policy,
    oracle: Implementation | None = None,
    level: Level = Level.IDENTITY,
) -> Violation | None:
    """Try the example; return how the subject breaks it, or None. Raises LeftOut.

    `oracle`: for random examples to compare with; None if only what always holds is checked.

    Any exception of the subject is its fault.
    """
    try:
        with time_limit(subject):
            declared = policy_of(policy, subject.capabilities)
            example.run(Bench(subject, declared, oracle, level))
    except (LeftOut, NotationError):
        raise
    # Whatever a foreign implementation does is a verdict.
    except (Exception, SystemExit, Hang) as found:
        shown_as = Program(NOTHING, (), name=example.name, rules=example.rules)
        violation = replace(violation_of(found, shown_as, ()), is_example=True)
        case = "".join(f", {note}" for note in getattr(found, "__notes__", ()))
        violation = replace(violation, detail=violation.detail + case)
        if violation.rule == UNSAID or violation.name == "legal_calls_succeed":
            return replace(violation, rule=example.rules[0])
        return violation
    return None
