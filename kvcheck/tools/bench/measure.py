"""Rounds: each manager does the same work, in random order, and its times are kept.

The garbage collector is off from the first round of a case to its last; the objects that managers
hold by then are frozen, and garbage of a round is collected before each turn.

Times of unequal work mean nothing, so every result is compared: after the turn, since comparing
between two timed parts would displace data of the second from the processor's caches.
"""

from __future__ import annotations

import gc
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from math import inf
from random import Random
from statistics import median

from kvcheck.tools.bench.calls import calls_of, new_manager
from kvcheck.tools.bench.script import Case, Plan
from kvcheck.tools.bench.turn import Clock, Results, TooSlowError, Turn
from kvcheck.tools.bench.work import INCLUDES, BatchedWork, Work
from kvspec.batched import BatchedImplementation
from kvspec.interface import Feature, Implementation

PATIENCE_S = 30.0


@dataclass(frozen=True)
class Contestant:
    """One implementation, under the name that the user gave it, by one style of calls."""

    subject: str
    implementation: Implementation
    is_batched: bool = False

    @property
    def name(self) -> str:
        return f"{self.subject}, batched" if self.is_batched else self.subject

    def work(self, case: Case) -> Work:
        """Return the work on a new manager."""
        manager = new_manager(self.implementation, case.config())
        calls = calls_of(self.implementation, manager)
        if self.is_batched and isinstance(self.implementation, BatchedImplementation):
            return BatchedWork(self.implementation.batched(manager), calls)
        return Work(calls)


def contestants(name: str, implementation: Implementation) -> tuple[Contestant, ...]:
    """Return an implementation with single calls, and with its own batched calls if it has any."""
    has_own = Feature.BATCHED in implementation.capabilities.features
    styles = (False, True) if has_own else (False,)
    return tuple(Contestant(name, implementation, is_batched) for is_batched in styles)


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


@dataclass
class Measured:
    """All results. `includes`: what a contestant's times include; `timer_ns`: of an empty loop.

    `left_out`: cases whose rounds would have taken a contestant too long, in seconds.
    """

    timer_ns: float
    measurements: list[Measurement] = field(default_factory=list)
    includes: dict[str, str] = field(default_factory=dict)
    left_out: list[tuple[Case, str, float]] = field(default_factory=list)


class _Player:
    """A contestant in a case: its manager, the rounds to come, and the time of the last one."""

    def __init__(self, contestant: Contestant, case: Case, num_rounds: int, clock: Clock) -> None:
        self.contestant, self.case, self.clock = contestant, case, clock
        self.work = contestant.work(case)
        self.rounds = case.rounds(num_rounds)
        self.took_ns = 0

    def turn(self, first: Results, most_ns: float = inf) -> Turn:
        """Play the next round; the one before the first prepares the pool."""
        began = self.clock()
        if self.case.is_anew:
            self.work = self.contestant.work(self.case)
        turn = Turn(self.contestant.name, self.case.label, self.work, self.clock)
        try:
            turn.play(next(self.rounds), most_ns)
        finally:
            # Even if the round ended early: an earlier difference is the reason, and is reported.
            turn.compare(first)
        self.took_ns = self.clock() - began
        return turn


def measure(
    plan: Plan,
    playing: Sequence[Contestant],
    *,
    clock: Clock = time.perf_counter_ns,
    on_case: Callable[[str], None] = lambda label: None,
) -> Measured:
    """Run the plan; `on_case` is called with the label of each case that begins.

    A contestant is left out of a case if its rounds would take longer than `PATIENCE_S`, as its
    preparation and its uncounted round say, and of further, larger ones of this kind; never of a
    replay, which was asked for. Raises UnequalWorkError at the first result in which two differ,
    and any exception of an implementation, such as UnsupportedError if it lacks the hash function.
    """
    found, order = Measured(_timer_ns(clock)), Random(0)
    for case in plan.cases:
        on_case(case.label)
        with _collector_off():
            players = list(_prepared(case, plan, playing, found, clock))
            _measure_case(case, players, plan.num_rounds, found, order)
    return found


def _prepared(
    case: Case, plan: Plan, playing: Sequence[Contestant], found: Measured, clock: Clock
) -> Iterator[_Player]:
    """Yield those that were not too slow for a smaller case."""
    slow = {name for smaller, name, _ in found.left_out if smaller.kind == case.kind}
    for each in playing:
        if each.name not in slow:
            player = _Player(each, case, plan.num_rounds + 1, clock)
            found.includes[each.name] = INCLUDES if each.is_batched else player.work.calls.includes
            try:
                player.turn({}, inf if case.is_anew else 1e9 * PATIENCE_S)
            except TooSlowError as error:
                found.left_out.append((case, each.name, error.took_ns / 1e9))
            else:
                yield player


def _measure_case(
    case: Case, players: list[_Player], num_rounds: int, found: Measured, order: Random
) -> None:
    kept: dict[str, Measurement] = {}
    preparing_ns = {each.contestant.name: each.took_ns for each in players}
    gc.collect()
    gc.freeze()
    for number in range(num_rounds + 1):
        first: Results = {}
        for player in order.sample(players, len(players)):
            gc.collect()
            turn, name = player.turn(first), player.contestant.name
            needed_s = (preparing_ns[name] + player.took_ns * num_rounds) / 1e9
            if number == 0 and needed_s > PATIENCE_S and not case.is_anew:
                players.remove(player)
                found.left_out.append((case, name, needed_s))
            for phase, (spent, units) in turn.spent.items() if number else ():
                measurement = kept.setdefault(phase, Measurement(case, phase, units or 1))
                measurement.rounds_ns.setdefault(name, []).append(spent / (units or 1))
    # The first contestant of the first round may lack a phase.
    found.measurements += sorted(kept.values(), key=lambda each: case.phases.index(each.phase))


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
