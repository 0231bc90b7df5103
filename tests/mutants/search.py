"""Who kills a mutant: every directed check, then random programs, level by level."""

from __future__ import annotations

import signal
import time
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache, partial
from itertools import chain, count, islice
from typing import Any

import kvref
from kvcheck.judge.random_programs import random_programs
from kvcheck.play.steps import Program
from kvcheck.play.verdicts import Level, Violation, first_violation
from kvcheck.rules.directed import EXAMPLES, Example, example_violation
from kvcheck.rules.judging import LeftOut
from kvcheck.rules.random_plans import random_plan
from kvcheck.rules.scenarios import SCENARIOS
from kvref.residency import ResidencyLog
from kvref.stats import ReferenceHitRateWindow
from kvspec.interface import Implementation
from kvspec.policy import Policy
from tests.mutants.make import Mutant, Mutated
from tests.mutants.steps import BrokenSteps

MAX_STEPS = 40
"""Of a random program, as with `--budget ci`."""
PROGRAM_SECONDS = 10.0
"""A program that takes longer is in an endless loop."""

Check = Callable[[Implementation], Violation | None]


@dataclass(frozen=True)
class Effort:
    """How many random programs, or plans, are tried.

    `beside`: on mutants that a directed check kills, of which only one in `every` is tried at all;
    `last`: when no directed check kills. `every_check`: all directed checks, not only those about
    the rules that a mutant breaks.
    """

    beside: int = 300
    every: int = 4
    last: int = 1000
    every_check: bool = False


@dataclass(frozen=True)
class Kill:
    """What killed a mutant. `operations`: how many it took; 0 for an example, which counts none."""

    by: str
    rule: str
    operations: int
    seconds: float


@dataclass(frozen=True)
class Result:
    """What became of a mutant.

    `level`: the weakest at which something killed it; `kill`: the first at level identity;
    `directed`: the directed checks that killed it there. `tried`: random programs (or plans) tried,
    up to the one that killed if `random` says so; None: none was.
    """

    name: str
    level: str | None = None
    kill: Kill | None = None
    directed: tuple[str, ...] = ()
    tried: int | None = None
    random: bool = False


@dataclass(frozen=True)
class Directed:
    """A scenario or an example, also a random one: what it is about, a verdict at each level."""

    name: str
    rules: tuple[str, ...]
    is_program: bool
    at: Mapping[Level, Check]


@cache
def directed_checks() -> tuple[Directed, ...]:
    """Every scenario and example, in the order of the suite."""
    scenarios = [
        Directed(p.name, p.rules, True, {level: partial(run_program, p, level) for level in Level})
        for p in SCENARIOS
    ]
    examples = [
        Directed(
            e.name,
            e.rules,
            False,
            {level: partial(run_example, e, level) for level in Level if e.binds_at(level)},
        )
        for e in EXAMPLES
    ]
    return (*scenarios, *examples)


def run_program(program: Program, level: Level, subject: Implementation) -> Violation | None:
    """The verdict; an endless loop is one too."""
    with interrupted(PROGRAM_SECONDS):
        return first_violation(program, subject, level, kvref.implementation())


def run_example(example: Example, level: Level, subject: Implementation) -> Violation | None:
    """The verdict; the mutants have what every example needs."""
    oracle = None if level is Level.SAFETY else kvref.implementation()
    with interrupted(PROGRAM_SECONDS):
        try:
            return example_violation(example, subject, Policy(), oracle, level)
        except LeftOut:
            return None


@cache
def random_tier(number: int, *, plans: bool) -> tuple[Directed, ...]:
    """The first random programs, or random models to plan for, of `kvspec check --budget ci`."""
    if plans:
        examples = [random_plan(0, n) for n in range(number)]
        return tuple(
            Directed(
                f"random plan {n}",
                example.rules,
                False,
                {level: partial(run_example, example, level) for level in Level},
            )
            for n, example in enumerate(examples, 1)
        )
    drawn = chain.from_iterable(random_programs(0, batch, MAX_STEPS) for batch in count())
    return tuple(
        Directed(
            f"random program {n}",
            (),
            True,
            {level: partial(run_program, program, level) for level in Level},
        )
        for n, program in enumerate(islice(drawn, number), 1)
    )


def judge(mutant: Mutant, effort: Effort, *, sampled: bool) -> Result:
    """Everything about one mutant: directed checks about its rules, the others, random programs.

    What kills at a weaker level kills at identity, so only that is tried at the weaker ones.
    """
    subject = mutant.make()
    start = time.process_time()
    kill: Kill | None = None
    levels: set[Level] = set()
    killers: list[str] = []
    for directed, is_about in in_order(subject, mutant.rules):
        if kill is not None and not is_about and not effort.every_check:
            break
        violation = directed.at[Level.IDENTITY](subject)
        if violation is not None:
            kill = kill or killed(directed.name, violation, start)
            killers.append(directed.name)
            levels |= dies_at(subject, directed.at, levels)
    tried, found = None, False
    if (sampled or not killers) and may_be_seen_by_chance(subject):
        start = time.process_time()
        most = effort.beside if killers else effort.last
        for check in random_tier(most, plans=plans_wrongly(subject)):
            tried = (tried or 0) + 1
            violation = check.at[Level.IDENTITY](subject)
            if violation is not None:
                found = True
                kill = kill or killed(check.name, violation, start)
                levels |= dies_at(subject, check.at, levels)
                break
    first = next((str(level) for level in Level if level in levels), None)
    return Result(mutant.name, first, kill, tuple(killers), tried, found)


def dies_at(
    subject: Implementation, at: Mapping[Level, Check], known: Collection[Level]
) -> set[Level]:
    """The levels at which a check kills that kills at identity; those known are not tried."""
    weaker = [level for level in at if level not in (Level.IDENTITY, *known)]
    return {Level.IDENTITY, *(level for level in weaker if at[level](subject) is not None)}


def in_order(subject: Implementation, rules: Collection[str]) -> Iterator[tuple[Directed, bool]]:
    """The directed checks that ask the part that is wrong; those about its rules come first."""
    asking = [check for check in directed_checks() if asks(check, subject)]
    about = [check for check in asking if not set(rules).isdisjoint(check.rules)]
    for check in about:
        yield check, True
    for check in asking:
        if check not in about:
            yield check, False


def asks(check: Directed, subject: Implementation) -> bool:
    """Whether the check could see what is wrong: programs ask no planner, plans no manager."""
    if not isinstance(subject, Mutated):
        return True
    if plans_wrongly(subject):
        return not check.is_program
    return any(not rule.startswith("KV-PLAN-") for rule in check.rules)


def plans_wrongly(subject: Implementation) -> bool:
    """Whether it is the planner that is wrong."""
    return isinstance(subject, Mutated) and bool(subject.planner_patches)


def may_be_seen_by_chance(subject: Implementation) -> bool:
    """Random programs and plans ask no hit-rate window, nothing of residency, no whole steps."""
    if not isinstance(subject, Mutated):
        return True
    return not isinstance(subject, BrokenSteps) and (
        subject.window_class is ReferenceHitRateWindow and subject.parts.residency is ResidencyLog
    )


def killed(by: str, violation: Violation, start: float) -> Kill:
    """As a value."""
    seconds = time.process_time() - start
    return Kill(by, violation.rule, len(violation.operations), round(seconds, 3))


@contextmanager
def interrupted(seconds: float) -> Iterator[None]:
    """Raise TimeoutError inside after so much time."""

    def stop(*_: Any) -> None:
        raise TimeoutError(f"no end after {seconds} s")

    before = signal.signal(signal.SIGALRM, stop)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
