"""The directed suite, one check at a time."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from typing import Any

import kvref
from kvcheck.play.left_out import LeftOut
from kvcheck.rules.directed import EXAMPLES, Example, example_violation
from kvcheck.rules.managers import random_steps_are_their_single_calls
from kvcheck.rules.notation.shipped import examples_from, shipped_stories
from kvcheck.rules.random_plans import random_plan
from kvspec.interface import Implementation
from kvspec.policy import Policy

SECONDS = 10.0
"""Of the processor. A check that takes longer is in an endless loop, and that is a verdict."""


@cache
def directed_checks(kind: str = "manager") -> tuple[Example, ...]:
    """Return the checks that can see a mistake of this kind: programs call no planner."""
    plans = [example for example in EXAMPLES if _names(example, "KV-PLAN-")]
    if kind == "planner":
        return EXAMPLES
    if kind == "both":  # their results are written down
        return examples_from(shipped_stories())
    if kind == "steps":  # without the one that draws steps: those written down see each mistake
        steps = (example for example in EXAMPLES if _names(example, "KV-BATCH-"))
        return tuple(e for e in steps if e is not random_steps_are_their_single_calls)
    return tuple(example for example in EXAMPLES if example not in plans)


def _names(check: Example, chapter: str) -> bool:
    return any(rule.startswith(chapter) for rule in check.rules)


@cache
def plan_checks(number: int) -> tuple[Example, ...]:
    """Return the first random models to plan for."""
    return tuple(random_plan(0, n) for n in range(number))


def finds(check: Example, subject: Implementation, oracle: Implementation | None = None) -> bool:
    """Check for a difference from the oracle, or kvref; an endless loop is one."""
    oracle = oracle or kvref.implementation()
    with interrupted():
        try:
            return example_violation(check, subject, Policy(), oracle) is not None
        except LeftOut:
            return False


@contextmanager
def interrupted() -> Iterator[None]:
    """End the body after SECONDS with an error, which counts as a verdict."""

    def stop(*_: Any) -> None:
        raise TimeoutError(f"no end after {SECONDS} s")

    before = signal.signal(signal.SIGPROF, stop)
    signal.setitimer(signal.ITIMER_PROF, SECONDS)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
        signal.signal(signal.SIGPROF, before)
