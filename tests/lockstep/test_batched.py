"""Whole steps of kvfast, both builds, beside the loop of single calls over kvref."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from random import Random
from typing import TypeAlias

import pytest

import kvref
from kvcheck.play.random_configs import random_config
from kvcheck.rules.batch_sides import Batch
from kvspec.config import GIVEN_HASHES
from kvspec.errors import InvalidArgumentError, InvariantViolation
from kvspec.interface import Feature, Implementation
from kvspec.profile import find_profile
from kvspec.sequential import SequentialManager, batched_of
from tests.lockstep.following import Following
from tests.lockstep.test_lockstep import fast
from tests.mistakes import mistaken, mistakes

__all__ = ["fast"]  # the fixture

REFERENCE = kvref.implementation()
NUM_ENGINES = 60
NUM_STEPS = 20
NUM_DEEP_ENGINES = 4000


Steps: TypeAlias = tuple[Implementation, Batch]
LOOP: Steps = (REFERENCE, SequentialManager)


def play(first: Steps, second: Steps, seeds: Sequence[int] = range(NUM_ENGINES)) -> list[Following]:
    """Engines on random configurations, every fifth a hybrid with a large pool.

    Every third is told the hashes, every fourth has the later choices, and another fourth counts
    look-ups when they are made.
    """
    engines = []
    for seed in seeds:
        random = Random(seed)
        config = random_config(random, hybrid=seed % 5 == 0)
        if seed % 3 == 1:
            config = replace(config, hash_function=random.choice(list(GIVEN_HASHES)))
        if seed % 4 == 2:
            config = replace(config, policy=find_profile("vllm-0.33").policy)
        if seed % 4 == 3:
            config = replace(config, policy=replace(config.policy, lookups_counted="asked"))
        engines.append(Following(config, [first, second], random))
        engines[-1].play(NUM_STEPS)
    return engines


def counted(engines: Sequence[Following]) -> tuple[int, int, int]:
    """Entries granted and refused, and illegal plans, of all engines."""
    return (
        sum(engine.num_granted for engine in engines),
        sum(engine.num_refused for engine in engines),
        sum(engine.num_illegal for engine in engines),
    )


def own_steps(implementation: Implementation) -> tuple[Implementation, Batch]:
    """The implementation with whole steps of its own."""
    if Feature.BATCHED not in implementation.capabilities.features:
        pytest.skip(f"{implementation.capabilities.name} has no steps of its own")
    return implementation, batched_of


def test_random_steps_are_those_of_the_loop(fast: Implementation) -> None:
    granted, refused, illegal = counted(play(LOOP, own_steps(fast)))
    assert granted > 1500
    assert refused > 1500
    assert illegal > 5000


@pytest.mark.deep
def test_many_random_steps_are_those_of_the_loop(fast: Implementation) -> None:
    second = own_steps(fast)
    for seed in range(NUM_DEEP_ENGINES):
        play(LOOP, second, [1_000_000 + seed])


def test_the_loop_is_the_same_over_kvfast(fast: Implementation) -> None:
    """Single calls of kvfast under the loop."""
    play(LOOP, (fast, SequentialManager), range(NUM_ENGINES // 3))


@pytest.mark.parametrize("mistake", [each.id for each in mistakes() if each.kind == "steps"])
def test_a_mistake_in_whole_steps_is_seen(mistake: str) -> None:
    """Side by side with the reference, as kvfast is; some run into errors of their own."""
    with pytest.raises((InvariantViolation, InvalidArgumentError, IndexError)):
        play(LOOP, own_steps(mistaken(mistake)))


@pytest.mark.parametrize(
    "mistake",
    ["GivenHashesAreTurned", "HashesOutliveTheirTokens", "PromptsAreForgotten",
     "MissingHashesAreForgiven", "CountsBeforeHashes", "AppendingCountsOnly",
     "RangesHaveNoBlocks", "HeldBlocksStayInTheQueue", "HoldsBeforeItChecks", "HoldingIsNoTouch",
     "FactsHaveTheWholeKey"],
)  # fmt: skip
def test_what_is_done_between_steps_shows_mistakes(mistake: str) -> None:
    """Of followed requests, held blocks, and facts."""
    with pytest.raises(InvariantViolation):
        play(LOOP, own_steps(mistaken(mistake)))


def test_a_table_that_is_not_told_of_a_block_is_seen() -> None:
    """Also where both sides keep it to themselves."""
    sides = [own_steps(mistaken("LeavesOutTheRest")) for _ in range(2)]
    with pytest.raises(InvariantViolation, match="KV-BATCH-10"):
        play(sides[0], sides[1])
