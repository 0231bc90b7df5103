"""State machines: Hypothesis draws step after step, and a runner performs and checks each.

    run_state_machine_as_test(mixed_machine(implementation, longest_hit))

Unlike a program, a machine sees the result of a step before it draws the next one, so that it
rarely draws a step that fits no request; and Hypothesis shrinks it.

`mixed_machine` draws one to four groups of any types, its `LaterMachine` later types and hits
inside a block. Besides safety, accounts and events every hit is checked, to the block, against
the caller's statement of it.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from typing import Any, ClassVar

from hypothesis import event
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule

from kvcheck.judge import generators
from kvcheck.judge.accounts import AccountCheck
from kvcheck.judge.longest_hit import HitOracle, LongestHitCheck
from kvcheck.judge.mixed_configs import INSIDE_CONFIGS, later_configs, mixed_configs
from kvcheck.play import steps
from kvcheck.play.checks import EventCheck, InvariantCheck, ShadowCheck
from kvcheck.play.performing import finish, perform_step
from kvcheck.play.runner import Check, Runner
from kvcheck.play.scheduler import LOADING, PREEMPTED, RUNNING, WAITING
from kvcheck.play.situations import SituationCounter
from kvspec.config import ManagerConfig
from kvspec.interface import Feature, Implementation

MAX_REQUESTS = 6
# The statements of a longest hit cover hits that end inside a block to this extent.
WITHOUT_DROPS = INSIDE_CONFIGS.map(lambda config: replace(config, use_eagle=False))
# Runs are short: most requests are alike and plain, so that some share, revive and evict.
PLAIN_ARRIVALS = st.builds(
    steps.Arrive,
    prompt=generators.PROMPTS.map(tuple),
    salt=st.sampled_from([None, None, None, "s"]),
)
PLAIN_ADMISSIONS = st.builds(steps.Admit, who=generators.WHO, look_up=generators.OFTEN)
ARRIVALS = generators.OFTEN.flatmap(lambda plain: PLAIN_ARRIVALS if plain else generators.ARRIVALS)
ADMISSIONS = st.booleans().flatmap(
    lambda plain: PLAIN_ADMISSIONS if plain else generators.ADMISSIONS
)
MAINTENANCE = st.one_of(
    st.builds(steps.EvictIds, st.lists(st.integers(0, 31), max_size=3).map(tuple)),
    generators.EVICTIONS,
    st.builds(steps.Ask, who=generators.WHO),
    st.builds(steps.Skip, who=generators.WHO),
    st.sampled_from([steps.NewStep(), steps.Take(), steps.Take(), steps.Reset()]),
)


class SchedulerMachine(RuleBasedStateMachine):
    """Rules draw steps; `implementation` and `audit` are set by the functions below.

    `audit`: the implementation checks itself, and the named invariants are checked too; without it,
    only results and content are.
    """

    implementation: ClassVar[Implementation]
    audit: ClassVar[bool] = True
    reports_hits = False

    def start(self, config: ManagerConfig, *more: Check) -> None:
        """Create a manager, watched by the usual checks and `more`."""
        self.runner = Runner(steps.Program(config, ()), self.implementation, audit=self.audit)
        self.situations: Counter[str] = Counter()
        invariants: list[Check] = [InvariantCheck()] if self.audit else []
        self.runner.checks = [
            ShadowCheck(self.runner),
            *invariants,
            AccountCheck(),
            EventCheck(),
            *more,
            SituationCounter(self.situations),
        ]

    def num_in(self, *phases: str) -> int:
        """Count the requests in one of these phases."""
        return sum(request.seat.phase in phases for request in self.runner.requests)

    def do(self, step: steps.Step) -> None:
        perform_step(self.runner, self.as_reported(step))

    def as_reported(self, step: steps.Step) -> steps.Step:
        """Return the step, with hit reports for an arriving request if they are on."""
        can = Feature.HIT_REPORTS in self.implementation.capabilities.features
        if isinstance(step, steps.Arrive) and self.reports_hits and can:
            return replace(step, reports_hits=True)
        return step

    @rule()
    def report_hits(self) -> None:
        """Turn hit reports on or off for requests that arrive later (KV-EVT-11)."""
        self.reports_hits = not self.reports_hits

    @rule(arrival=ARRIVALS, admission=ADMISSIONS)
    def arrive(self, arrival: steps.Arrive, admission: steps.Admit) -> None:
        """Let a request arrive and ask for slots; if there are too many, the oldest gives up."""
        if len(self.runner.requests) >= MAX_REQUESTS:
            if not self.num_in(WAITING, PREEMPTED):
                return
            self.do(steps.GiveUp())
        self.do(arrival)
        self.do(replace(admission, who=self.num_in(WAITING, PREEMPTED) - 1))

    @precondition(lambda self: self.num_in(WAITING, PREEMPTED) > 0)
    @rule(admission=ADMISSIONS)
    def retry(self, admission: steps.Admit) -> None:
        """Let a refused or preempted request ask again."""
        self.do(admission)

    @precondition(lambda self: self.num_in(RUNNING) > 0)
    @rule(step=generators.RUNS)
    def run_on(self, step: steps.Run) -> None:
        """Compute a chunk, or a decode step with drafts of which some are accepted."""
        self.do(step)

    @precondition(lambda self: self.num_in(LOADING) > 0)
    @rule(who=generators.WHO)
    def finish_load(self, who: int) -> None:
        """Register the blocks of external tokens that have arrived."""
        self.do(steps.FinishLoad(who))

    @precondition(lambda self: self.num_in(RUNNING, LOADING) > 0)
    @rule(step=generators.RELEASES)
    def release(self, step: steps.Release) -> None:
        """Finish or preempt a request and return its blocks at once or later."""
        self.do(step)

    @precondition(lambda self: bool(self.runner.subject.popped))
    @rule(count=st.integers(1, 9))
    def return_popped(self, count: int) -> None:
        """Return some of the popped blocks, the last popped first."""
        self.do(steps.ReturnPopped(count))

    @rule(step=MAINTENANCE)
    def maintain(self, step: steps.Step) -> None:
        """Do what engines do now and then besides running requests."""
        self.do(step)

    @precondition(lambda self: bool(self.runner.requests))
    @rule(step=generators.BREAKS)
    def break_rules(self, step: steps.Break) -> None:
        """Make an illegal call, which must raise a typed error and change nothing."""
        self.do(step)

    def teardown(self) -> None:
        """Release everything and check that the pool is whole; report situations to Hypothesis."""
        if hasattr(self, "runner"):
            for situation in self.situations:
                event(situation)
            finish(self.runner)


class MixedMachine(SchedulerMachine):
    """One to four groups of any types that may be combined."""

    hit_oracle: ClassVar[HitOracle]

    @initialize(config=mixed_configs())
    def create(self, config: ManagerConfig) -> None:
        """Start with a check of hits against the caller's statement of them."""
        self.start(config, LongestHitCheck(type(self).hit_oracle, rule="KV-COORD-5"))


class Withdrawing(SchedulerMachine):
    """Take requests out of planned steps, beside all others (KV-MGR-24)."""

    @rule(step=generators.WITHDRAWALS)
    def withdraw(self, step: steps.Withdraw) -> None:
        """Take a request out of the planned step."""
        self.do(step)


class LaterMachine(Withdrawing, MixedMachine):
    """R-SWA, windows that retain more, hash look-ahead; and hits that end inside a block."""

    @initialize(config=st.one_of(later_configs(), WITHOUT_DROPS))
    def create(self, config: ManagerConfig) -> None:
        """Start with a check of hits against the caller's statement of them."""
        super().create(config)


def mixed_machine(
    implementation: Implementation,
    hit_oracle: HitOracle,
    *,
    kind: type[MixedMachine] = MixedMachine,
    **attributes: Any,
) -> type[MixedMachine]:
    """Return the machine over mixed groups for an implementation and a statement of hits."""
    return type(
        f"{kind.__name__}For{implementation.capabilities.name}",
        (kind,),
        {"implementation": implementation, "hit_oracle": staticmethod(hit_oracle), **attributes},
    )
