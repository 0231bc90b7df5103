"""Numbers that are ints of another type."""

from __future__ import annotations

from enum import IntEnum

import pytest

from kvspec.batched import StepPlan
from kvspec.config import KVCacheConfig, KVCacheGroup, ManagerConfig
from kvspec.interface import Implementation, KVCacheManager
from kvspec.request import RequestInput
from kvspec.sequential import batched_of
from kvspec.specs import FullAttentionSpec, LayerSpec
from tests.lockstep.test_lockstep import fast

__all__ = ["fast"]  # the fixture


def full(size: int) -> FullAttentionSpec:
    return FullAttentionSpec(size, 1, 1, "float16")


def make(implementation: Implementation, *specs: LayerSpec, **options: object) -> KVCacheManager:
    groups = tuple(KVCacheGroup((f"layer.{i}",), spec) for i, spec in enumerate(specs))
    cache = KVCacheConfig(40, groups)
    config = ManagerConfig(cache, 200, hash_seed="corners", **options)  # type: ignore[arg-type] # by name
    return implementation.create(config)


class Number(IntEnum):
    ZERO = 0
    ONE = 1


@pytest.mark.rule("KV-BATCH-3")
def test_numbers_of_a_subclass_of_int_are_handles_and_counts(fast: Implementation) -> None:
    manager = make(fast, full(4))
    batched = batched_of(fast, manager)
    for name in ("a", "b"):
        batched.register(fast.make_request(manager, RequestInput(name, range(6))))
    batched.step(StepPlan(new=[Number.ZERO, Number.ONE], max_new_tokens=[5, Number.ONE]))
    granted = batched.decode([Number.ONE, Number.ZERO], [2, Number.ONE])
    assert list(granted.num_scheduled_tokens) == [2, 1]
