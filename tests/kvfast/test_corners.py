"""Corners of kvfast that random calls rarely reach, each beside the reference."""

from __future__ import annotations

from collections.abc import Callable
from enum import IntEnum

import pytest

import kvref
from kvspec.batched import StepPlan
from kvspec.config import KVCacheConfig, KVCacheGroup, ManagerConfig
from kvspec.interface import Implementation, KVCacheManager
from kvspec.request import Request, RequestInput
from kvspec.sequential import batched_of
from kvspec.specs import FullAttentionSpec, LayerSpec, MambaSpec, SlidingWindowSpec
from tests.lockstep.test_lockstep import fast

__all__ = ["fast"]  # the fixture

Play = Callable[[Implementation], object]


def full(size: int) -> FullAttentionSpec:
    return FullAttentionSpec(size, 1, 1, "float16")


def mamba(size: int) -> MambaSpec:
    return MambaSpec(size, ((1,),), ("float16",), mamba_cache_mode="all")


def window(size: int, tokens: int) -> SlidingWindowSpec:
    return SlidingWindowSpec(size, 1, 1, "float16", sliding_window=tokens)


def make(implementation: Implementation, *specs: LayerSpec, **options: object) -> KVCacheManager:
    groups = tuple(KVCacheGroup((f"layer.{i}",), spec) for i, spec in enumerate(specs))
    cache = KVCacheConfig(40, groups)
    config = ManagerConfig(cache, 200, hash_seed="corners", **options)  # type: ignore[arg-type] # by name
    return implementation.create(config)


def request_of(
    implementation: Implementation, manager: KVCacheManager, name: str, num_tokens: int
) -> Request:
    return implementation.make_request(manager, RequestInput(name, range(num_tokens)))


def admit(manager: KVCacheManager, request: Request, num_new: int) -> None:
    assert manager.allocate_slots(request, num_new) is not None
    request.num_computed_tokens = num_new


def same(fast: Implementation, play: Play) -> object:
    """What both answer."""
    mine, reference = play(fast), play(kvref.implementation())
    assert mine == reference
    return mine


class Number(IntEnum):
    """Ints that are of another type."""

    ZERO = 0
    ONE = 1


@pytest.mark.rule("KV-BATCH-3")
def test_numbers_of_a_subclass_of_int_are_handles_and_counts(fast: Implementation) -> None:
    def play(implementation: Implementation) -> object:
        manager = make(implementation, full(4))
        batched = batched_of(implementation, manager)
        for name in ("a", "b"):
            batched.register(request_of(implementation, manager, name, 6))
        batched.step(StepPlan(new=[Number.ZERO, Number.ONE], max_new_tokens=[5, Number.ONE]))
        handles, counts = [Number.ONE, Number.ZERO], [2, Number.ONE]
        return list(batched.decode(handles, counts).num_scheduled_tokens)

    assert same(fast, play) == [2, 1]


@pytest.mark.rule("KV-BATCH-6")
def test_without_being_told_there_is_no_lookahead(fast: Implementation) -> None:
    def play(implementation: Implementation) -> object:
        manager = make(implementation, full(4))
        batched = batched_of(implementation, manager)
        a = batched.register(request_of(implementation, manager, "a", 8))
        batched.step(StepPlan(new=[a], max_new_tokens=3))
        batched.decode([a])
        return manager.get_blocks(batched.request_of(a)).to_lists()

    assert same(fast, play) == [[1]]


@pytest.mark.rule("KV-MAMBA-3", "KV-COORD-9")
def test_a_state_beyond_the_length_asked_for_is_no_hit(fast: Implementation) -> None:
    def play(implementation: Implementation) -> object:
        manager = make(implementation, full(8), mamba(4))
        first = request_of(implementation, manager, "first", 24)
        admit(manager, first, 24)
        manager.new_step_starts()
        second = request_of(implementation, manager, "second", 24)
        return [
            manager.find_longest_cache_hit_per_group(second, limit).hit_lengths_tokens
            for limit in (24, 23, 20, 15)
        ]

    assert same(fast, play)


@pytest.mark.parametrize("reach", [5, 9, 13, 30])
@pytest.mark.rule("KV-RET-2")
def test_a_window_longer_than_an_interval_keeps_the_first_block(
    fast: Implementation, reach: int
) -> None:
    def play(implementation: Implementation) -> object:
        manager = make(implementation, full(4), window(4, reach), retention_interval_tokens=8)
        request = request_of(implementation, manager, "a", 90)
        for computed in range(0, 48, 8):
            request.num_computed_tokens = computed
            assert manager.allocate_slots(request, 8) is not None
        snapshot = manager.snapshot()
        return snapshot.block_keys

    assert same(fast, play)


@pytest.mark.rule("KV-PART-5")
def test_blocks_behind_a_promoted_one_are_registered(fast: Implementation) -> None:
    def play(implementation: Implementation) -> object:
        manager = make(implementation, full(4), full(16))
        request = request_of(implementation, manager, "a", 70)
        admit(manager, request, 24)
        assert manager.cache_partial_block(request, 1, 20)
        assert manager.allocate_slots(request, 46) is not None
        return manager.snapshot().block_keys

    assert same(fast, play)
