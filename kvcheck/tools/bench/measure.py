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
from kvcheck.tools.bench.stopwatch import Answers, Clock, Stopwatch
from kvcheck.tools.bench.work import INCLUDES as BATCHED_INCLUDES
from kvcheck.tools.bench.work import BatchedWork, Rows, Work
from kvspec.batched import BatchedImplementation
from kvspec.interface import Feature, Implementation


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


Progress = Callable[[str], None]
"""Called with the case's label once per turn of a contestant, `turns` times in all."""


@dataclass(frozen=True)
class Patience:
    """How long a contestant may take in one case, in seconds; else it is left out and reported.

    `rounds_s`: for all rounds, estimated from the uncounted one. `prepare_s`: for filling a pool,
    estimated from the smaller one before.
    """

    rounds_s: float = 30.0
    prepare_s: float = 90.0


def turns(plan: Plan, num_contestants: int) -> int:
    """Count all turns: in every case one for each round and one that is not counted."""
    return len(plan.cases) * (plan.num_rounds + 1) * num_contestants


def measure(
    plan: Plan,
    subjects: Sequence[Subject],
    *,
    clock: Clock = time.perf_counter_ns,
    on_turn: Progress = lambda label: None,
    patience: Patience = Patience(),
) -> Measured:
    """Run the plan.

    Raises UnequalWorkError at the first result in which two subjects differ, and any exception of a
    subject, such as UnsupportedError if it lacks the hash function.
    """
    run = _Run(contestants(subjects), plan.num_rounds, clock, on_turn, patience)
    for case in plan.cases:
        with _collector_off():
            run.measure_case(case)
    return Measured(tuple(run.found), run.includes, _timer_ns(clock), tuple(run.left_out))


class _Run:
    def __init__(
        self,
        contestants: tuple[Contestant, ...],
        num_rounds: int,
        clock: Clock,
        on_turn: Progress,
        patience: Patience,
    ) -> None:
        self.contestants = contestants
        self.num_rounds = num_rounds
        self.clock = clock
        self.on_turn = on_turn
        self.patience = patience
        self.order = Random(0)
        self.includes: dict[str, str] = {}
        self.found: list[Measurement] = []
        self.left_out: list[LeftOut] = []
        self._fill_s_per_block: dict[str, float] = {}

    def measure_case(self, case: Case) -> None:
        """Prepare the contestants that are fast enough, then do the rounds."""
        found: dict[str, Measurement] = {}
        playing: dict[str, tuple[Scenario, Stopwatch]] = {}
        for contestant in self.contestants:
            scenario = self._prepared(contestant, case)
            if scenario is not None:
                playing[contestant.name] = scenario, Stopwatch(self.clock)
        gc.collect()
        gc.freeze()
        for number in range(self.num_rounds + 1):
            answers = Answers(case)
            for name in self.order.sample(list(playing), len(playing)):
                scenario, watch = playing[name]
                gc.collect()
                began = self.clock()
                self._run_round(scenario, watch.start_round(name, answers, scenario.work.calls))
                spent_s = (self.clock() - began) / 1e9
                self.on_turn(case.label)
                if number > 0:
                    for phase, spent, units in watch.spent():
                        kept = found.setdefault(phase, Measurement(case, phase, units))
                        kept.rounds_ns.setdefault(name, []).append(spent / units)
                elif spent_s * self.num_rounds > self.patience.rounds_s:
                    del playing[name]
                    self._leave_out(case, name, spent_s * self.num_rounds, self.num_rounds)
        # The first contestant of the first round may lack a phase.
        phases = [phase for scenario, _ in playing.values() for phase in scenario.phases]
        self.found += sorted(found.values(), key=lambda each: phases.index(each.phase))

    def _run_round(self, scenario: Scenario, watch: Stopwatch) -> None:
        try:
            with scenario.work.calls.around():
                scenario.run_round(watch)
        finally:
            # Even if the round ended early: an earlier difference is the reason, and is reported.
            watch.compare()

    def _prepared(self, contestant: Contestant, case: Case) -> Scenario | None:
        """Prepare the case; None if filling takes too long or nothing would be timed."""
        fills = isinstance(case, PromptCase) and case.cold
        name = contestant.name
        wanted_s = self._fill_s_per_block.get(name, 0.0) * case.num_blocks if fills else 0.0
        if wanted_s > self.patience.prepare_s:
            self._leave_out(case, name, wanted_s, self.num_rounds + 1)
            return None
        began = self.clock()
        scenario = scenario_of(contestant, case, self.num_rounds + 1)
        calls = scenario.work.calls
        if calls.not_timed.issuperset(scenario.phases):
            self._skip(case, self.num_rounds + 1)
            return None
        includes = BATCHED_INCLUDES if contestant.is_batched else calls.includes
        self.includes[name] = includes
        with calls.around():
            scenario.prepare()
        if fills:
            self._fill_s_per_block[name] = (self.clock() - began) / 1e9 / case.num_blocks
        return scenario

    def _leave_out(self, case: Case, name: str, seconds: float, turns_left: int) -> None:
        self.left_out.append(LeftOut(case, name, seconds))
        self._skip(case, turns_left)

    def _skip(self, case: Case, turns_left: int) -> None:
        for _ in range(turns_left):
            self.on_turn(case.label)


Scenario = PromptScenario | DecodeScenario | ReplayScenario


def scenario_of(contestant: Contestant, case: Case, num_rounds: int) -> Scenario:
    """Return the work of this case; `num_rounds`: those left, including the uncounted one."""

    def new_work() -> Work:
        return work_of(contestant, case)

    if isinstance(case, ReplayCase):
        return ReplayScenario(new_work(), new_work, case)
    if isinstance(case, DecodeCase):
        return DecodeScenario(contestant.name, new_work(), case)
    return PromptScenario(contestant.name, new_work(), case, num_rounds)


def work_of(contestant: Contestant, case: Case) -> Work:
    implementation = contestant.subject.implementation
    manager = new_manager(implementation, config_of(case))
    calls = calls_of(implementation, manager)
    if contestant.is_batched and isinstance(implementation, BatchedImplementation):
        return BatchedWork(implementation.batched(manager), calls, Rows(case.max_new_blocks))
    return Work(calls)


@contextmanager
def _collector_off() -> Iterator[None]:
    was_on, was_frozen = gc.isenabled(), gc.get_freeze_count() > 0
    gc.disable()
    try:
        yield
    finally:
        if (
            not was_frozen
        ):  # objects frozen by a caller cannot be distinguished from those frozen here
            gc.unfreeze()
        if was_on:
            gc.enable()
        gc.collect()


def _timer_ns(clock: Clock) -> float:
    """Measure the overhead of a timed part: reading the clock, and a loop over one call."""
    taken = []
    for _ in range(200):
        began = clock()
        _ = _one_call()
        taken.append(clock() - began)
    return median(taken)


def _one_call() -> list[int]:
    return [abs(each) for each in (0,)]
