"""The state machine of whole steps: those of a subject, and those of the loop over the oracle."""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from typing import ClassVar, TypeAlias

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, rule

from kvcheck.judge.machine import RANDOMS
from kvcheck.rules.random_batches import Engine

EngineOf: TypeAlias = Callable[[Random], Engine]
"""An engine over two implementations that compares what they do."""


class StepMachine(RuleBasedStateMachine):
    """Whole steps: the subject's own, and those of the loop over the oracle."""

    engine_of: ClassVar[EngineOf]

    @initialize(random=RANDOMS)
    def create(self, random: Random) -> None:
        """Draw a configuration and create two managers for it."""
        self.engine = type(self).engine_of(random)

    @rule(count=st.integers(1, 3))
    def arrive(self, count: int) -> None:
        """Register requests."""
        for _ in range(min(count, self.engine.max_requests - len(self.engine.handles))):
            self.engine.arrive()

    @rule(ticks=st.integers(1, 9))
    def step(self, ticks: int) -> None:
        """Perform one plan in which each request continues, finishes or is preempted."""
        self.engine.clock.now += ticks
        self.engine.step(self.engine.plan())

    @rule()
    def take_deltas(self) -> None:
        """Take the remaining rows."""
        self.engine.take_deltas()

    @rule()
    def look_up(self) -> None:
        """Look up hits of some requests that are not admitted."""
        self.engine.look_up(self.engine.some(self.engine.handles, 0.5))

    @rule()
    def break_rules(self) -> None:
        """Try every way in which a plan may be illegal; nothing may change."""
        self.engine.try_broken(self.engine.plan())


def step_machine(engine: EngineOf) -> type[StepMachine]:
    """Return the machine of whole steps over the engines that `engine` makes."""
    return type("StepMachine", (StepMachine,), {"engine_of": staticmethod(engine)})
