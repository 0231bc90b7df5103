"""Directed checks that are no programs: a function over a bench says what the rules say."""

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
"""What a violation shows in place of a program's configuration."""

IDS = ("unhashed_freed_to",)
"""The choices on which block ids depend: taken as usual at level identity, unless it is said."""


@dataclass(frozen=True)
class Example:
    """A check of `rules`, whose first is what a wrong answer breaks.

    `check` raises InvariantViolation, or LeftOut if the subject lacks what it needs; it is tried
    with the arguments of each of `cases`. `level`: the first level at which it binds. `choices`:
    members of the policy that it takes for those of `Policy()`. `since`: the edition of the
    contract that first asked it (`kvspec.editions`). `is_watched`: it is played at level safety,
    too, where its calls are watched from outside and answers end it that are free there.
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
        """Whether it is part of a run at this level."""
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
    """The decorator that makes an example of a function, whose name is the sentence."""

    def made(check: Callable[..., None]) -> Example:
        usual = IDS if level is Level.IDENTITY else ()
        name = check.__name__.replace("_", " ")
        fixed = usual if choices is None else choices
        return Example(name, rules, check, level, choices=fixed, since=since)

    return made


def cases(*cases: Any) -> Callable[[Example], Example]:
    """The arguments that an example is tried with; a tuple each, or one that is no tuple."""
    tuples = tuple(case if isinstance(case, tuple) else (case,) for case in cases)
    return partial(replace, cases=tuples)


def examples_of(chapter: ModuleType) -> tuple[Example, ...]:
    """The examples of a chapter, in the order in which they are written."""
    return tuple(found for found in vars(chapter).values() if isinstance(found, Example))


def example_violation(
    example: Example,
    subject: Implementation,
    policy: Policy,
    oracle: Implementation | None = None,
    level: Level = Level.IDENTITY,
) -> Violation | None:
    """Try the example; how the subject breaks it, or None. Raises LeftOut.

    `oracle`: what random examples compare with; None where only what always holds is checked.

    Whatever exception the subject raises is its fault.
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
