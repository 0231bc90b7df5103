"""kvref and kvfast driven by one machine: both builds, single calls and whole steps."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from random import Random
from typing import ClassVar, TypeAlias

import pytest
from hypothesis import HealthCheck, Phase, event, note, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    precondition,
    rule,
    run_state_machine_as_test,
)

import kvref
from kvcheck.judge.inside_programs import InsideDraw, inside_config
from kvcheck.play import steps
from kvcheck.play.checks import CompareCheck, EventCheck
from kvcheck.play.illegal_operations import ILLEGAL_OPERATIONS
from kvcheck.play.performing import finish, perform, perform_step
from kvcheck.play.random_configs import random_config
from kvcheck.play.random_programs import LAST, Draw
from kvcheck.play.runner import Runner
from kvcheck.play.scheduler import LOADING, PREEMPTED, RUNNING, WAITING
from kvcheck.play.situations import SituationCounter
from kvcheck.play.steps import Admit, Arrive, Break, Program
from kvspec.config import ManagerConfig
from kvspec.errors import InvariantViolation, SpoiltError
from kvspec.interface import Feature, Implementation
from tests.lockstep.builds import fast
from tests.lockstep.choices import OTHERS, with_policy
from tests.lockstep.drawing import LongDraw, production_config
from tests.lockstep.inside import WrittenCheck, with_later, with_more
from tests.lockstep.production import is_plain
from tests.mistakes import POOLS, mistaken, of_kvfast
from tests.programs import SCENARIOS, configure, full

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
    """Draw states beside groups of any kind, with hits that end inside a block."""
    config = with_later(with_more(inside_config(random), random), random)
    return InsideDraw(random, config, long_texts=True)


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
        pcp_world_size=random.choice((1, 2)) if is_plain(config) else 1,  # KV-CFG-6
    )


class Machine(RuleBasedStateMachine):
    """Rules draw steps; the attributes are set by `twin_machine`."""

    subject: ClassVar[Implementation]
    oracle: ClassVar[Implementation]
    draw_of: ClassVar[DrawOf]
    audit: ClassVar[bool]

    @initialize(random=RANDOMS)
    def create(self, random: Random) -> None:
        self.draw = type(self).draw_of(random)
        if type(self.draw) is not LongDraw:  # which is set as it is
            self.draw.config = as_set(random, self.draw.config)
        self.performed: list[steps.Step] = []
        self.runner = Runner(self.story, self.subject, self.oracle, audit=self.audit)
        self.situations: Counter[str] = Counter()
        compares = (CompareCheck(exact_ids=True), WrittenCheck(), EventCheck())
        self.runner.checks = (*compares, SituationCounter(self.situations))

    @property
    def story(self) -> steps.Program:
        return steps.Program(self.draw.config, tuple(self.performed))

    def num_in(self, *phases: str) -> int:
        return sum(request.seat.phase in phases for request in self.runner.requests)

    def do(self, *more: steps.Step) -> None:
        for step in more:
            self.performed.append(step)
            with self.noted():
                perform_step(self.runner, step)

    @contextmanager
    def noted(self) -> Iterator[None]:
        """Note the program if it fails here, and do no more with what may be spoilt."""
        try:
            yield
        except Exception:
            note(f"# {self.story}")
            del self.runner
            raise

    @rule()
    def arrive(self) -> None:
        if len(self.runner.requests) >= MAX_REQUESTS:
            if not self.num_in(WAITING, PREEMPTED):
                return
            self.do(steps.GiveUp())
        arrival = self.draw.arrival()
        if self.draw.chance(0.5):  # alike, so that some share, return and evict
            arrival = steps.Arrive(arrival.prompt)
        if Feature.HIT_REPORTS in self.subject.capabilities.features:
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
        in_flight = self.draw.random.choice((0, 0, 0, 1, 2, 5))
        self.do(replace(self.draw.run(), in_flight_tokens=in_flight))

    @precondition(lambda self: self.num_in(LOADING) > 0)
    @rule()
    def finish_load(self) -> None:
        self.do(steps.FinishLoad(self.draw.who()))

    @precondition(lambda self: self.num_in(RUNNING, LOADING) > 0)
    @rule()
    def release(self) -> None:
        """Finish or preempt a request and return its blocks at once or later."""
        self.do(self.draw.release())

    @rule()
    def maintain(self) -> None:
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
        self.do(steps.Withdraw(self.draw.who(), self.draw.chance(0.25)))

    @rule()
    def keep(self) -> None:
        """Hold blocks, return them, continue on a copy, or take tokens back."""
        self.do(self.draw.keeping())

    @rule()
    def make_whole_steps(self) -> None:
        self.do(*self.draw.round(room=MAX_REQUESTS - len(self.runner.requests)))

    @precondition(lambda self: self.draw.config.kv_cache.num_blocks <= FEW_BLOCKS)
    @rule()
    def habit(self) -> None:
        self.do(*self.draw.habit())

    def teardown(self) -> None:
        """Release everything and check that the pool is whole; report situations to Hypothesis."""
        if hasattr(self, "runner"):
            for situation in self.situations:
                event(situation)
            self.do(steps.Take())
            with self.noted():
                finish(self.runner)


def twin_machine(
    subject: Implementation, oracle: Implementation, draw_of: DrawOf, *, audit: bool = False
) -> type[Machine]:
    """Return the machine of two; `oracle` is right. `audit`: the subject checks itself."""
    members = {"subject": subject, "oracle": oracle, "draw_of": staticmethod(draw_of)}
    name = f"MachineFor{subject.capabilities.name}"
    return type(name, (Machine,), {**members, "audit": audit})


def planted(max_examples: int, *, steps: int = 40) -> settings:
    return settings(
        max_examples=max_examples,
        stateful_step_count=steps,
        deadline=None,
        database=None,
        derandomize=True,
        report_multiple_bugs=False,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )


__all__ = ["fast"]  # the fixture

REFERENCE = kvref.implementation()
DEEP = 30
"""So many times as many examples with `--deep`."""


def machines(
    subject: Implementation, *, is_quick: bool = True
) -> dict[str, tuple[type[RuleBasedStateMachine], int]]:
    """Each machine, and how many examples of it each commit has; `is_quick`: of few blocks."""

    large = partial(production, is_quick=is_quick)
    return {
        "calls": (twin_machine(subject, REFERENCE, small), 50),
        "audited calls": (twin_machine(subject, REFERENCE, small, audit=True), 20),
        "calls inside blocks": (twin_machine(subject, REFERENCE, inside), 20),
        "calls at production sizes": (twin_machine(subject, REFERENCE, large), 4),
    }


NAMES = tuple(machines(REFERENCE))


def run(subject: Implementation, name: str, factor: int = 1) -> None:
    machine, max_examples = machines(subject, is_quick=factor < DEEP)[name]
    run_state_machine_as_test(
        machine,
        settings=settings(
            max_examples=factor * max_examples,
            stateful_step_count=30,
            deadline=None,
            suppress_health_check=list(HealthCheck),
        ),
    )


@pytest.mark.parametrize("name", NAMES)
def test_the_twins_give_the_same_answers(fast: Implementation, name: str) -> None:
    run(fast, name)


@pytest.mark.deep
@pytest.mark.parametrize("name", NAMES)
def test_the_twins_give_the_same_answers_in_long_runs(fast: Implementation, name: str) -> None:
    run(fast, name, DEEP)


def is_caught(subject: Implementation, name: str, max_examples: int) -> bool:
    """Whether a machine fails; the bug is known, so that nothing is made smaller."""
    plain = planted(max_examples)
    try:
        run_state_machine_as_test(machines(subject, is_quick=False)[name][0], settings=plain)
    except (InvariantViolation, SpoiltError):
        return True
    return False


# These show within seconds of a processor, not tenths.
SLOWER = ("EvictionFreesTheBlock", "FreesWhatOthersStillHold", "TouchLeavesTheBlockFree")
CAUGHT_SOON = [pytest.param(pool, marks=[pytest.mark.deep] * (pool in SLOWER)) for pool in POOLS]


@pytest.mark.parametrize("pool", CAUGHT_SOON)
def test_single_calls_catch_a_broken_pool(pool: str) -> None:
    assert is_caught(mistaken(pool), "calls", 500)


@pytest.mark.parametrize(
    "mistake",
    ["GivenHashesAreTurned", "HoldsOfTheSameBlockAreOne",
     "HeldBlocksStayInTheQueue", "RestoresInOrder"],
)  # fmt: skip
def test_single_calls_catch_mistakes_of_what_an_engine_keeps_and_copies(
    mistake: str,
) -> None:
    assert is_caught(mistaken(mistake), "calls", 300)


@pytest.mark.parametrize("mistake", ["LeavesOutTheRest"])
def test_whole_steps_catch_a_broken_table(mistake: str) -> None:
    assert is_caught(mistaken(mistake), "calls", 100)


CAUGHT = ("HitsEndAt64", "RegistersOneRunOnly", "LaterRunsTrustTheirSlots")
"""A few of kvfast's mistakes at its sizes."""


@pytest.mark.deep
@pytest.mark.parametrize("mistake", CAUGHT)
def test_production_sizes_catch_a_mistake_that_short_texts_never_meet(mistake: str) -> None:
    subject = next(each for each in of_kvfast() if each.id == mistake).make()
    assert is_caught(subject, "calls at production sizes", 100)
    assert not is_caught(subject, "calls", 20)


@pytest.mark.parametrize(
    ("mistake", "name", "found"),
    [
        ("EvictsUpToTheWrongId", "evict outside the pool", "errors_change_nothing"),
        ("SkipsFromZero", "skip below zero", "illegal_calls_raise"),
        ("FailsItsAudit", "skip below zero", "audited"),
    ],
)
def test_an_illegal_call_that_does_something_is_seen(mistake: str, name: str, found: str) -> None:
    call = [illegal.name for illegal in ILLEGAL_OPERATIONS].index(name)
    steps = (Arrive((1, 2, 3, 4, 5)), Admit(), Break(call=call))
    with pytest.raises(InvariantViolation) as caught:
        perform(Runner(Program(configure(8, full()), steps), mistaken(mistake)), steps)
    assert caught.value.invariant == found


def test_each_illegal_call_has_a_story_of_its_own() -> None:
    names = [illegal.name for illegal in ILLEGAL_OPERATIONS]
    assert len(set(names)) == len(names)
    calls = {
        step.call for program in SCENARIOS for step in program.steps if isinstance(step, Break)
    }
    assert calls == set(range(len(names)))
