"""Shrink failing input: the one search, and its candidates for programs.

Other input has its own candidates: records (`kvcheck.records.shrink`), lines of the fuzzer.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import MISSING, fields, replace
from itertools import chain
from typing import Any, TypeVar

from kvcheck.play.steps import Arrive, Program, Step

T = TypeVar("T")


def smallest(
    story: T,
    smaller: Callable[[T], Iterable[T]],
    tried: Callable[[T], T | None],
    *,
    seconds: float,
    attempts: float = math.inf,
) -> T:
    """Return the smallest failing input found within the time and the attempts.

    Greedy: `smaller` yields candidates, the smallest first, and starts over from each that fails.
    `tried` returns a candidate that fails, perhaps cut after the failure, and None for others.
    """
    deadline = time.monotonic() + seconds
    found: T | None = story
    while found is not None:
        story, found = found, None
        for candidate in smaller(story):
            if time.monotonic() >= deadline or attempts <= 0:
                return story
            attempts -= 1
            found = tried(candidate)
            if found is not None:
                break
    return story


def without_runs(operations: Sequence[T]) -> Iterator[tuple[T, ...]]:
    """Yield the operations without a run: half, at every quarter, then runs of halving length."""
    listed = tuple(operations)
    length = max(1, len(listed) // 2)
    while listed and length >= 1:
        for start in range(0, len(listed) - length + 1, max(1, length // 2)):
            yield listed[:start] + listed[start + length :]
        length //= 2


def with_plainer(
    operations: Sequence[T], plainer: Callable[[T], Iterable[T]]
) -> Iterator[tuple[T, ...]]:
    """Yield the operations with one of them replaced by each that is plainer."""
    for index, operation in enumerate(operations):
        for plain in plainer(operation):
            yield (*operations[:index], plain, *operations[index + 1 :])


def shrink(
    program: Program,
    fails: Callable[[Program], bool],
    *,
    seconds: float = 20.0,
    attempts: float = math.inf,
) -> Program:
    """Return the smallest program found within the time and the attempts that still `fails`."""
    limits = {"seconds": seconds, "attempts": attempts}
    return smallest(program, _smaller, lambda one: one if fails(one) else None, **limits)


def _smaller(program: Program) -> Iterator[Program]:
    """Yield programs that are a little smaller: without a run of steps, or with a plainer step."""
    for steps in chain(without_runs(program.steps), with_plainer(program.steps, _plainer)):
        yield replace(program, steps=steps)


def _plainer(step: Step) -> Iterator[Step]:
    """Yield the step with one member at its default, or a prompt of fewer or equal tokens."""
    for member in fields(step):
        value: Any = getattr(step, member.name)
        if member.default is not MISSING and value != member.default:
            yield replace(step, **{member.name: member.default})
    if isinstance(step, Arrive):
        for length in (len(step.prompt) // 2, len(step.prompt) - 1):
            if 0 < length < len(step.prompt):
                yield replace(step, prompt=step.prompt[:length])
        if any(step.prompt):
            yield replace(step, prompt=(0,) * len(step.prompt))
