"""Whole steps of kvfast, both builds, beside the loop of single calls over kvref.

And the loop itself beside single calls that are written down here once more, from the rules alone.
"""

from __future__ import annotations

from collections.abc import Sequence
from random import Random
from typing import Any, TypeAlias

import pytest

import kvref
from kvcheck.play.random_configs import random_config
from kvcheck.rules.batch_sides import Batch
from kvcheck.rules.random_batches import Engine
from kvspec.batched import StepPlan
from kvspec.errors import InvariantViolation
from kvspec.interface import Feature, Implementation
from kvspec.sequential import SequentialManager, batched_of
from tests.lockstep.single_calls import SingleCalls
from tests.lockstep.test_lockstep import fast
from tests.mistakes import mistaken, of_random_steps

__all__ = ["fast"]  # the fixture

REFERENCE = kvref.implementation()
NUM_ENGINES = 60
NUM_STEPS = 20
NUM_DEEP_ENGINES = 4000


Steps: TypeAlias = tuple[Implementation, Batch]
LOOP: Steps = (REFERENCE, SequentialManager)


class Legal(Engine):
    """An engine without mistakes."""

    def try_broken(self, plan: StepPlan) -> None:
        """Not here."""


def play(
    first: Steps, second: Steps, seeds: Sequence[int] = range(NUM_ENGINES), *, kind: Any = Engine
) -> list[Engine]:
    """Engines on random configurations, every fifth a hybrid with a large pool."""
    engines = []
    for seed in seeds:
        random = Random(seed)
        config = random_config(random, hybrid=seed % 5 == 0)
        engines.append(kind(config, [first, second], random))
        engines[-1].play(NUM_STEPS)
    return engines


def counted(engines: Sequence[Engine]) -> tuple[int, int, int]:
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
    play(LOOP, (fast, SequentialManager))


def test_the_loop_is_what_an_engine_would_write_down_from_the_rules() -> None:
    single: Any = SingleCalls
    granted, refused, _ = counted(play((REFERENCE, single), LOOP, kind=Legal))
    assert granted > 1500
    assert refused > 1500


@pytest.mark.parametrize("mistake", of_random_steps())
def test_a_mistake_in_whole_steps_is_seen(mistake: str) -> None:
    """Side by side with the reference, as kvfast is."""
    with pytest.raises(InvariantViolation, match="KV-BATCH-"):
        play(LOOP, own_steps(mistaken(mistake)))


def test_a_table_that_is_not_told_of_a_block_is_seen() -> None:
    """Also where both sides keep it to themselves."""
    sides = [own_steps(mistaken("LeavesOutTheRest")) for _ in range(2)]
    with pytest.raises(InvariantViolation, match="KV-BATCH-10"):
        play(sides[0], sides[1])
