"""Times of a round, phase by phase, and the results on which all contestants must agree.

Times of unequal work mean nothing, so every result is compared: after the round, since comparing
between two timed parts would displace data of the second from the processor's caches.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from kvcheck.play.difference import first_difference
from kvcheck.tools.bench.calls import Calls, UnequalWorkError
from kvcheck.tools.bench.cases import Case
from kvcheck.tools.bench.work import Part, outline

Clock = Callable[[], int]
"""Nanoseconds, from any start."""


class Answers:
    """The results of the first contestant in a round, to be compared with the others'."""

    def __init__(self, case: Case) -> None:
        self.case = case
        self._first: dict[tuple[str, int], tuple[str, Sequence[Any]]] = {}

    def compare(self, phase: str, index: int, name: str, answers: Sequence[Any]) -> None:
        """Raise UnequalWorkError unless the results equal those of the first subject."""
        first, expected = self._first.setdefault((phase, index), (name, answers))
        if expected == answers:
            return
        found = first_difference(list(expected), list(answers))
        if found is not None:
            raise UnequalWorkError(phase, self.case.label, first, name, *found[1:])


class Stopwatch:
    """Adds up the time of each phase over one round; the sum is what a round is worth."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._name = ""
        self._answers: Answers | None = None
        self._has_own_names = False
        self._not_timed: frozenset[str] = frozenset()
        self._spent: dict[str, tuple[int, int]] = {}
        self._kept: list[tuple[str, Sequence[Any]]] = []

    def start_round(self, name: str, answers: Answers, calls: Calls) -> Stopwatch:
        self._name, self._answers = name, answers
        self._has_own_names, self._not_timed = calls.has_own_names, calls.not_timed
        self._spent = {}
        self._kept = []
        return self

    def __call__(self, phase: str, units: int, part: Part) -> tuple[Any, Sequence[Any]]:
        """Time a part and keep its results; return the work's result, and those.

        The time of a round is divided by the `units` of all its parts; 0: not divided.
        """
        clock, work = self._clock, part.work
        began = clock()
        result = work()
        ended = clock()
        answers = part.read(result)
        if phase not in self._not_timed:
            spent, counted = self._spent.get(phase, (0, 0))
            self._spent[phase] = spent + ended - began, counted + units
            self.keep(phase, answers)
        return result, answers

    def keep(self, what: str, answers: Sequence[Any]) -> None:
        """Keep results that were assembled in another way, also to be compared."""
        self._kept.append((what, answers))

    def compare(self) -> None:
        """Raise UnequalWorkError at the first result of the round that differs.

        Lengths are compared among all contestants, the rest among those with equal names of blocks.
        """
        kept, self._kept = self._kept, []
        parts: Counter[str] = Counter()
        for what, answers in kept:
            index = parts[what]
            parts[what] += 1
            if self._answers is None or not answers:
                continue
            outlines = [outline(answer) for answer in answers]
            if not self._has_own_names:
                self._answers.compare(what, index, self._name, answers)
            self._answers.compare(f"{what}, lengths", index, self._name, outlines)

    def add_up(self, phase: str, phases: Sequence[str], units: int) -> None:
        """Note a phase that is the sum of others, as far as these ran."""
        self._spent[phase] = sum(self._spent.get(each, (0, 0))[0] for each in phases), units

    def spent(self) -> Iterator[tuple[str, int, int]]:
        for phase, (spent, units) in self._spent.items():
            yield phase, spent, units or 1
