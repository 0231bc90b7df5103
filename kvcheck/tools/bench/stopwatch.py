"""A contestant's turn in a round: the time of each phase, and results on which all must agree.

Times of unequal work mean nothing, so every result is compared: after the turn, since comparing
between two timed parts would displace data of the second from the processor's caches.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from kvcheck.play.difference import first_difference
from kvcheck.tools.bench.calls import Calls, UnequalWorkError
from kvcheck.tools.bench.work import Part

Clock = Callable[[], int]
"""Nanoseconds, from any start."""

Results = dict[tuple[str, int], tuple[str, Sequence[Any]]]
"""By phase and part: the first contestant of a round, and its results."""


class Turn:
    """`spent[phase]`: nanoseconds, and the units that they are divided by. `kept`: results."""

    def __init__(self, name: str, label: str, calls: Calls, clock: Clock) -> None:
        self.spent: dict[str, tuple[int, int]] = {}
        self._name = name
        self._label = label
        self._calls = calls
        self._clock = clock
        self.kept: list[tuple[str, Sequence[Any]]] = []

    def __call__(self, phase: str, units: int, part: Part) -> tuple[Any, Sequence[Any]]:
        """Time a part and keep its results; return the work's result, and those."""
        clock, work = self._clock, part.work
        began = clock()
        result = work()
        ended = clock()
        results = part.read(result)
        if phase not in self._calls.not_timed:
            spent, counted = self.spent.get(phase, (0, 0))
            self.spent[phase] = spent + ended - began, counted + units
            self.keep(phase, results)
        return result, results

    def add_up(self, phase: str, phases: Sequence[str], units: int) -> None:
        """Note a phase that is the sum of others, as far as these ran."""
        self.spent[phase] = sum(self.spent.get(each, (0, 0))[0] for each in phases), units

    def keep(self, what: str, results: Sequence[Any]) -> None:
        self.kept.append((what, results))

    def demand(self, phase: str, wanted: object, got: Iterable[object]) -> None:
        """Check that a case is what it claims, even if all managers agree that it is not."""
        for each in got:
            if each != wanted:
                raise UnequalWorkError(phase, self._label, "the case", self._name, wanted, each)

    def demand_room(self, phase: str, results: Sequence[Any]) -> None:
        """Check that all requests got blocks, so that no refusals are timed."""
        self.demand(phase, "room", ["room" if each is not None else None for each in results])

    def compare(self, first: Results) -> None:
        """Raise UnequalWorkError at the first result that differs from those of a round.

        Lengths are compared among all contestants, the rest among those with equal names of blocks.
        """
        parts: Counter[str] = Counter()
        for what, results in self.kept:
            parts[what] += 1
            if results and not self._calls.has_own_names:
                self._compare(first, what, parts[what], results)
            if results:
                lengths = [outline(each) for each in results]
                self._compare(first, f"{what}, lengths", parts[what], lengths)

    def _compare(self, first: Results, what: str, part: int, results: Sequence[Any]) -> None:
        name, expected = first.setdefault((what, part), (self._name, results))
        found = None if expected == results else first_difference([*expected], [*results])
        if found is not None:
            raise UnequalWorkError(what, self._label, name, self._name, *found[1:])


def outline(result: Any) -> Any:
    """Reduce a result to lengths, which managers with other block names can compare."""
    if isinstance(result, list):
        return len(result)
    if isinstance(result, tuple):
        return tuple(map(outline, result))
    return result
