"""Whole steps of kvfast, both builds, beside the loop of single calls over kvref."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from random import Random

import pytest

import kvref
from kvcheck.play.checks import CompareCheck, EventCheck
from kvcheck.play.performing import perform
from kvcheck.play.random_configs import random_config
from kvcheck.play.random_programs import Draw, program_of_steps
from kvcheck.play.runner import Check, Performed, Runner
from kvcheck.play.steps import Program
from kvspec.config import GIVEN_HASHES
from kvspec.errors import InvariantViolation, KVSpecError
from kvspec.interface import Implementation
from kvspec.profile import find_profile
from tests.lockstep.test_lockstep import fast
from tests.mistakes import mistaken, mistakes

__all__ = ["fast"]  # the fixture

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


@pytest.mark.parametrize("mistake", [each.id for each in mistakes() if each.kind == "steps"])
def test_a_mistake_in_whole_steps_is_seen(mistake: str) -> None:
    with pytest.raises((KVSpecError, IndexError)):
        play(mistaken(mistake))


@pytest.mark.parametrize(
    "mistake",
    ["GivenHashesAreTurned", "HashesOutliveTheirTokens", "PromptsAreForgotten",
     "MissingHashesAreForgiven", "CountsBeforeHashes", "AppendingCountsOnly",
     "RangesHaveNoBlocks", "HeldBlocksStayInTheQueue", "HoldsBeforeItChecks", "HoldingIsNoTouch",
     "FactsHaveTheWholeKey"],
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
