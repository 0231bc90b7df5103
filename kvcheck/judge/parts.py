"""The independent parts of a check, as calls for `kvcheck.tasks`.

An answer records what the subject did. Its meaning for the run depends on earlier findings and is
decided by the caller that takes the answers in order (`kvcheck.judge.suite`).
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

PROGRAMS_OF_A_CALL = 10
"""Random programs per call to a worker: about a tenth of a second."""

SLOW_SECONDS = 2.0
"""A failing program that takes longer is taken to hang; others take milliseconds."""


@dataclass(frozen=True)
class Answer:
    """The outcome of a program or an example, and its seconds.

    `left_out`: it did not run. `situations` that occurred.
    """

    violation: Violation | None = None
    left_out: LeftOut | None = None
    seconds: float = 0.0
    situations: Counter[str] = field(default_factory=Counter)

    @property
    def lost_seconds(self) -> float:
        """Return the seconds of a failure that hangs somewhere."""
        return self.seconds if self.violation and self.seconds > SLOW_SECONDS else 0.0


def answer(sides: Sides, part: Program | Example) -> Answer:
    situations: Counter[str] = Counter()
    found: Violation | None = None
    left_out: LeftOut | None = None
    subject, options, begin = sides.subject, sides.options, time.monotonic()
    try:
        if isinstance(part, Program):
            found = first_violation(part, subject, options.level, sides.compared, situations)
        else:
            about = (part, subject, options.policy, sides.compared, options.level)
            found = example_violation(*about)
    except LeftOut as reason:
        left_out = reason
    return Answer(found, left_out, time.monotonic() - begin, situations)


def example(sides: Sides, name: str) -> Answer:
    """Run an example, or a random model to plan for, by its name."""
    return answer(sides, find_example(name))


def plans(sides: Sides, names: Sequence[str]) -> tuple[Answer, ...]:
    return tuple(example(sides, name) for name in names)


def programs(sides: Sides, drawn: Sequence[Program]) -> tuple[Answer, ...]:
    """Run random programs, as far as the subject supports them."""
    return tuple(_run(sides, drawn))


def _run(sides: Sides, drawn: Sequence[Program]) -> Iterator[Answer]:
    """Run until patience ends: the caller that takes the answers will then ask for no more."""
    hashes_matter, oracle, lost = sides.hashes_matter, sides.oracle, 0.0
    for program in drawn:
        asked = (program, sides.subject.capabilities, sides.options.policy)
        fitting = random_program(*asked, hashes_matter=hashes_matter, oracle=oracle)
        if fitting is not None and lost < watchdog.PATIENCE_SECONDS:
            found = answer(sides, fitting)
            lost += found.lost_seconds
            yield found
