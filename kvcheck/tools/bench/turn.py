"""A contestant's turn in a round: the time of each phase, and results on which all must agree."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from math import inf
from typing import Any

from kvcheck.play.difference import first_difference
from kvcheck.tools.bench.calls import APPEND, SUMS, UnequalWorkError
from kvcheck.tools.bench.script import ROOM, Act, Do, Step
from kvcheck.tools.bench.work import Work

Clock = Callable[[], int]
"""Nanoseconds, from any start."""

Results = dict[tuple[str, int], tuple[str, Sequence[Any]]]
"""By phase and part: the first contestant of a round, and its results."""


class TooSlowError(Exception):
    """Raised by a turn that took more nanoseconds than it may."""

    def __init__(self, took_ns: int) -> None:
        super().__init__(f"{took_ns} ns and no end")
        self.took_ns = took_ns


class Turn:
    """`spent[phase]`: nanoseconds, and the units that they are divided by. `kept`: results."""

    def __init__(self, name: str, label: str, work: Work, clock: Clock) -> None:
        self.spent: dict[str, tuple[int, int]] = {}
        self.kept: list[tuple[str, Sequence[Any]]] = []
        self.work = work
        self._name, self._label, self._clock = name, label, clock

    def play(self, steps: Iterable[Step], most_ns: float = inf) -> None:
        """Do the acts of each step. Raises UnequalWorkError if an outcome is not the wanted one,
        and TooSlowError after a step that ends more than `most_ns` nanoseconds after the begin.
        """
        calls, began = self.work.calls, self._clock()
        with calls.around():
            for step in steps:
                if (took_ns := self._clock() - began) > most_ns:
                    raise TooSlowError(took_ns)
                calls.new_step_starts()
                for do in step:
                    self._do(do)
                calls.end_step()
        for phase, parts in SUMS.items():
            spent = [self.spent[part] for part in parts if part in self.spent]
            if spent:
                self.spent[phase] = sum(each for each, _ in spent), spent[-1][1]

    def _do(self, do: Do) -> None:
        clock, part = self._clock, self.work.part(do)
        work = part.work
        began = clock()
        result = work()
        ended = clock()
        results = part.read(result)
        if do.phase and do.phase not in self.work.not_timed:
            spent, units = self.spent.get(do.phase, (0, 0))
            self.spent[do.phase] = spent + ended - began, units + do.units
        if results and (do.phase in self.spent or do.act is Act.HASHES):
            self.kept.append((do.phase or APPEND, results))
        for wanted, each in zip(do.wants, map(outcome, results), strict=False):
            if wanted != each:
                phase = do.phase or do.act.name.lower()
                raise UnequalWorkError(phase, self._label, "the case", self._name, wanted, each)

    def compare(self, first: Results) -> None:
        """Raise UnequalWorkError at the first result that differs from those of a round."""
        parts: Counter[str] = Counter()
        for what, results in self.kept:
            parts[what] += 1
            other, expected = first.setdefault((what, parts[what]), (self._name, results))
            found = None if expected == results else first_difference([*expected], [*results])
            if found is not None:
                raise UnequalWorkError(what, self._label, other, self._name, *found[1:])


def outcome(result: Any) -> Any:
    """Return the hit in tokens, `ROOM` for blocks without one, None for a refusal."""
    return result[0] if isinstance(result, tuple) else ROOM if isinstance(result, list) else result
