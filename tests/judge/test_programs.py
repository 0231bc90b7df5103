"""Programs, levels and shrinking: what each level sees of a bug, and that nothing else is seen."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from random import Random

import pytest

import kvfast
import kvref
from kvcheck.play import steps as st
from kvcheck.play.performing import perform
from kvcheck.play.random_configs import random_config
from kvcheck.play.random_programs import LAST, Draw, random_programs, shared_loads
from kvcheck.play.runner import Runner
from kvcheck.play.shrink import shrink
from kvcheck.play.steps import Admit, Arrive, FailLoad, NewStep, Program, Release, Step
from kvcheck.play.verdicts import Level, first_violation
from kvcheck.rules.directed import EXAMPLES, example_violation
from kvref.block_pool import BlockPool
from kvref.implementation import ReferenceImplementation
from kvspec.interface import HitRateWindow, Implementation
from kvspec.policy import Policy
from tests.mistakes import POOLS, in_both, mistaken, of_kvfast
from tests.programs import SCENARIOS

REFERENCE = kvref.implementation()

# What a level cannot see: order of eviction is a policy below identity, ids below behaviour.
UNSEEN: dict[Level, set[str]] = {
    Level.SAFETY: {
        "TakesFromTheBack",
        "HashedBlocksToTheFront",
        "UnhashedRunReversed",
        "EvictionFreesTheBlock",
    },
    Level.BEHAVIOUR: {"UnhashedRunReversed"},
}
"""At identity `test_evidence.py` has each of them."""


@pytest.mark.parametrize("program", SCENARIOS, ids=lambda program: str(program.name))
def test_the_reference_conforms_to_every_directed_program(program: Program) -> None:
    assert first_violation(program, REFERENCE, Level.IDENTITY, REFERENCE) is None


@pytest.mark.parametrize("level", UNSEEN)
@pytest.mark.parametrize("broken", POOLS)
def test_directed_programs_see_a_broken_pool(broken: str, level: Level) -> None:
    subject = mistaken(broken, audits=True)
    found = any(first_violation(program, subject, level, REFERENCE) for program in SCENARIOS)
    assert found is (broken not in UNSEEN[level])


def test_random_programs_find_nothing_in_the_reference() -> None:
    for program in random_programs(2, 0, 30):
        assert first_violation(program, REFERENCE, Level.IDENTITY, REFERENCE) is None, program


def failing_loads() -> Iterator[Program]:
    """Loads that fail, mostly when others have hit them; the same prompt comes again later."""
    random = Random(5)
    for _ in range(80):
        draw, steps = Draw(random, random_config(random, hybrid=False)), list[Step]()
        for _ in range(4):
            come, end = draw.arrival(), FailLoad(LAST, random.randrange(2))
            load = Admit(LAST, chunk_tokens=draw.chunk(), external_tokens=random.choice((4, 8)))
            steps += [come, load, end, NewStep(), come, Admit(LAST), draw.release()]
        yield Program(draw.config, tuple(shared_loads(random, steps)))


def test_loads_that_several_requests_hit_fail() -> None:
    seen = Counter[str]()
    for program in failing_loads():
        found = first_violation(program, REFERENCE, Level.IDENTITY, kvfast.implementation(), seen)
        assert found is None, program
    assert seen["failed load of several"] > 10
    drawn = Counter[str]()
    for program in random_programs(0, 0, 40):
        first_violation(program, REFERENCE, Level.SAFETY, None, drawn)
    assert drawn["failed load of several"] > 0


def test_a_plan_ends_alike_where_states_are_rarely_compared() -> None:
    program = Program(SCENARIOS[0].config, (Arrive((1, 2, 3)), Admit(), st.Reset(), st.Withdraw()))
    often = Runner(program, REFERENCE, REFERENCE)
    rarely = Runner(program, REFERENCE, REFERENCE, looks_every=9)
    for runner in (often, rarely):
        perform(runner, program.steps)
    assert [name for name, *_ in rarely.operations] == [name for name, *_ in often.operations]


def one_off() -> Iterator[tuple[Implementation, Level]]:
    """Withdrawals that begin or end one block, or one holder, off; the last ones in both twins."""
    for name in ("NamesTheFirstHolder", "WithdrawsFromTheFirstGroup"):
        yield mistaken(name), Level.IDENTITY
    for own in of_kvfast():
        if own.id in ("WithdrawsOneBlockTooMany", "OneOtherHolderIsNotSeen"):
            yield own.make(), Level.IDENTITY
    for pair in in_both():
        if pair[0].id == "WithdrawsOneBlockLateInBoth":
            yield from ((each.make(), Level.SAFETY) for each in pair)


def test_failing_loads_find_withdrawals_that_are_one_off() -> None:
    subjects = list(one_off())
    assert len(subjects) == 6
    for subject, level in subjects:
        found = (first_violation(each, subject, level, REFERENCE) for each in failing_loads())
        assert any(found), subject.capabilities.name


def test_shrinking_leaves_only_what_matters() -> None:
    subject = mistaken("LeaksUnhashedBlocks", audits=True)
    config = SCENARIOS[0].config
    steps = tuple(
        step for n in range(6) for step in (Arrive((n, n + 1, n + 2)), Admit(), Release())
    )

    def fails(program: Program) -> bool:
        return first_violation(program, subject, Level.SAFETY) is not None

    small = shrink(Program(config, steps), fails)
    assert fails(small)
    assert small.steps == (Arrive((0,)), Admit())  # the end of a program releases the rest


@pytest.mark.parametrize("error", [ZeroDivisionError("nonsense"), SystemExit(0)], ids=repr)
def test_a_subject_that_crashes_is_a_verdict(error: BaseException) -> None:
    class Crashes(BlockPool):
        def allocate(self, n: int) -> list[int]:
            raise error

    found = first_violation(SCENARIOS[0], ReferenceImplementation(Crashes), Level.SAFETY)
    assert found is not None
    assert type(error).__name__ in found.detail
    assert found.operations[-1][0] == "allocate_slots"


def test_a_subject_that_quits_in_an_example_is_a_verdict() -> None:
    class Quits(ReferenceImplementation):
        def make_hit_rate_window(self, max_requests: int = 1000) -> HitRateWindow:
            raise SystemExit(0)

    example = next(example for example in EXAMPLES if "KV-STAT-4" in example.rules)
    found = example_violation(example, Quits(), Policy())
    assert found is not None
    assert "SystemExit" in found.detail
