"""State machines: Hypothesis draws step after step, and a runner performs and checks each.

    run_state_machine_as_test(mixed_machine(implementation, longest_hit))

Other than a program, a machine sees what came of a step before it draws the next one, so that it
rarely draws a step that fits no request; and Hypothesis shrinks it.

`mixed_machine` draws one to four groups of any types, its `LaterMachine` those that came later, and
hits inside a block. Besides safety, accounts and events every hit is checked, to the block, against
a statement of it by the caller.
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
# What the statements of a longest hit know of hits that end inside a block.
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
    answers and content have to tell.
    """

    implementation: ClassVar[Implementation]
    audit: ClassVar[bool] = True
    reports_hits = False

    def start(self, config: ManagerConfig, *more: Check) -> None:
        """A fresh manager, watched by the usual checks and `more`."""
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
        """How many requests are in one of these phases."""
        return sum(request.seat.phase in phases for request in self.runner.requests)

    def do(self, step: steps.Step) -> None:
        perform_step(self.runner, self.as_reported(step))

    def as_reported(self, step: steps.Step) -> steps.Step:
        """The step; hits of whoever arrives are reported if that is on."""
        can = Feature.HIT_REPORTS in self.implementation.capabilities.features
        if isinstance(step, steps.Arrive) and self.reports_hits and can:
            return replace(step, reports_hits=True)
        return step

    @rule()
    def report_hits(self) -> None:
        """From now on, hits of those who arrive are reported, or no longer (KV-EVT-11)."""
        self.reports_hits = not self.reports_hits

    @rule(arrival=ARRIVALS, admission=ADMISSIONS)
    def arrive(self, arrival: steps.Arrive, admission: steps.Admit) -> None:
        """A new request asks for admission; too many, and the oldest waiting one gives up."""
        if len(self.runner.requests) >= MAX_REQUESTS:
            if not self.num_in(WAITING, PREEMPTED):
                return
            self.do(steps.GiveUp())
        self.do(arrival)
        self.do(replace(admission, who=self.num_in(WAITING, PREEMPTED) - 1))

    @precondition(lambda self: self.num_in(WAITING, PREEMPTED) > 0)
    @rule(admission=ADMISSIONS)
    def retry(self, admission: steps.Admit) -> None:
        """A request that was refused or preempted asks again."""
        self.do(admission)

    @precondition(lambda self: self.num_in(RUNNING) > 0)
    @rule(step=generators.RUNS)
    def run_on(self, step: steps.Run) -> None:
        """A chunk, or a decode step with drafts of which some are accepted."""
        self.do(step)

    @precondition(lambda self: self.num_in(LOADING) > 0)
    @rule(who=generators.WHO)
    def finish_load(self, who: int) -> None:
        """The external tokens arrived: register their blocks."""
        self.do(steps.FinishLoad(who))

    @precondition(lambda self: self.num_in(RUNNING, LOADING) > 0)
    @rule(step=generators.RELEASES)
    def release(self, step: steps.Release) -> None:
        """Finish or preempt a request; at once, or with its blocks returned later."""
        self.do(step)

    @precondition(lambda self: bool(self.runner.subject.popped))
    @rule(count=st.integers(1, 9))
    def return_popped(self, count: int) -> None:
        """Return some of the popped blocks, the last popped first."""
        self.do(steps.ReturnPopped(count))

    @rule(step=MAINTENANCE)
    def maintain(self, step: steps.Step) -> None:
        """What engines do now and then besides running requests."""
        self.do(step)

    @precondition(lambda self: bool(self.runner.requests))
    @rule(step=generators.BREAKS)
    def break_rules(self, step: steps.Break) -> None:
        """An illegal call raises a typed error and changes nothing."""
        self.do(step)

    def teardown(self) -> None:
        """Once everything is released, the pool is whole; Hypothesis' statistics say what came."""
        if hasattr(self, "runner"):
            for situation in self.situations:
                event(situation)
            finish(self.runner)


class MixedMachine(SchedulerMachine):
    """One to four groups of any types that may stand together."""

    hit_oracle: ClassVar[HitOracle]

    @initialize(config=mixed_configs())
    def create(self, config: ManagerConfig) -> None:
        """Hits are checked against the caller's statement of them."""
        self.start(config, LongestHitCheck(type(self).hit_oracle, rule="KV-COORD-5"))


class Withdrawing(SchedulerMachine):
    """Steps that do not run, beside all others (KV-MGR-24)."""

    @rule(step=generators.WITHDRAWALS)
    def withdraw(self, step: steps.Withdraw) -> None:
        """Take a request out of the step that is planned."""
        self.do(step)


class LaterMachine(Withdrawing, MixedMachine):
    """R-SWA, windows that retain more, hash look-ahead; and hits that end inside a block."""

    @initialize(config=st.one_of(later_configs(), WITHOUT_DROPS))
    def create(self, config: ManagerConfig) -> None:
        """Hits are checked against the caller's statement of them."""
        super().create(config)


def mixed_machine(
    implementation: Implementation,
    hit_oracle: HitOracle,
    *,
    kind: type[MixedMachine] = MixedMachine,
    **attributes: Any,
) -> type[MixedMachine]:
    """The machine over mixed groups for one implementation and one statement of the longest hit."""
    return type(
        f"{kind.__name__}For{implementation.capabilities.name}",
        (kind,),
        {"implementation": implementation, "hit_oracle": staticmethod(hit_oracle), **attributes},
    )
