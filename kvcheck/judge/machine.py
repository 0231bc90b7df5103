"""State machines: Hypothesis decides what a `Draw` draws, and a runner performs and checks it.

    run_state_machine_as_test(machine(implementation, small, longest_hit))
    run_state_machine_as_test(twin_machine(subject, oracle, small))

Unlike a program, a machine sees the result of a step before it draws the next one, so that it
rarely draws a step that fits no request; and Hypothesis shrinks it.

A machine alone is checked by content, accounts, events, and by the caller's statement of the
longest hit; one of twins compares every result, event and state. Each takes a maker of draws:
`small`, `inside`, `production`, or any other.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from random import Random
from typing import Any, ClassVar, TypeAlias

from hypothesis import event, note
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule

from kvcheck.judge.accounts import AccountCheck
from kvcheck.judge.choices import OTHERS, with_policy
from kvcheck.judge.inside_programs import InsideDraw, inside_config
from kvcheck.judge.longest_hit import HitOracle, LongestHitCheck
from kvcheck.judge.production import LongDraw, production_config
from kvcheck.play import steps
from kvcheck.play.checks import CompareCheck, EventCheck, InvariantCheck, ShadowCheck
from kvcheck.play.illegal_operations import ILLEGAL_OPERATIONS
from kvcheck.play.performing import finish, perform_step
from kvcheck.play.random_configs import random_config
from kvcheck.play.random_programs import LAST, Draw
from kvcheck.play.runner import Check, Runner
from kvcheck.play.scheduler import LOADING, PREEMPTED, RUNNING, WAITING
from kvcheck.play.situations import SituationCounter
from kvspec.config import ManagerConfig
from kvspec.interface import Feature, Implementation

RANDOMS = st.randoms(use_true_random=True)
"""Seeds that Hypothesis chooses: were each number its own, rare options would be frequent."""

MAX_REQUESTS = 6
FEW_BLOCKS = 256
"""Pools up to this size allow a hundred compared calls within tenths of a second."""

DrawOf: TypeAlias = Callable[[Random], Draw]
"""Draws a configuration, and makes what the steps under it are drawn from."""


def small(random: Random) -> Draw:
    """Draw small pools, where everything happens often, with groups of any types."""
    return Draw(random, random_config(random, hybrid=random.random() < 0.2, is_mixed=True))


def inside(random: Random) -> Draw:
    """Draw states beside others, with hits that end inside a block."""
    return InsideDraw(random, inside_config(random), long_texts=True)


def production(random: Random, *, is_quick: bool = True) -> Draw:
    """Draw pools and texts of thousands; `is_quick`: few pools are large."""
    return LongDraw(random, production_config(random, is_quick=is_quick))


def as_set(random: Random, config: ManagerConfig) -> ManagerConfig:
    """Set options as engines do, and sometimes a policy that is not the rules' default."""
    choice = random.choice((None, None, None, *OTHERS))
    return replace(
        with_policy(config, [choice] if choice else []),
        enable_events=random.random() < 0.5,
        log_stats=random.random() < 0.5,
        residency_sample_rate=random.choice((0.0, 0.0, 0.5)),
        hash_function=random.choice(("sha256_cbor", "sha256_cbor", "given_8", "given_32")),
    )


class Machine(RuleBasedStateMachine):
    """Rules draw steps; the attributes are set by the functions below.

    `audit`: the implementation checks itself, and the named invariants are checked too; without it,
    only results and content are. `failed`: the programs that showed an error or a difference;
    Hypothesis runs the smallest last.
    """

    implementation: ClassVar[Implementation]
    oracle: ClassVar[Implementation | None] = None
    hit_oracle: ClassVar[HitOracle]
    draw_of: ClassVar[DrawOf]
    audit: ClassVar[bool] = True
    failed: ClassVar[list[steps.Program]]

    @initialize(random=RANDOMS)
    def create(self, random: Random) -> None:
        """Draw a configuration and create a manager, or two, watched by the usual checks."""
        self.draw = type(self).draw_of(random)
        if self.oracle is not None and type(self.draw) is not LongDraw:  # which is set as it is
            self.draw.config = as_set(random, self.draw.config)
        self.performed: list[steps.Step] = []
        self.runner = Runner(self.story, self.implementation, self.oracle, audit=self.audit)
        self.situations: Counter[str] = Counter()
        self.runner.checks = [*self.checks(), SituationCounter(self.situations)]

    def checks(self) -> list[Check]:
        """Return the checks of every operation."""
        if self.oracle is not None:
            return [CompareCheck(exact_ids=True), EventCheck()]
        invariants: list[Check] = [InvariantCheck()] if self.audit else []
        hits = LongestHitCheck(type(self).hit_oracle, rule="KV-COORD-5")
        return [ShadowCheck(self.runner), *invariants, AccountCheck(), EventCheck(), hits]

    @property
    def story(self) -> steps.Program:
        """Return the steps so far as a program."""
        return steps.Program(self.draw.config, tuple(self.performed))

    def num_in(self, *phases: str) -> int:
        """Count the requests in one of these phases."""
        return sum(request.seat.phase in phases for request in self.runner.requests)

    def do(self, *more: steps.Step) -> None:
        """Perform the steps."""
        for step in more:
            self.performed.append(step)
            with self.kept():
                perform_step(self.runner, step)

    @contextmanager
    def kept(self) -> Iterator[None]:
        """Keep the program if it fails here, and do no more with what may be spoilt."""
        try:
            yield
        except Exception:
            self.failed.append(self.story)
            note(f"# {self.story}")
            del self.runner
            raise

    @rule()
    def arrive(self) -> None:
        """Let a request arrive and ask for slots; if there are too many, the oldest gives up."""
        if len(self.runner.requests) >= MAX_REQUESTS:
            if not self.num_in(WAITING, PREEMPTED):
                return
            self.do(steps.GiveUp())
        arrival = self.draw.arrival()
        if self.draw.chance(0.5):  # alike, so that some share, return and evict
            arrival = steps.Arrive(arrival.prompt)
        if Feature.HIT_REPORTS in self.implementation.capabilities.features:
            arrival = replace(arrival, reports_hits=self.draw.chance(0.5))
        admission = steps.Admit() if self.draw.chance(0.5) else self.draw.admission()
        self.do(arrival, replace(admission, who=LAST))

    @precondition(lambda self: self.num_in(WAITING, PREEMPTED) > 0)
    @rule()
    def retry(self) -> None:
        """Let a refused or preempted request ask again."""
        self.do(self.draw.admission())

    @precondition(lambda self: self.num_in(RUNNING) > 0)
    @rule()
    def run_on(self) -> None:
        """Compute a chunk, or a decode step with drafts of which some are accepted."""
        run = self.draw.run()
        if self.oracle is not None:
            run = replace(run, in_flight_tokens=self.draw.random.choice((0, 0, 0, 1, 2, 5)))
        self.do(run)

    @precondition(lambda self: self.num_in(LOADING) > 0)
    @rule()
    def finish_load(self) -> None:
        """Register the blocks of external tokens that have arrived."""
        self.do(steps.FinishLoad(self.draw.who()))

    @precondition(lambda self: self.num_in(RUNNING, LOADING) > 0)
    @rule()
    def release(self) -> None:
        """Finish or preempt a request and return its blocks at once or later."""
        self.do(self.draw.release())

    @rule()
    def maintain(self) -> None:
        """Do what engines do now and then besides running requests."""
        draw, ids = self.draw, range(self.draw.config.kv_cache.num_blocks)
        blocks = draw.random.choices(ids, k=draw.random.randrange(4))
        by_id = steps.EvictIds(tuple(blocks))  # nothing beside an oracle
        self.do(draw.random.choice((draw.rest(), draw.rest(), draw.rest(), draw.eviction(), by_id)))

    @precondition(lambda self: bool(self.runner.requests))
    @rule()
    def break_rules(self) -> None:
        """Make an illegal call, which must raise a typed error and change nothing."""
        call = self.draw.random.randrange(len(ILLEGAL_OPERATIONS))
        self.do(steps.Break(self.draw.who(), call))

    @precondition(lambda self: self.num_in(RUNNING) > 0)
    @rule()
    def withdraw(self) -> None:
        """Take a request out of the planned step (KV-MGR-24)."""
        self.do(steps.Withdraw(self.draw.who(), self.draw.chance(0.25)))

    @precondition(lambda self: self.oracle is not None)  # accounts know nothing of copies
    @rule()
    def keep(self) -> None:
        """Hold blocks, return them, continue on a copy, or take tokens back."""
        self.do(self.draw.keeping())

    @precondition(lambda self: self.oracle is not None)  # content is not followed through them
    @rule()
    def make_whole_steps(self) -> None:
        """Make a whole step, with single calls before it."""
        self.do(*self.draw.round(room=MAX_REQUESTS - len(self.runner.requests)))

    @precondition(lambda self: self.draw.config.kv_cache.num_blocks <= FEW_BLOCKS)
    @rule()
    def habit(self) -> None:
        """Perform a few steps that belong together."""
        self.do(*self.draw.habit())

    def teardown(self) -> None:
        """Release everything and check that the pool is whole; report situations to Hypothesis."""
        if hasattr(self, "runner"):
            for situation in self.situations:
                event(situation)
            self.do(steps.Take())
            with self.kept():
                finish(self.runner)


def machine(
    implementation: Implementation, draw_of: DrawOf, hit_oracle: HitOracle, *, audit: bool = True
) -> type[Machine]:
    """Return the machine of one implementation, beside a statement of hits."""
    members = {"hit_oracle": staticmethod(hit_oracle), "audit": audit}
    return _made(implementation, draw_of, members)


def twin_machine(
    subject: Implementation, oracle: Implementation, draw_of: DrawOf, *, audit: bool = False
) -> type[Machine]:
    """Return the machine of two; `oracle` is right. `audit`: the subject checks itself."""
    return _made(subject, draw_of, {"oracle": oracle, "audit": audit})


def _made(subject: Implementation, draw_of: DrawOf, members: dict[str, Any]) -> type[Machine]:
    own = {"implementation": subject, "draw_of": staticmethod(draw_of), "failed": []}
    return type(f"MachineFor{subject.capabilities.name}", (Machine,), {**own, **members})
