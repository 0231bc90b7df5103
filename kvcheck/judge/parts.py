"""The parts of a check that need nothing of each other, as calls for `kvcheck.tasks`.

An answer is what the subject did. What that means for the run depends on what was found before, and
is the business of who takes the answers, in their order (`kvcheck.judge.suite`).
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from kvcheck.judge.sides import Sides
from kvcheck.play import watchdog
from kvcheck.play.fit import random_program
from kvcheck.play.left_out import LeftOut
from kvcheck.play.steps import Program
from kvcheck.play.verdicts import Violation, first_violation
from kvcheck.rules.directed import Example, example_violation, find_example
from kvcheck.tasks import Call

PROGRAMS_OF_A_CALL = 10
"""Random programs that a worker takes at once: about a tenth of a second."""

SLOW_SECONDS = 2.0
"""A failing program that takes longer hangs somewhere; others take milliseconds."""


@dataclass(frozen=True)
class Answer:
    """What came of a program or an example, in how many seconds.

    `left_out`: it was not run. `situations` that came up.
    """

    violation: Violation | None = None
    left_out: LeftOut | None = None
    seconds: float = 0.0
    situations: Counter[str] = field(default_factory=Counter)

    @property
    def lost_seconds(self) -> float:
        """Those of a failure that hangs somewhere."""
        return self.seconds if self.violation and self.seconds > SLOW_SECONDS else 0.0


@dataclass(frozen=True)
class Drawn:
    """What came of some random programs or plans of a batch, those that were run; `drawn` programs
    were there. `is_last`: the batch is done."""

    batch: int
    answers: tuple[Answer, ...]
    drawn: int = 0
    is_last: bool = False


def program_answer(sides: Sides, program: Program) -> Answer:
    """Run a program that fits."""
    situations: Counter[str] = Counter()
    found: Violation | None = None
    left_out: LeftOut | None = None
    begin = time.monotonic()
    try:
        both = (sides.subject, sides.options.level, sides.compared)
        found = first_violation(program, *both, situations)
    except LeftOut as reason:
        left_out = reason
    return Answer(found, left_out, time.monotonic() - begin, situations)


def example(sides: Sides, name: str) -> Answer:
    """An example, or a random model to plan for, by its name."""
    return example_answer(sides, find_example(name))


def example_answer(sides: Sides, example: Example) -> Answer:
    """Try an example."""
    found: Violation | None = None
    left_out: LeftOut | None = None
    options, begin = sides.options, time.monotonic()
    try:
        both = (sides.subject, options.policy, sides.compared)
        found = example_violation(example, *both, options.level)
    except LeftOut as reason:
        left_out = reason
    return Answer(found, left_out, time.monotonic() - begin)


def plans(sides: Sides, batch: int, names: Sequence[str]) -> Drawn:
    """Random models to plan for, beside a batch of programs."""
    return Drawn(batch, tuple(example(sides, name) for name in names))


def programs(sides: Sides, batch: int, is_last: bool, drawn: Sequence[Program]) -> Drawn:
    """Random programs, as far as the subject can do them."""
    return Drawn(batch, tuple(_run(sides, drawn)), len(drawn), is_last)


def _run(sides: Sides, drawn: Sequence[Program]) -> Iterator[Answer]:
    """As far as there is patience: whoever takes the answers will ask for no more."""
    hashes_matter, oracle, lost = sides.hashes_matter, sides.oracle, 0.0
    for program in drawn:
        asked = (program, sides.subject.capabilities, sides.options.policy)
        fitting = random_program(*asked, hashes_matter=hashes_matter, oracle=oracle)
        if fitting is not None and lost < watchdog.PATIENCE_SECONDS:
            answer = program_answer(sides, fitting)
            lost += answer.lost_seconds
            yield answer


def calls_of(
    sides: Sides, batch: int, drawn: Sequence[Program], is_whole: bool, at_once: int
) -> Iterator[Call]:
    """The programs of a batch, so many a call; the last call of a whole batch is marked."""
    for first in range(0, len(drawn), at_once):
        is_last = is_whole and first + at_once >= len(drawn)
        yield programs, (sides, batch, is_last, drawn[first : first + at_once])
