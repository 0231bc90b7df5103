"""KV-ERR: refusals are values, illegal calls are typed errors that change nothing."""

from __future__ import annotations

from typing import Any

import pytest

from kvspec.config import KVCacheConfig, KVCacheGroup, ManagerConfig
from kvspec.errors import (
    BlockReleaseError,
    ConfigError,
    InvalidArgumentError,
    InvariantViolation,
    KVSpecError,
    StaleHitError,
    UnknownBlockError,
    UnsupportedError,
)
from kvspec.interface import Implementation
from kvspec.specs import FullAttentionSpec, LayerSpec
from tests.rules.builders import (
    MakeManager,
    MakeRequest,
    Story,
    admit,
    everything,
    full,
    make_config,
    tell_story,
)


@pytest.mark.rule("KV-ERR-1", "KV-MGR-7")
def test_lack_of_space_is_an_answer(make_manager: MakeManager, make_request: MakeRequest) -> None:
    """2 blocks are free and a request needs 3: None, until another request gives way."""
    manager = make_manager(6, 4)
    other = make_request(manager, "other", range(12))
    admit(manager, other)
    assert manager.num_free_blocks == 2
    request = make_request(manager, "r", range(50, 62))
    assert admit(manager, request) is None
    assert manager.reset_prefix_cache() is False
    manager.free(other)
    assert admit(manager, request) is not None


@pytest.mark.rule("KV-ERR-2", "KV-ERR-3")
def test_an_illegal_call_changes_nothing(
    make_manager: MakeManager, make_request: MakeRequest
) -> None:
    """free_blocks([3, 2, 99]) carries 99 and 6; blocks 3 and 2 are still popped."""
    config: dict[str, Any] = {
        "enable_events": True,
        "log_stats": True,
        "residency_sample_rate": 1.0,
        "clock": lambda: 0,
    }
    story = tell_story(make_manager, make_request, **config)
    story.manager.pop_blocks_for_free(story.a)
    everything(story.manager)
    before = everything(story.manager)
    with pytest.raises(UnknownBlockError) as caught:
        story.manager.free_blocks([3, 2, 99])
    assert (caught.value.block_id, caught.value.num_blocks) == (99, 6)
    assert everything(story.manager) == before
    assert story.manager.snapshot().popped_blocks == (1, 2, 3)


@pytest.mark.rule("KV-ERR-2")
def test_an_error_names_argument_value_and_what_is_legal(story: Story) -> None:
    """-3 new tokens: the field, the value and a sentence."""
    with pytest.raises(InvalidArgumentError) as caught:
        story.manager.allocate_slots(story.a, -3)
    assert (caught.value.field, caught.value.value) == ("num_new_tokens", -3)
    assert caught.value.allowed
    assert "num_new_tokens = -3" in str(caught.value)


@pytest.mark.rule("KV-ERR-2")
@pytest.mark.parametrize(
    ("error", "also"),
    [
        (InvalidArgumentError, ValueError),
        (ConfigError, InvalidArgumentError),
        (StaleHitError, InvalidArgumentError),
        (BlockReleaseError, InvalidArgumentError),
        (UnknownBlockError, KeyError),
        (UnsupportedError, NotImplementedError),
        (InvariantViolation, KVSpecError),
    ],
)
def test_every_error_is_of_the_contract(error: type[Exception], also: type[Exception]) -> None:
    """Each is a KVSpecError, and the built-in error that a caller would catch."""
    assert issubclass(error, KVSpecError)
    assert issubclass(error, also)


@pytest.mark.rule("KV-ERR-3", "KV-POOL-10")
@pytest.mark.parametrize("bad", [-1, 6, True, False, 1.0, None, "1", (1,)])
@pytest.mark.parametrize("call", ["free_blocks", "evict_blocks"])
def test_a_block_id_is_an_int_of_the_pool(story: Story, call: str, bad: object) -> None:
    """-1 and 6 are no blocks in a pool of 6; a bool is no int; 0 stands for nothing."""
    before = story.manager.snapshot()
    with pytest.raises(UnknownBlockError) as caught:
        getattr(story.manager, call)([0, bad])
    assert caught.value.block_id == bad
    assert str(bad) in str(caught.value)
    getattr(story.manager, call)([0])
    assert story.manager.snapshot() == before


@pytest.mark.rule("KV-ERR-4", "KV-MGR-12", "KV-MGR-13", "KV-MGR-14")
def test_an_unknown_request_holds_nothing(
    make_manager: MakeManager, make_request: MakeRequest
) -> None:
    """A request that was aborted before it was admitted can be freed, popped and asked about."""
    story = tell_story(make_manager, make_request, enable_events=True)
    manager = story.manager
    before = manager.snapshot()
    stranger = make_request(manager, "stranger", range(9))
    manager.free(stranger)
    manager.free(stranger)
    manager.cache_blocks(stranger, 8)
    manager.remove_skipped_blocks(stranger, 8)
    assert manager.pop_blocks_for_free(stranger) == ()
    assert manager.get_blocks(stranger).to_lists() == [[]]
    assert manager.get_unhashed_block_ids(stranger) == ((),)
    assert manager.get_num_common_prefix_blocks(stranger) == (0,)
    assert manager.snapshot() == before


@pytest.mark.rule("KV-ERR-4", "KV-GRP-1")
def test_a_request_is_known_by_its_name(story: Story, make_request: MakeRequest) -> None:
    """Another value of the same name stands for the same blocks."""
    twin = make_request(story.manager, "a", [99])
    assert story.manager.get_blocks(twin).to_lists() == [[1, 2, 3]]
    assert story.manager.get_unhashed_block_ids(twin) == ((3,),)


@pytest.mark.rule("KV-ERR-5")
@pytest.mark.parametrize(
    ("members", "field"),
    [
        ({"num_blocks": 0}, "num_blocks"),
        ({"num_blocks": True}, "num_blocks"),
        ({"max_model_len_tokens": 0}, "max_model_len_tokens"),
        ({"watermark": 1.5}, "watermark"),
        ({"watermark": float("nan")}, "watermark"),
        ({"residency_sample_rate": -0.1}, "residency_sample_rate"),
        ({"hash_function": "md5"}, "hash_function"),
        ({"hash_seed": 7}, "hash_seed"),
        ({"hash_seed": "\ud83d"}, "hash_seed"),
        ({"policy": None}, "policy"),
        ({"registry": ()}, "registry"),
        ({"dcp_world_size": 0}, "dcp_world_size"),
        ({"enable_caching": 1}, "enable_caching"),
        ({"retention_interval_tokens": 1.0}, "retention_interval_tokens"),
    ],
)
def test_members_are_checked_when_the_value_is_made(members: dict[str, Any], field: str) -> None:
    """The ConfigError of `ManagerConfig` names the field."""
    with pytest.raises(ConfigError) as caught:
        make_config(**members)
    assert caught.value.field == field


@pytest.mark.rule("KV-ERR-5")
@pytest.mark.parametrize("groups", [None, 7, [], ("layer",)])
def test_groups_are_a_tuple_of_groups(groups: tuple[KVCacheGroup, ...]) -> None:
    """Anything else is refused."""
    with pytest.raises(ConfigError) as caught:
        KVCacheConfig(6, groups)
    assert caught.value.field == "groups"


@pytest.mark.rule("KV-ERR-5")
@pytest.mark.parametrize(
    ("members", "field"),
    [
        ({"dtype": "float17"}, "dtype"),
        ({"num_kv_heads": 0}, "num_kv_heads"),
        ({"head_size": 8.0}, "head_size"),
        ({"page_size_padded": 0}, "page_size_padded"),
        ({"indexes_kv_by_block_stride": 1}, "indexes_kv_by_block_stride"),
    ],
)
def test_members_of_a_spec_are_checked(members: dict[str, Any], field: str) -> None:
    """The ConfigError of the spec names the field."""
    with pytest.raises(ConfigError) as caught:
        full(4, **members)
    assert caught.value.field == field


@pytest.mark.rule("KV-ERR-5", "KV-CFG-3")
def test_combinations_are_checked_by_create(implementation: Implementation) -> None:
    """Caching without a group can be written down, and is refused by `create`."""
    config: ManagerConfig = make_config(specs=[])
    with pytest.raises(ConfigError) as caught:
        implementation.create(config)
    assert caught.value.field == "kv_cache.groups"


class UnheardOfSpec(LayerSpec):
    """A spec that no implementation knows."""


@pytest.mark.rule("KV-ERR-5")
def test_a_spec_that_is_lacking_is_named(implementation: Implementation) -> None:
    """The UnsupportedError names the spec and the implementation."""
    with pytest.raises(UnsupportedError) as caught:
        implementation.create(make_config(specs=[UnheardOfSpec(4)]))
    assert "UnheardOfSpec" in caught.value.capability
    assert caught.value.implementation == implementation.capabilities.name


@pytest.mark.rule("KV-ERR-6")
def test_the_largest_count_is_2_to_the_53_minus_1(
    make_manager: MakeManager, make_request: MakeRequest
) -> None:
    """With as many of lookahead there are the 32 slots of the longest sequence."""
    manager = make_manager(20, 4, max_model_len_tokens=32)
    request = make_request(manager, "r", range(9))
    before = manager.snapshot()
    with pytest.raises(InvalidArgumentError) as caught:
        manager.allocate_slots(request, 1, num_lookahead_tokens=2**53)
    assert caught.value.field == "num_lookahead_tokens"
    assert manager.snapshot() == before
    granted = manager.allocate_slots(request, 1, num_lookahead_tokens=2**53 - 1)
    assert granted is not None
    block_size = manager.config.scheduler_block_size_tokens or 1
    assert len(granted.groups[0]) * block_size == manager.config.max_model_len_tokens


@pytest.mark.rule("KV-ERR-6")
def test_a_configuration_has_no_larger_count() -> None:
    """The error names the member."""
    with pytest.raises(ConfigError) as caught:
        FullAttentionSpec(2**53, 1, 1, "float16")
    assert caught.value.field == "block_size"
