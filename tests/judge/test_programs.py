"""Random programs and models: what they reach, and what they find in broken subjects alone."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from random import Random

import pytest

import kvfast
import kvref
from kvcheck.play import steps as st
from kvcheck.play.left_out import LeftOut
from kvcheck.play.performing import perform
from kvcheck.play.random_configs import random_config
from kvcheck.play.random_programs import LAST, Draw, random_programs, shared_loads
from kvcheck.play.runner import Runner
from kvcheck.play.shrink import shrink
from kvcheck.play.situations import SITUATIONS, missed
from kvcheck.play.steps import Admit, Arrive, FailLoad, NewStep, Program, Release, Step
from kvcheck.play.verdicts import Level, first_violation
from kvcheck.rules.directed import EXAMPLES, example_violation, find_example
from kvcheck.rules.random_plans import RULES, random_plan
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
"""At identity `test_blame.py` has each of them."""


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


def test_random_programs_reach_every_situation() -> None:
    counts: Counter[str] = Counter()
    for batch in range(12):
        for program in random_programs(0, batch, 30):
            first_violation(program, REFERENCE, Level.SAFETY, None, counts)
        if not missed(counts):
            break
    assert missed(counts) == ()


def test_random_programs_are_the_same_for_equal_seeds() -> None:
    first = list(random_programs(3, 4, 20))
    assert first == list(random_programs(3, 4, 20))
    assert first != list(random_programs(3, 5, 20))
    assert first != list(random_programs(4, 4, 20))


def test_a_situation_that_never_came_up_is_named() -> None:
    counts = Counter(dict.fromkeys(SITUATIONS, 1))
    assert missed(counts) == ()
    del counts["align move"]
    assert missed(counts) == ("align move",)


NUM_MODELS = 600


def broken_rule(subject: Implementation, oracle: Implementation | None) -> str | None:
    for number in range(NUM_MODELS):
        try:
            found = example_violation(random_plan(0, number), subject, Policy(), oracle)
        except LeftOut:
            continue
        if found is not None:
            return found.rule
    return None


@pytest.mark.parametrize("policy", [Policy(), Policy.vllm_0_24()])
def test_nothing_is_found_in_the_reference(policy: Policy) -> None:
    for number in range(100):
        for oracle in (None, REFERENCE):
            assert example_violation(random_plan(7, number), REFERENCE, policy, oracle) is None


@pytest.mark.parametrize(
    ("mistake", "rule"),
    [
        ("ForgetsTheNullBlock", "KV-PLAN-20"),
        ("LeavesEveryWorkerItsOwnNumberOfBlocks", "KV-PLAN-15"),
        ("RoundsTheNumberOfBlocksUp", "KV-PLAN-12"),
        ("AnswersDifferentlyTheSecondTime", "KV-PLAN-19"),
    ],
)
def test_what_always_holds_needs_no_oracle(mistake: str, rule: str) -> None:
    assert broken_rule(mistaken(mistake), None) == rule


def test_a_model_is_found_again_by_its_name() -> None:
    example = random_plan(3, 14)
    assert example.rules == RULES
    assert find_example(example.name).name == example.name
    assert find_example(example.name) != random_plan(3, 15)
