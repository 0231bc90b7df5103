"""What authors inherit from `kvspec.base`, and whole steps for managers without their own."""

from __future__ import annotations

import copy
from array import array
from dataclasses import replace
from typing import Any

import pytest

from kvcheck.discovery import find_implementation
from kvspec.base import BaseImplementation, BaseManager, BaseRequest
from kvspec.batched import BatchedImplementation, BatchedManager, StepOutput, StepPlan
from kvspec.blocks import KVCacheBlocks
from kvspec.config import KVCacheConfig, KVCacheGroup, ManagerConfig
from kvspec.errors import InvalidArgumentError, KVSpecError, UnknownBlockError, UnsupportedError
from kvspec.interface import Feature, Implementation, KVCacheManager
from kvspec.request import LoRA, RequestInput
from kvspec.sequential import SequentialManager, batched_of
from kvspec.specs import FullAttentionSpec, SlidingWindowSpec
from tests.stand_ins import minimal

SPEC = FullAttentionSpec(2, 1, 8, "float16")
CONFIG = ManagerConfig(KVCacheConfig(5, (KVCacheGroup(("layer.0",), SPEC),)), 64)
WINDOW = SlidingWindowSpec(2, 1, 8, "float16", sliding_window=4)


class Empty(BaseManager):
    @property
    def num_free_blocks(self) -> int:
        return 4


class EmptyImplementation(BaseImplementation):
    name = "empty"
    manager_class = Empty


EMPTY = EmptyImplementation()


def made(**content: Any) -> BaseRequest:
    request = EMPTY.make_request(manager(), RequestInput("r", (1, 2, 3, 4), **content))
    assert isinstance(request, BaseRequest)
    return request


def manager() -> KVCacheManager:
    return EMPTY.create(CONFIG)


def test_it_is_an_implementation_that_declares_prefix_caching() -> None:
    assert isinstance(EMPTY, Implementation)
    assert EMPTY.capabilities.features == {Feature.PREFIX_CACHING}
    assert manager().config.hash_block_size_tokens == 2
    assert manager().config.scheduler_block_size_tokens == 2
    assert manager().usage == 0.0
    assert EMPTY.planner is None


@pytest.mark.parametrize(
    "config",
    [
        replace(CONFIG, enable_events=True),
        replace(CONFIG, log_stats=True),
        replace(CONFIG, watermark=0.1),
        replace(CONFIG, kv_cache=replace(CONFIG.kv_cache, groups=())),
        replace(CONFIG, kv_cache=replace(CONFIG.kv_cache, groups=CONFIG.kv_cache.groups * 2)),
        replace(CONFIG, kv_cache=KVCacheConfig(5, (KVCacheGroup(("layer.0",), WINDOW),))),
    ],
    ids=["events", "statistics", "watermark", "no group", "two groups", "window"],
)
def test_a_configuration_that_needs_more_is_refused(config: ManagerConfig) -> None:
    with pytest.raises(UnsupportedError, match="empty does not support"):
        EMPTY.create(config)


@pytest.mark.parametrize(
    "content",
    [
        {"cache_salt": "s"},
        {"lora": LoRA("x", 1)},
        {"skip_reading_cache": True},
        {"reports_hits": True},
    ],
    ids=lambda content: next(iter(content)),
)
def test_content_that_needs_more_is_refused(content: dict[str, Any]) -> None:
    """Refuse a salt: ignoring it would share blocks that must be kept apart."""
    with pytest.raises(UnsupportedError):
        made(**content)


def test_calls_of_features_are_refused_and_what_is_no_call_is_no_attribute() -> None:
    for name in ("snapshot", "evict_blocks", "reset_prefix_cache", "pop_blocks_for_free"):
        with pytest.raises(UnsupportedError, match=f"Empty does not support {name}"):
            getattr(manager(), name)
    with pytest.raises(AttributeError, match="no attribute 'free_blcks'"):
        manager().free_blcks  # type: ignore[attr-defined]  # noqa: B018 (the misspelling itself)
    assert copy.deepcopy(manager()).num_free_blocks == 4


def test_a_property_that_fails_shows_its_own_error() -> None:
    """Expect Python to read the property again after an AttributeError."""

    class Misspelt(BaseManager):
        @property
        def num_free_blocks(self) -> int:
            return len(self.free_blcks)

    with pytest.raises(AttributeError, match="free_blcks"):
        _ = Misspelt(CONFIG).num_free_blocks


@pytest.mark.parametrize("name", ["get_computed_blocks", "free", "get_blocks"])
def test_what_an_author_must_write_says_so(name: str) -> None:
    with pytest.raises(NotImplementedError):
        getattr(manager(), name)(made())
    with pytest.raises(NotImplementedError):
        manager().allocate_slots(made(), 1)


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        ((0, 0, None, {}), InvalidArgumentError),
        ((-1, 0, None, {}), InvalidArgumentError),
        ((1.0, 0, None, {}), InvalidArgumentError),
        ((1, 2, None, {}), InvalidArgumentError),
        ((1, 3, KVCacheBlocks(([1],)), {}), InvalidArgumentError),
        ((1, 2, KVCacheBlocks(([5],)), {}), UnknownBlockError),
        ((1, 2, KVCacheBlocks(([-1],)), {}), UnknownBlockError),
        ((1, 0, None, {"num_lookahead_tokens": 2}), UnsupportedError),
    ],
)
def test_illegal_arguments_of_an_allocation_raise(
    arguments: tuple[Any, ...], error: type[KVSpecError]
) -> None:
    with pytest.raises(error):
        Empty(CONFIG).checked_hit(*arguments)


def test_legal_arguments_give_the_blocks_of_the_hit() -> None:
    silent = {"num_encoder_tokens": 3, "has_scheduled_reqs": True, "reserved_blocks": 0}
    empty = Empty(CONFIG)
    assert empty.checked_hit(1, 0, None, silent) == []
    assert empty.checked_hit(1, 4, KVCacheBlocks(([2, 1],)), {}) == [2, 1]


def test_a_request_grows_by_tokens_only() -> None:
    request = made()
    EMPTY.append_tokens(manager(), request, [5])
    assert (request.num_tokens, request.num_prompt_tokens) == (5, 4)
    for wrong in ([-1], ["5"]):
        with pytest.raises(InvalidArgumentError):
            EMPTY.append_tokens(manager(), request, wrong)  # type: ignore[arg-type]  # on purpose
    assert request.token_ids == [1, 2, 3, 4, 5]


def test_the_other_parts_of_an_implementation_are_refused() -> None:
    with pytest.raises(UnsupportedError):
        EMPTY.clone(manager())
    with pytest.raises(UnsupportedError):
        EMPTY.make_hit_rate_window()


SMALL = minimal()
CONFIG_OF_SEQUENTIAL = ManagerConfig(
    KVCacheConfig(12, (KVCacheGroup(("layer",), FullAttentionSpec(4, 1, 8, "float16")),)),
    max_model_len_tokens=64,
)


def small() -> tuple[BatchedManager, list[int]]:
    """Return a small manager, and two requests that share eight tokens."""
    manager = SMALL.create(CONFIG_OF_SEQUENTIAL)
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
        implementation.batched(SMALL.create(CONFIG_OF_SEQUENTIAL))
    assert error.value.field == "manager"
