"""The end of a walk that shows a violation, made small: from late in the walk, then call by call.

Every candidate is performed on an oracle, which says what is right in it, and followed by the
subject.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from operator import attrgetter

from kvcheck.judge.static import Parting, Recorded, followed
from kvcheck.play.shrink import smallest
from kvcheck.play.verdicts import Level, Violation
from kvcheck.records.script import Script, perform, script_of
from kvcheck.records.smaller import smaller
from kvspec.errors import KVSpecError
from kvspec.interface import Implementation
from kvspec.record import Operation


def smaller_walk(
    parting: Parting,
    walk: Recorded,
    subject: Implementation,
    oracle: Implementation,
    level: Level,
    seconds: float,
    same: Callable[[Violation], object] = attrgetter("kind"),
    *,
    attempts: float = math.inf,
) -> Violation:
    """The violation by the shortest story found in this time and, once one begins late enough, in
    these attempts; as it is if there is none."""
    deadline = time.monotonic() + seconds
    seeker = _Seeker(parting.violation, walk, subject, oracle, level, same)
    operations = walk.operations[: parting.num_operations]
    for start in _beginnings(operations):
        if time.monotonic() >= deadline:
            break
        script = script_of(walk.header.config, operations[start:])
        if seeker.shows(script):
            limits = {"seconds": deadline - time.monotonic(), "attempts": attempts}
            smallest(script, smaller, lambda one: one if seeker.shows(one) else None, **limits)
            break
    return seeker.best


@dataclass
class _Seeker:
    """Tries stories. `best`: the violation by the last one that shows it."""

    best: Violation
    walk: Recorded
    subject: Implementation
    oracle: Implementation
    level: Level
    same: Callable[[Violation], object]

    def shows(self, script: Script) -> bool:
        """Whether the last call shows the same violation; if so, it is the best one now."""
        try:
            recorder = perform(script, self.oracle)
        except KVSpecError:  # a configuration that there is no manager for
            return False
        if recorder is None:
            return False
        story = replace(self.walk, header=recorder.header, operations=tuple(recorder.operations))
        found = followed(story, self.subject, self.level, every_state=True)
        if found is None or found.num_operations < len(story.operations):
            return False
        if self.same(found.violation) != self.same(self.best):
            return False
        self.best = found.violation
        return True


def _beginnings(operations: Sequence[Operation]) -> Iterator[int]:
    """Where a story could begin: at moments when nobody held a block, from the last one back.

    First at the last moments, then at one twice as far back each time, last at the very start.
    """
    idle, holders = [0], dict[str, object]()
    for number, operation in enumerate(operations[:-1], 1):
        holders = operation.observed.state.get("req_blocks", holders)
        if not holders:
            idle.append(number)
    back = 1
    while back < len(idle):
        yield idle[-back]
        back *= 2
    yield 0
