"""Rounds: every manager does the same work in each, in an order drawn anew, and its times are kept.

The answers of all managers are compared, phase by phase: times of unequal work mean nothing. The
garbage collector is off from the first round of a case to its last; what the managers hold by then
is frozen, and what the rounds leave behind is collected before each turn.
"""

from __future__ import annotations

import gc
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from random import Random
from statistics import median
from typing import Any

from kvspec.bench.calls import calls_of
from kvspec.bench.cases import Case, Plan, config_of
from kvspec.bench.errors import UnequalWorkError
from kvspec.bench.scenarios import Scenario, scenario_of
from kvspec.interface import Implementation

Clock = Callable[[], int]
"""Nanoseconds, from any start."""


@dataclass(frozen=True)
class Subject:
    """One implementation under the name that the user gave it."""

    name: str
    implementation: Implementation


@dataclass(frozen=True)
class Measurement:
    """One phase of one case: `rounds_ns[name]` has nanoseconds per unit, one number per round.

    `units_per_round`: blocks or requests that went through the phase in each round.
    """

    case: Case
    phase: str
    units_per_round: int
    rounds_ns: dict[str, list[float]] = field(default_factory=dict)


@dataclass(frozen=True)
class Measured:
    """All of a run. `includes`: what is in each subject's times; `timer_ns`: of an empty loop."""

    measurements: tuple[Measurement, ...]
    includes: dict[str, str]
    timer_ns: float


Progress = Callable[[str], None]
"""Told the case's label once per turn of a subject, `turns` times in all."""


def turns(plan: Plan, num_subjects: int) -> int:
    """How often a subject has its turn; each round and the one not counted, in every case."""
    return len(plan.cases) * (plan.num_rounds + 1) * num_subjects


def measure(
    plan: Plan,
    subjects: Sequence[Subject],
    *,
    clock: Clock = time.perf_counter_ns,
    on_turn: Progress | None = None,
) -> Measured:
    """Run the plan.

    Raises UnequalWorkError at the first answer in which two subjects differ, and whatever a subject
    raises, such as UnsupportedError when it lacks the hash function.
    """
    order = Random(0)
    includes: dict[str, str] = {}
    found: list[Measurement] = []
    for case in plan.cases:
        found += _measure_case(case, plan.num_rounds, subjects, clock, order, on_turn, includes)
    return Measured(tuple(found), includes, _timer_ns(clock))


def _measure_case(
    case: Case,
    num_rounds: int,
    subjects: Sequence[Subject],
    clock: Clock,
    order: Random,
    on_turn: Progress | None,
    includes: dict[str, str],
) -> list[Measurement]:
    found: dict[str, Measurement] = {}
    with _collector_off():
        scenarios: dict[str, tuple[Scenario, Stopwatch]] = {}
        for subject in subjects:
            manager = subject.implementation.create(config_of(case), check_invariants=False)
            calls = calls_of(subject.implementation, manager)
            includes[subject.name] = calls.includes
            scenario = scenario_of(subject.name, calls, case, num_rounds + 1)
            with calls.around():
                scenario.prepare()
            scenarios[subject.name] = scenario, Stopwatch(clock)
        gc.collect()
        gc.freeze()
        for number in range(num_rounds + 1):
            answers = Answers(case)
            for name in order.sample(list(scenarios), len(scenarios)):
                scenario, watch = scenarios[name]
                gc.collect()
                with scenario.calls.around():
                    scenario.run_round(watch.start_round(name, answers))
                if number > 0:
                    watch.add_to(found, case, name)
                if on_turn is not None:
                    on_turn(case.label)
    return list(found.values())


class Answers:
    """What was answered in one round, by whoever came first, to be compared with the others."""

    def __init__(self, case: Case) -> None:
        self.case = case
        self._first: dict[tuple[str, int], tuple[str, Sequence[Any]]] = {}

    def compare(self, phase: str, index: int, name: str, answers: Sequence[Any]) -> None:
        """Raise UnequalWorkError unless they equal those of the first subject."""
        first, expected = self._first.setdefault((phase, index), (name, answers))
        if expected == answers:
            return
        for wanted, got in zip(expected, answers, strict=False):
            if wanted != got:
                cut = _cut(wanted, got)
                raise UnequalWorkError(phase, self.case.label, first, name, *cut)
        raise UnequalWorkError(phase, self.case.label, first, name, len(expected), len(answers))


def _cut(wanted: Any, got: Any) -> tuple[Any, Any]:
    """The first place in which two lists differ, and as they are what is not two lists."""
    if isinstance(wanted, list | tuple) and isinstance(got, list | tuple):
        for left, right in zip(wanted, got, strict=False):
            if left != right:
                return _cut(left, right)
        return f"{len(wanted)} items", f"{len(got)} items"
    return wanted, got


class Stopwatch:
    """Adds up the time of each phase over one round; the sum is what a round is worth."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._name = ""
        self._answers: Answers | None = None
        self._spent: dict[str, tuple[int, int, int]] = {}

    def start_round(self, name: str, answers: Answers) -> Stopwatch:
        """Forget the last round."""
        self._name, self._answers, self._spent = name, answers, {}
        return self

    def __call__(
        self, phase: str, units: int, work: Callable[[], Any], read: Callable[[Any], Sequence[Any]]
    ) -> Any:
        """See `kvspec.bench.scenarios.Timed`."""
        clock = self._clock
        began = clock()
        result = work()
        ended = clock()
        spent, counted, parts = self._spent.get(phase, (0, 0, 0))
        self._spent[phase] = spent + ended - began, counted + units, parts + 1
        if self._answers is not None:
            self._answers.compare(phase, parts, self._name, read(result))
        return result

    def add_to(self, found: dict[str, Measurement], case: Case, name: str) -> None:
        """Keep the round's time per unit."""
        for phase, (spent, units, _) in self._spent.items():
            kept = found.setdefault(phase, Measurement(case, phase, units))
            kept.rounds_ns.setdefault(name, []).append(spent / units)


@contextmanager
def _collector_off() -> Iterator[None]:
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        gc.unfreeze()
        if was_on:
            gc.enable()
        gc.collect()


def _timer_ns(clock: Clock) -> float:
    """What one timed part costs by itself: reading the clock, and a loop over one call."""
    taken = []
    for _ in range(200):
        began = clock()
        _ = _one_call()
        taken.append(clock() - began)
    return median(taken)


def _one_call() -> list[int]:
    return [abs(each) for each in (0,)]
