"""Rounds: each manager does the same work, in random order, and its times are kept.

The garbage collector is off from the first round of a case to its last; the objects that managers
hold by then are frozen, and garbage of a round is collected before each turn.
"""

from __future__ import annotations

import gc
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from random import Random
from statistics import median

from kvcheck.tools.bench.calls import calls_of, new_manager
from kvcheck.tools.bench.cases import Case, DecodeCase, Plan, PromptCase, ReplayCase, config_of
from kvcheck.tools.bench.replay import ReplayScenario
from kvcheck.tools.bench.scenarios import DecodeScenario, PromptScenario
from kvcheck.tools.bench.stopwatch import Clock, Results, Turn
from kvcheck.tools.bench.work import INCLUDES as BATCHED_INCLUDES
from kvcheck.tools.bench.work import BatchedWork, Work
from kvspec.batched import BatchedImplementation
from kvspec.interface import Feature, Implementation

PATIENCE_S = 30.0
PREPARE_FACTOR = 3
"""Filling a pool may take this many times as long as the rounds of a case."""


@dataclass(frozen=True)
class Subject:
    """One implementation under the name that the user gave it."""

    name: str
    implementation: Implementation


@dataclass(frozen=True)
class Contestant:
    subject: Subject
    is_batched: bool = False

    @property
    def name(self) -> str:
        """Subject name, plus the call style where styles differ."""
        return f"{self.subject.name}, batched" if self.is_batched else self.subject.name


def contestants(subjects: Iterable[Subject]) -> tuple[Contestant, ...]:
    """Return every subject with single calls, and those with their own batched calls also with
    these.
    """
    found = []
    for subject in subjects:
        found.append(Contestant(subject))
        features = subject.implementation.capabilities.features
        if Feature.BATCHED in features and isinstance(
            subject.implementation, BatchedImplementation
        ):
            found.append(Contestant(subject, is_batched=True))
    return tuple(found)


@dataclass(frozen=True)
class Measurement:
    """One phase of one case: `rounds_ns[name]` has nanoseconds per unit, one number per round.

    `units_per_round`: blocks or requests that went through the phase in each round; 1 for what is
    not divided. Only those contestants have numbers that took part and have the phase.
    """

    case: Case
    phase: str
    units_per_round: int
    rounds_ns: dict[str, list[float]] = field(default_factory=dict)


@dataclass(frozen=True)
class LeftOut:
    """A contestant left out of a case because its rounds would take too long."""

    case: Case
    name: str
    seconds: float


@dataclass(frozen=True)
class Measured:
    """All results. `includes`: what a contestant's times include; `timer_ns`: of an empty loop."""

    measurements: tuple[Measurement, ...]
    includes: dict[str, str]
    timer_ns: float
    left_out: tuple[LeftOut, ...] = ()


def measure(
    plan: Plan,
    subjects: Sequence[Subject],
    *,
    clock: Clock = time.perf_counter_ns,
    on_case: Callable[[str], None] = lambda label: None,
    patience_s: float = PATIENCE_S,
) -> Measured:
    """Run the plan; `on_case` is called with the label of each case that begins.

    A contestant is left out of a case if its rounds would take longer than `patience_s`, as its
    uncounted round says, or filling its pool `PREPARE_FACTOR` times as long, as the smaller one
    says. Raises UnequalWorkError at the first result in which two subjects differ, and any
    exception of a subject, such as UnsupportedError if it lacks the hash function.
    """
    run = _Run(contestants(subjects), plan.num_rounds, clock, patience_s)
    for case in plan.cases:
        on_case(case.label)
        with _collector_off():
            run.measure_case(case)
    return Measured(tuple(run.found), run.includes, _timer_ns(clock), tuple(run.left_out))


class _Run:
    def __init__(
        self,
        contestants: tuple[Contestant, ...],
        num_rounds: int,
        clock: Clock,
        patience_s: float,
    ) -> None:
        self.contestants = contestants
        self.num_rounds = num_rounds
        self.clock = clock
        self.patience_s = patience_s
        self.order = Random(0)
        self.includes: dict[str, str] = {}
        self.found: list[Measurement] = []
        self.left_out: list[LeftOut] = []
        self._fill_s_per_block: dict[str, float] = {}

    def measure_case(self, case: Case) -> None:
        """Prepare the contestants that are fast enough, then do the rounds."""
        found: dict[str, Measurement] = {}
        prepared = {each.name: self._prepared(each, case) for each in self.contestants}
        playing = {name: scenario for name, scenario in prepared.items() if scenario is not None}
        gc.collect()
        gc.freeze()
        for number in range(self.num_rounds + 1):
            first: Results = {}
            for name in self.order.sample(list(playing), len(playing)):
                gc.collect()
                began = self.clock()
                turn = self._turn(name, case, playing[name], first)
                needed_s = (self.clock() - began) / 1e9 * self.num_rounds
                if number > 0:
                    for phase, (spent, units) in turn.spent.items():
                        kept = found.setdefault(phase, Measurement(case, phase, units or 1))
                        kept.rounds_ns.setdefault(name, []).append(spent / (units or 1))
                elif needed_s > self.patience_s:
                    del playing[name]
                    self.left_out.append(LeftOut(case, name, needed_s))
        # The first contestant of the first round may lack a phase.
        phases = [phase for scenario in playing.values() for phase in scenario.phases]
        self.found += sorted(found.values(), key=lambda each: phases.index(each.phase))

    def _turn(self, name: str, case: Case, scenario: Scenario, first: Results) -> Turn:
        calls = scenario.work.calls
        turn = Turn(name, case.label, calls, self.clock)
        try:
            with calls.around():
                scenario.run_round(turn)
        finally:
            # Even if the round ended early: an earlier difference is the reason, and is reported.
            turn.compare(first)
        return turn

    def _prepared(self, contestant: Contestant, case: Case) -> Scenario | None:
        """Prepare the case; None if filling takes too long or nothing would be timed."""
        fills = isinstance(case, PromptCase) and case.cold
        name = contestant.name
        wanted_s = self._fill_s_per_block.get(name, 0.0) * case.num_blocks if fills else 0.0
        if wanted_s > PREPARE_FACTOR * self.patience_s:
            self.left_out.append(LeftOut(case, name, wanted_s))
            return None
        began = self.clock()
        scenario = scenario_of(contestant, case, self.num_rounds + 1)
        calls = scenario.work.calls
        if calls.not_timed.issuperset(scenario.phases):
            return None
        self.includes[name] = BATCHED_INCLUDES if contestant.is_batched else calls.includes
        with calls.around():
            scenario.prepare(Turn(name, case.label, calls, self.clock))
        if fills:
            self._fill_s_per_block[name] = (self.clock() - began) / 1e9 / case.num_blocks
        return scenario


Scenario = PromptScenario | DecodeScenario | ReplayScenario


def scenario_of(contestant: Contestant, case: Case, num_rounds: int) -> Scenario:
    """Return the work of this case; `num_rounds`: those left, including the uncounted one."""

    def new_work() -> Work:
        implementation = contestant.subject.implementation
        manager = new_manager(implementation, config_of(case))
        calls = calls_of(implementation, manager)
        if contestant.is_batched and isinstance(implementation, BatchedImplementation):
            return BatchedWork(implementation.batched(manager), calls, case.max_new_blocks)
        return Work(calls)

    if isinstance(case, ReplayCase):
        return ReplayScenario(new_work(), new_work, case)
    if isinstance(case, DecodeCase):
        return DecodeScenario(new_work(), case)
    return PromptScenario(new_work(), case, num_rounds)


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
    """Measure the overhead of a timed part: reading the clock, and a loop over one call."""
    taken = []
    for _ in range(200):
        began = clock()
        _ = [abs(each) for each in (0,)]
        taken.append(clock() - began)
    return median(taken)
