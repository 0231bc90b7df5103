"""Making a program that fails smaller: fewer steps first, then plainer ones."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import MISSING, fields, replace
from typing import Any

from kvcheck.play.steps import Arrive, Program, Step


def shrink(program: Program, fails: Callable[[Program], bool], *, seconds: float = 20.0) -> Program:
    """The smallest program found within the time that still `fails`.

    Greedy: every accepted change starts over with runs of steps of halving length.
    """
    deadline = time.monotonic() + seconds
    changed = True
    while changed and time.monotonic() < deadline:
        changed = False
        for candidate in _smaller(program):
            if time.monotonic() >= deadline:
                break
            if fails(candidate):
                program, changed = candidate, True
                break
    return program


def _smaller(program: Program) -> Iterator[Program]:
    """Programs a little smaller: without a run of steps, or with one plainer step."""
    steps = program.steps
    length = max(1, len(steps) // 2)
    while length >= 1:
        for start in range(0, len(steps) - length + 1, max(1, length // 2)):
            yield replace(program, steps=steps[:start] + steps[start + length :])
        length //= 2
    for index, step in enumerate(steps):
        for plainer in _plainer(step):
            yield replace(program, steps=(*steps[:index], plainer, *steps[index + 1 :]))


def _plainer(step: Step) -> Iterator[Step]:
    """The step with one member at its default, or a prompt of fewer or equal tokens."""
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
