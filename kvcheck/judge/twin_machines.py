"""State machines over two implementations at once: compare every result, event and state.

    run_state_machine_as_test(twin_machine(subject, oracle))

| machine                   | calls       | sizes                                                |
|---------------------------|-------------|------------------------------------------------------|
| `twin_machine`            | single      | small, where everything happens often                |
| its `LaterTwinMachine`    | single      | small: later types of groups, hits inside a block    |
| `production_twin_machine` | single      | of production: long texts, large pools, options off  |
| `step_machine`            | whole steps | those of the engine that `engine` makes              |
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from random import Random
from typing import Any, ClassVar, TypeAlias

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule

from kvcheck.judge import generators
from kvcheck.judge.choices import OTHERS, with_policy
from kvcheck.judge.machine import MAX_REQUESTS, SchedulerMachine, Withdrawing
from kvcheck.judge.mixed_configs import INSIDE_CONFIGS, later_configs, mixed_configs
from kvcheck.judge.production import LongDraw, many_boundaries, production_config
from kvcheck.judge.single_configs import single_group_configs
from kvcheck.play import steps
from kvcheck.play.checks import CompareCheck, EventCheck
from kvcheck.play.runner import Check, Runner
from kvcheck.play.scheduler import PREEMPTED, WAITING
from kvcheck.play.situations import SituationCounter
from kvcheck.rules.random_batches import Engine
from kvspec.config import ManagerConfig
from kvspec.interface import Implementation

# Hypothesis draws what these give, and shrinks it.
RANDOMS = st.randoms(use_true_random=False)
OPTIONS = st.fixed_dictionaries(
    {
        "enable_events": st.booleans(),
        "log_stats": st.booleans(),
        "residency_sample_rate": st.sampled_from([0.0, 0.0, 0.5]),
        "hash_function": st.sampled_from(["sha256_cbor", "sha256_cbor", "given_8", "given_32"]),
    }
)
HOLDS = st.builds(
    steps.Hold,
    who=generators.WHO,
    group=st.integers(0, 3),
    index=generators.WHO,
    count=st.integers(1, 3),
    held=st.booleans(),
    free=st.booleans(),
)
CHOICES = st.sampled_from([None, None, None, *OTHERS])
"""Mostly None, else one policy that the rules do not choose by default."""
RETELLINGS = st.builds(
    steps.Retell,
    who=generators.WHO,
    fewer=st.integers(0, 9),
    tokens=st.lists(generators.TOKENS, max_size=5).map(tuple),
    is_prompt=st.booleans(),
)


FEW_BLOCKS = 256
"""Pools up to this size allow a hundred compared calls within tenths of a second."""


class TwinMachine(SchedulerMachine):
    """Perform the same steps on both, at small sizes; `oracle` is right."""

    oracle: ClassVar[Implementation]
    failed: ClassVar[list[steps.Program]]
    """The programs that showed a difference; Hypothesis runs the smallest last."""

    def do(self, step: steps.Step) -> None:
        """Perform the step, and keep the program if it fails."""
        step = self.as_reported(step)
        self.told.append(step)
        try:
            super().do(step)
        except Exception:
            type(self).failed.append(self.story)
            raise

    @property
    def story(self) -> steps.Program:
        """Return the steps so far as a program."""
        return steps.Program(self.config, tuple(self.told))

    def teardown(self) -> None:
        """Compare the end as well."""
        try:
            super().teardown()
        except Exception:
            type(self).failed.append(self.story)
            raise

    def start(self, config: ManagerConfig, *more: Check) -> None:
        """Create two managers, compared to the block after each operation."""
        program = steps.Program(config, ())
        self.config, self.told = config, list[steps.Step]()
        self.runner = Runner(program, self.implementation, self.oracle, audit=self.audit)
        self.situations: Counter[str] = Counter()
        counter = SituationCounter(self.situations)
        self.runner.checks = [CompareCheck(exact_ids=True), EventCheck(), counter, *more]

    @initialize(
        config=st.one_of(mixed_configs(), single_group_configs()), options=OPTIONS, choice=CHOICES
    )
    def create(self, config: ManagerConfig, options: dict[str, Any], choice: str | None) -> None:
        """Start with any mixture, with the options that engines set on or off."""
        self.start(replace(with_policy(config, [choice] if choice else []), **options))

    @rule(run=generators.RUNS, in_flight=st.sampled_from([1, 2, 5]))
    def run_with_tokens_in_flight(self, run: steps.Run, in_flight: int) -> None:
        """Compute while steps before are in flight."""
        self.do(replace(run, in_flight_tokens=in_flight))

    @rule(boundary=st.builds(steps.CachePartial, generators.WHO, st.integers(0, 2), generators.WHO))
    def cache_partial(self, boundary: steps.CachePartial) -> None:
        """Cache a boundary inside of a block."""
        self.do(boundary)

    @rule(held=HOLDS)
    def hold(self, held: steps.Hold) -> None:
        """Hold some blocks for an engine, and return them like popped ones."""
        self.do(held)

    @rule(restored=st.booleans())
    def copy(self, restored: bool) -> None:
        """Continue on a copy."""
        self.do(steps.Copy(restored))

    @precondition(lambda self: self.config.given_hash_bytes > 0)
    @rule(told=RETELLINGS)
    def retell(self, told: steps.Retell) -> None:
        """Take some tokens back and continue with others, as an engine that keeps the tokens."""
        self.do(told)


class LaterTwinMachine(Withdrawing, TwinMachine):
    """The same with later features: R-SWA, retained tokens, look-ahead, hits inside a block."""

    @initialize(config=st.one_of(later_configs(), INSIDE_CONFIGS), options=OPTIONS, choice=CHOICES)
    def create(self, config: ManagerConfig, options: dict[str, Any], choice: str | None) -> None:
        """Start with the options that engines set on or off."""
        super().create(config, options, choice)


class ProductionTwinMachine(TwinMachine):
    """The same at the sizes of production. The whole pool is compared after each call.

    `is_quick`: few pools are large (`production_config`), and only small ones get a hundred calls
    in a row.
    """

    is_quick: ClassVar[bool]

    @initialize(random=RANDOMS)
    def create(self, random: Random) -> None:
        """Start with a pool of thousands of blocks and texts of thousands of tokens."""
        config = production_config(random, is_quick=self.is_quick)
        self.draw = LongDraw(random, config)
        self.start(config)

    @rule(plain=st.booleans())
    def arrive(self, plain: bool) -> None:
        """Let a request arrive for much of a text that others ask for as well."""
        if len(self.runner.requests) >= MAX_REQUESTS:
            if not self.num_in(WAITING, PREEMPTED):
                return
            self.do(steps.GiveUp())
        self.do(self.draw.arrival())
        admission = steps.Admit() if plain else self.draw.admission()
        self.do(replace(admission, who=self.num_in(WAITING, PREEMPTED) - 1))

    @rule()
    def evict(self) -> None:
        """Evict many blocks at once, anywhere."""
        self.do(self.draw.eviction())

    @precondition(lambda self: self.draw.has_finer_hashes and self.has_time)
    @rule()
    def cache_many_boundaries(self) -> None:
        """Cache one block after another with boundaries inside."""
        for step in many_boundaries(self.draw):
            self.do(step)

    @property
    def has_time(self) -> bool:
        """Whether hundreds of calls in a row may be made."""
        return not self.is_quick or self.config.kv_cache.num_blocks <= FEW_BLOCKS


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


def twin_machine(
    subject: Implementation,
    oracle: Implementation,
    *,
    audit: bool = False,
    kind: type[TwinMachine] = TwinMachine,
) -> type[TwinMachine]:
    """Return the machine at small sizes. `audit`: the subject checks itself after each call."""
    members = {"implementation": subject, "oracle": oracle, "audit": audit, "failed": []}
    return type(f"{kind.__name__}For{subject.capabilities.name}", (kind,), members)


def production_twin_machine(
    subject: Implementation, oracle: Implementation, *, is_quick: bool = False
) -> type[ProductionTwinMachine]:
    """Return the machine at the sizes of production."""
    members = {"implementation": subject, "oracle": oracle, "audit": False, "failed": []}
    name = "ProductionTwinMachineFor" + subject.capabilities.name
    return type(name, (ProductionTwinMachine,), {**members, "is_quick": is_quick})


def step_machine(engine: EngineOf) -> type[StepMachine]:
    """Return the machine of whole steps over the engines that `engine` makes."""
    return type("StepMachine", (StepMachine,), {"engine_of": staticmethod(engine)})
