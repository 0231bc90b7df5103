"""kvref and kvfast side by side: the same calls, the same answers, the same state after each."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import fields, replace
from itertools import islice
from random import Random

import pytest

import kvref
from kvcheck.mistakes import find
from kvcheck.play import steps as st
from kvcheck.play.checks import CompareCheck, EventCheck
from kvcheck.play.performing import perform
from kvcheck.play.random_configs import random_config
from kvcheck.play.random_programs import Draw, program_of_steps, random_programs
from kvcheck.play.runner import Check, Performed, Runner
from kvcheck.play.steps import Program
from kvcheck.play.verdicts import Level, first_violation
from kvfast._implementation import FastImplementation
from kvspec.config import GIVEN_HASHES
from kvspec.errors import InvariantViolation, KVSpecError
from kvspec.interface import Implementation
from kvspec.policy import Policy
from kvspec.profile import find_profile
from tests.lockstep.choices import OTHERS, Tally, under_choices
from tests.lockstep.inside import find_difference, steps_inside
from tests.lockstep.inside import run as run_inside
from tests.lockstep.production import is_plain
from tests.mistakes import mistaken, of_kvfast

MAX_STEPS = 60
NUM_DEEP_OPERATIONS = 1_000_000


@pytest.fixture(params=["compiled", "uncompiled"])
def fast(request: pytest.FixtureRequest) -> Implementation:
    return build(request.param)


def build(name: str) -> Implementation:
    """Return a build of kvfast. Skips without a compiled one, unless it has to be there."""
    try:
        return FastImplementation(name)
    except ImportError as error:
        if os.environ.get("KVSPEC_REQUIRE_COMPILED"):
            raise
        pytest.skip(f"no compiled build of kvfast here: {error}")


def run(program: Program, subject: Implementation) -> int:
    runner = Runner(program, subject, kvref.implementation())
    checks: list[Check] = [CompareCheck(exact_ids=True), EventCheck()]
    runner.checks = checks
    perform(runner, program.steps)
    return len(runner.operations)


def small_programs() -> Iterator[Program]:
    """Random programs; in every other one blocks are held, and mostly the hashes are given."""
    random = Random(7)
    for number, program in enumerate(random_programs(7, 0, MAX_STEPS)):
        yield with_keeping(program, random) if number % 2 else program


def with_keeping(program: Program, random: Random) -> Program:
    """What engines do that keep tokens, hashes, blocks and copies, anywhere in the program."""
    steps = list(program.steps)
    for _ in range(8):
        who, index, count = random.randrange(4), random.randrange(6), random.choice((1, 3))
        is_free, is_prompt = random.random() < 0.5, random.random() < 0.5
        more: st.Step = random.choice(
            (
                st.Hold(who, index % 3, index, count, held=random.random() < 0.5, free=is_free),
                st.ReturnPopped(count),
                st.Retell(who, 2 * index, (0,) * random.randrange(4), is_prompt),
                st.Copy(restored=is_free),
            )
        )
        steps.insert(random.randrange(len(steps) + 1), more)
    config = program.config
    function = random.choice((config.hash_function, *GIVEN_HASHES))
    pcp = random.choice((1, 2)) if is_plain(config) else 1  # KV-CFG-6
    config = replace(config, hash_function=function, pcp_world_size=pcp)
    return replace(program, config=config, steps=tuple(steps))


def test_random_programs_leave_both_in_the_same_state(fast: Implementation) -> None:
    assert sum(run(program, fast) for program in small_programs()) > 3000


def test_programs_of_a_check_draw_every_option() -> None:
    tally = Tally()
    for program in (p for batch in range(2) for p in random_programs(0, batch, 40)):
        tally.add_program(program)
    assert not tally.never_drawn_small()


def test_nobody_is_blamed_for_what_an_engine_keeps(fast: Implementation) -> None:
    for program in islice(small_programs(), 1, 24, 2):
        assert first_violation(program, fast, Level.IDENTITY, kvref.implementation()) is None


def test_random_programs_agree_under_the_later_choices(fast: Implementation) -> None:
    policy = find_profile("vllm-0.33").policy
    programs = islice(random_programs(8, 0, 40), 60)
    chosen = (replace(p, config=replace(p.config, policy=policy)) for p in programs)
    assert sum(run(program, fast) for program in chosen) > 1000


def programs_under_choices() -> Iterator[Program]:
    return under_choices(islice(random_programs(8, 0, 40), 60), Random(8))


def test_random_programs_agree_under_single_choices(fast: Implementation) -> None:
    assert {*OTHERS, "exact_block_ids", "default_retention"} == {
        field.name for field in fields(Policy)
    }
    assert sum(run(program, fast) for program in programs_under_choices()) > 1000


@pytest.mark.parametrize(
    "mistake",
    ["InFlightCountsAsProcessed", "NoneHashIgnoresTheSeed", "PoppedNullsAreShown"],
)
def test_programs_under_choices_find_mistakes_about_them(mistake: str) -> None:
    with pytest.raises(InvariantViolation):
        sum(run(program, mistaken(mistake)) for program in programs_under_choices())


@pytest.mark.deep
def test_a_million_calls_leave_both_in_the_same_state(fast: Implementation) -> None:
    calls = batch = 0
    while calls < NUM_DEEP_OPERATIONS:
        batch += 1
        calls += sum(run(program, fast) for program in random_programs(11, batch, MAX_STEPS))


NUM_PROGRAMS = 60
NUM_ROUNDS = 20
NUM_DEEP_PROGRAMS = 4000


class Counted(Check):
    """Counts what steps granted and refused, and illegal plans; a check that never fails."""

    def __init__(self) -> None:
        self.counts: Counter[str] = Counter()

    def after_operation(self, runner: Runner, done: Performed) -> None:
        if done.name == "batched_step":
            for granted in done.outcome.result.get("scheduled", ()):
                self.counts["granted" if granted else "refused"] += 1


def program(seed: int) -> Program:
    """Whole steps and single calls on a random configuration, every fifth a hybrid.

    Every third is told the hashes, every fourth has the later choices, and another fourth counts
    look-ups when they are made.
    """
    random = Random(seed)
    config = random_config(random, hybrid=seed % 5 == 0)
    if seed % 3 == 1:
        config = replace(config, hash_function=random.choice(list(GIVEN_HASHES)))
    if seed % 4 == 2:
        config = replace(config, policy=find_profile("vllm-0.33").policy)
    if seed % 4 == 3:
        config = replace(config, policy=replace(config.policy, lookups_counted="asked"))
    return program_of_steps(Draw(random, config), NUM_ROUNDS)


def play(subject: Implementation, seeds: Sequence[int] = range(NUM_PROGRAMS)) -> Counter[str]:
    counted = Counted()
    for seed in seeds:
        one = program(seed)
        runner = Runner(one, subject, kvref.implementation())
        runner.checks = [CompareCheck(exact_ids=True), EventCheck(), counted]
        perform(runner, one.steps)
        counted.counts["operations"] += len(runner.operations)
    return counted.counts


def test_random_steps_are_those_of_the_loop(fast: Implementation) -> None:
    counts = play(fast)
    assert counts["granted"] > 1200
    assert counts["refused"] > 1500
    assert counts["operations"] > 10_000


@pytest.mark.deep
def test_many_random_steps_are_those_of_the_loop(fast: Implementation) -> None:
    for seed in range(NUM_DEEP_PROGRAMS):
        play(fast, [1_000_000 + seed])


@pytest.mark.parametrize(
    "mistake",
    ["MissingHashesAreForgiven", "CountsBeforeHashes", "AppendingCountsOnly",
     "HoldsBeforeItChecks", "HoldingIsNoTouch"],
)  # fmt: skip
def test_what_is_done_between_steps_shows_mistakes(mistake: str) -> None:
    with pytest.raises(KVSpecError):
        play(mistaken(mistake))


def test_a_table_that_is_not_told_of_a_block_is_seen() -> None:
    subject = mistaken("LeavesOutTheRest")

    def alone() -> None:
        for one in map(program, range(NUM_PROGRAMS)):
            perform(Runner(one, subject), one.steps)

    with pytest.raises(InvariantViolation, match="KV-BATCH-10"):
        alone()


NUM_DEEP_CALLS = 300_000
FOUND_BY = {
    "EndsOfRunsBeginAtTheNext": 4,
    "ShorterEndsAreCutToBlocks": 5,
    "CopiesAreFullAtOnce": 6,
    "EndsAreNotOwed": 2,
    "CopiesAreKeyedWhole": 3,
    "InnerStatesHaveNoBlock": 11,
    "MovedKeysCoverNothing": 2,
}
"""Of each mistake a seed whose first programs find it."""
DIRECTED = (
    *("MovedKeysLeaveTheirLikes", "StatesReturnOnlyAtTheirEnd", "InnerStateAfterGeneration"),
    "FullLooksAWholeBlockFurther",
)
"""No program meets them: directed checks do, `copies come one behind the other` the first."""


def broken(mistake: str) -> Implementation:
    made: Implementation = find(mistake, of_kvfast()).make()
    return made


def test_every_mistake_is_among_these() -> None:
    about = {each.id for each in of_kvfast() if each.rules[0].startswith("KV-INSIDE")}
    assert about == {*FOUND_BY, *DIRECTED}


def test_random_programs_inside_blocks_leave_both_in_the_same_state(fast: Implementation) -> None:
    assert find_difference(fast, 5, 600, 40) >= 600


def test_whole_steps_are_those_of_the_loop(fast: Implementation) -> None:
    programs = [steps_inside(Random(seed), 20) for seed in range(3)]
    assert sum(run_inside(program, fast, is_careful=False) for program in programs) > 500


@pytest.mark.deep
def test_many_random_programs_leave_both_in_the_same_state(fast: Implementation) -> None:
    assert find_difference(fast, 6, NUM_DEEP_CALLS, 60) >= NUM_DEEP_CALLS


@pytest.mark.parametrize("mistake", FOUND_BY)
def test_random_programs_find_mistakes(mistake: str) -> None:
    with pytest.raises(InvariantViolation):
        find_difference(broken(mistake), FOUND_BY[mistake], 150, 30)
