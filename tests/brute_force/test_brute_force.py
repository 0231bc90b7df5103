"""Every look-up of every length, on random caches, against the enumeration."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvspec.config import ManagerConfig
from kvspec.interface import Implementation
from tests.brute_force.enumeration import (
    enumerated,
    worth_caching,
    wrong_look_up,
    wrongly_cached,
)
from tests.brute_force.worlds import (
    Placed,
    configs,
    contested_worlds,
    placed_worlds,
    retained_tails,
    short_beginnings,
)

MANY = 4 * settings().max_examples
"""Each example is asked some twenty questions; with --deep there are 30 times as many examples."""


def expect_enumerated(implementation: Implementation, world: Placed) -> None:
    """Compare hits of all lengths, agreed and per group."""
    manager = world.build(implementation)
    expected = enumerated(world, implementation, manager)
    assert wrong_look_up(implementation, manager, expected) is None


@pytest.mark.rule("KV-FULL-2", "KV-FULL-3", "KV-FULL-4", "KV-SW-2", "KV-SW-3", "KV-SW-4", "KV-SW-5")
@pytest.mark.rule("KV-SW-6", "KV-CHUNK-2", "KV-MAMBA-3", "KV-POOL-13", "KV-HASH-5", "KV-HASH-6")
@pytest.mark.rule("KV-COORD-2", "KV-COORD-4", "KV-COORD-5", "KV-COORD-6", "KV-COORD-7")
@pytest.mark.rule("KV-COORD-8", "KV-COORD-9", "KV-COORD-10", "KV-COORD-11", "KV-COORD-12")
@given(world=placed_worlds() | contested_worlds())
@settings(max_examples=MANY)
def test_hits_are_what_enumeration_finds_in_any_cache(
    implementation: Implementation, world: Placed
) -> None:
    expect_enumerated(implementation, world)


@pytest.mark.rule("KV-SW-4", "KV-SW-5")
@pytest.mark.parametrize("world", short_beginnings())
def test_short_beginnings_are_what_enumeration_finds(
    implementation: Implementation, world: Placed
) -> None:
    expect_enumerated(implementation, world)


@pytest.mark.rule("KV-RET-1", "KV-RET-2", "KV-RET-3", "KV-RET-4", "KV-RET-5", "KV-FULL-6")
@pytest.mark.rule("KV-CHUNK-4", "KV-SW-6", "KV-COORD-13", "KV-GRP-11")
@given(config=configs(retaining=True), num_tokens=st.integers(1, 40))
def test_what_is_cached_is_what_boundaries_need(
    implementation: Implementation, config: ManagerConfig, num_tokens: int
) -> None:
    expected = worth_caching(implementation.create(config).config, num_tokens)
    assert wrongly_cached(implementation, expected) is None


@pytest.mark.rule("KV-RET-1", "KV-RET-2", "KV-RET-3", "KV-RET-4", "KV-COORD-13")
@pytest.mark.parametrize(("config", "num_tokens"), retained_tails())
def test_tails_are_what_boundaries_need(
    implementation: Implementation, config: ManagerConfig, num_tokens: int
) -> None:
    expected = worth_caching(implementation.create(config).config, num_tokens)
    assert wrongly_cached(implementation, expected) is None
