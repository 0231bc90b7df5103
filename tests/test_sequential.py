"""Whole steps for a manager that has none, made of its single calls."""

from __future__ import annotations

from array import array

import pytest

from kvcheck.discovery import find_implementation
from kvspec.batched import BatchedImplementation, BatchedManager, StepOutput, StepPlan
from kvspec.config import KVCacheConfig, KVCacheGroup, ManagerConfig
from kvspec.errors import InvalidArgumentError, UnsupportedError
from kvspec.interface import Feature
from kvspec.request import RequestInput
from kvspec.sequential import SequentialManager, batched_of
from kvspec.specs import FullAttentionSpec
from tests.judge.minimal import minimal

SMALL = minimal()
CONFIG = ManagerConfig(
    KVCacheConfig(12, (KVCacheGroup(("layer",), FullAttentionSpec(4, 1, 8, "float16")),)),
    max_model_len_tokens=64,
)


def small() -> tuple[BatchedManager, list[int]]:
    """Return a small manager, and two requests that share eight tokens."""
    manager = SMALL.create(CONFIG)
    batched = batched_of(SMALL, manager)
    texts = {"a": list(range(9)), "b": [*range(8), 99]}
    made = [SMALL.make_request(manager, RequestInput(name, text)) for name, text in texts.items()]
    return batched, [batched.register(request) for request in made]


@pytest.mark.rule("KV-BATCH-1")
def test_a_small_manager_has_whole_steps() -> None:
    batched, handles = small()
    assert isinstance(batched, SequentialManager)
    slots = array("q", [0] * 18)
    result = batched.step(StepPlan(new=handles), StepOutput(slot_mappings=[slots]))
    assert result.num_scheduled_tokens.tolist() == [9, 1]
    assert result.hit_tokens.tolist() == [0, 8]
    batched.append(handles, [1, 2])
    assert batched.decode(handles).num_scheduled_tokens.tolist() == [1, 1]
    batched.step(StepPlan(finished=handles[:1], preempted=handles[1:]))
    assert batched.manager.num_free_blocks == 11
    batched.unregister(handles)


@pytest.mark.rule("KV-BATCH-2")
def test_what_a_small_manager_lacks_is_refused_before_anything_changes() -> None:
    batched, (a, b) = small()
    batched.admit([a])
    batched.append([a], [9])
    plans = (
        StepPlan(decoding=[a], decode_tokens=2),
        StepPlan(decoding=[a], num_lookahead_tokens=1),
        StepPlan(decoding=[a], new=[b], reserved_blocks=1),
        StepPlan(finished=[a], new=[b], full_sequence_must_fit=True),
    )
    for plan in plans:
        with pytest.raises(UnsupportedError):
            batched.step(plan)
        assert batched.request_of(a).num_computed_tokens == 9


@pytest.mark.parametrize("name", ["kvref", "kvfast", "kvfast-uncompiled"])
def test_what_has_the_feature_has_whole_steps_of_its_own(name: str) -> None:
    implementation = find_implementation(name)
    assert Feature.BATCHED in implementation.capabilities.features
    assert isinstance(implementation, BatchedImplementation)
    with pytest.raises(InvalidArgumentError) as error:
        implementation.batched(SMALL.create(CONFIG))
    assert error.value.field == "manager"
