"""Rules of planning: need, check, and what follows from a plan (KV-PLAN-9 …)."""

from __future__ import annotations

import copy
from dataclasses import replace
from typing import Any

import pytest

from kvspec.config import KVCacheConfig, KVCacheGroup, ManagerConfig
from kvspec.errors import CacheMemoryError, ConfigError
from kvspec.interface import Implementation
from kvspec.planning import AUTO_FIT, BlockSizes, Capacity, Planner, PlanningConfig
from kvspec.request import RequestInput
from tests.rules.planning import (
    GIB,
    PAGE,
    PROFILE,
    chunk,
    encoder_only,
    full,
    groups_of,
    latent,
    named,
    settings,
    sink,
    state,
    window,
)


@pytest.mark.rule("KV-PLAN-9")
def test_the_null_block_counts(planner: Planner) -> None:
    """64 tokens are four blocks, and need five."""
    layers, config = named(full()), settings(64)
    planner.check_enough_memory(layers, config, 5 * PAGE)
    with pytest.raises(CacheMemoryError, match=r"0\.00 GiB.*has 48 tokens") as caught:
        planner.check_enough_memory(layers, config, 5 * PAGE - 1)
    error = caught.value
    assert (error.field, error.value) == ("available_memory_bytes", 5 * PAGE - 1)
    assert (error.needed_bytes, error.available_bytes) == (5 * PAGE, 5 * PAGE - 1)
    assert (error.max_model_len_tokens, error.longest_tokens) == (64, 48)
    assert isinstance(error, ConfigError)


@pytest.mark.rule("KV-PLAN-9")
def test_the_profile_counts_neither_null_nor_sink_blocks(planner: Planner) -> None:
    """Four blocks do, and a length is estimated from them alone."""
    config = settings(64, policy=PROFILE)
    planner.check_enough_memory(named(sink(32)), config, 4 * PAGE)
    planner.plan((named(sink(32)),), config, (4 * PAGE,))
    with pytest.raises(CacheMemoryError, match="has 48 tokens"):
        planner.plan((named(sink(32)),), config, (4 * PAGE - 1,))


@pytest.mark.rule("KV-PLAN-9")
def test_blocks_set_aside_count(planner: Planner) -> None:
    """Two blocks of sinks, one null block, four of the request."""
    config = settings(64)
    planner.check_enough_memory(named(sink(32)), config, 7 * PAGE)
    with pytest.raises(CacheMemoryError):
        planner.check_enough_memory(named(sink(32)), config, 7 * PAGE - 1)
    both = named(sink(32), latent())  # one group, and its sinks are set aside once
    planner.check_enough_memory(both, config, 7 * (PAGE + 18_432))
    with pytest.raises(CacheMemoryError):
        planner.check_enough_memory(both, config, 7 * (PAGE + 18_432) - 1)


@pytest.mark.rule("KV-PLAN-9")
def test_a_running_state_in_short_blocks_needs_them_all(planner: Planner) -> None:
    """64 tokens in blocks of 16: four, two speculative ones, and the null block."""
    short, config = state(64, num_speculative_blocks=2), settings(64)
    planner.check_enough_memory(named(short), config, 7 * 64)
    with pytest.raises(CacheMemoryError):
        planner.check_enough_memory(named(short), config, 7 * 64 - 1)
    planner.check_enough_memory(named(short), replace(config, policy=PROFILE), 3 * 64)
    long = state(64, block_size=64, num_speculative_blocks=2)
    planner.check_enough_memory(named(long), config, 4 * 64)
    layers = named(short, state(128, num_speculative_blocks=2))
    planner.check_enough_memory(layers, config, 7 * 192)


@pytest.mark.rule("KV-PLAN-9")
def test_groups_that_are_padded_cost_their_padding(planner: Planner) -> None:
    """Full attention twice, a window thrice: groups of two, and the last of one layer."""
    layers = named(*[full()] * 2, *[window(8)] * 3)
    config = settings(64, 16)
    blocks = 4 + 2 * (2 + 1) + 1  # windows: cdiv(min(8 - 1 + 16, 64), 16) + 1 = 3
    planner.check_enough_memory(layers, config, blocks * 2 * PAGE)
    with pytest.raises(CacheMemoryError):
        planner.check_enough_memory(layers, config, blocks * 2 * PAGE - 1)
    added_up = (2 * 4 + 3 * 3) * PAGE
    planner.check_enough_memory(layers, replace(config, policy=PROFILE), added_up)


@pytest.mark.rule("KV-PLAN-9")
@pytest.mark.parametrize("available", [0, -1])
def test_no_memory_is_an_error_of_its_own(planner: Planner, available: int) -> None:
    """Not a request too long, but nothing there."""
    with pytest.raises(ConfigError) as caught:
        planner.check_enough_memory(named(full()), settings(), available)
    assert not isinstance(caught.value, CacheMemoryError)
    assert caught.value.field == "available_memory_bytes"
    planner.check_enough_memory((), settings(), available)


@pytest.mark.rule("KV-PLAN-10")
@pytest.mark.parametrize(
    ("num_blocks", "longest"), [(0, 0), (1, 0), (2, 16), (6, 80), (7, 96), (8, 100), (9, 100)]
)
def test_the_longest_length_that_fits(planner: Planner, num_blocks: int, longest: int) -> None:
    """At most the configured 100 tokens."""
    found = planner.estimate_max_model_len(named(full()), settings(100), num_blocks * PAGE)
    assert found == longest


@pytest.mark.rule("KV-PLAN-10")
def test_automatic_length_is_the_smallest_over_the_workers(planner: Planner) -> None:
    """Workers without layers have no say; no length at all is an error."""
    config = settings(100, original_max_model_len_tokens=AUTO_FIT)
    workers = (named(full()), named(full(), full(), first=1), ())
    plan = planner.plan(workers, config, (6 * PAGE, 2 * 4 * PAGE, 0))
    assert plan.max_model_len_tokens == 48
    with pytest.raises(ConfigError, match="one token") as caught:
        planner.plan(workers, config, (6 * PAGE, 2 * PAGE, 0))
    assert caught.value.field == "available_memory_bytes"
    fixed = planner.plan((named(full()),), settings(100), (8 * PAGE,))
    assert fixed.max_model_len_tokens == 100
    nobody = planner.plan(((),), config, (0,))
    assert nobody.max_model_len_tokens == 100


def layout(num_blocks: int, *groups: KVCacheGroup) -> KVCacheConfig:
    """Groups and blocks, no tensors."""
    return KVCacheConfig(num_blocks, groups)


@pytest.mark.rule("KV-PLAN-17")
def test_concurrency_and_capacity(planner: Planner) -> None:
    """36 blocks for requests of 40: 0.9 of one, 7,371 of 8,191 tokens."""
    cache = layout(36, KVCacheGroup(("a", "b"), chunk(512, 64)))
    config = settings(8_191, 2_048)
    assert planner.max_concurrency(cache, config) == 0.9
    assert planner.capacity(cache, config) == Capacity(7_371, 0.9)
    two = layout(10, *groups_of(16, 16))
    assert planner.max_concurrency(two, settings(64)) == 10 / 8


@pytest.mark.rule("KV-PLAN-17")
@pytest.mark.parametrize(
    "groups",
    [(), (KVCacheGroup(("a",), encoder_only()),)],
)
def test_without_a_need_there_is_no_concurrency(
    planner: Planner, groups: tuple[KVCacheGroup, ...]
) -> None:
    """Nothing limits the number of requests."""
    with pytest.raises(ConfigError) as caught:
        planner.capacity(layout(1, *groups), settings())
    assert caught.value.field == "groups"


@pytest.mark.rule("KV-PLAN-18")
@pytest.mark.parametrize(
    ("groups", "members", "sizes"),
    [
        ((), {}, (8, 8)),
        (groups_of(64), {"dcp_world_size": 2, "pcp_world_size": 3}, (48, 48)),
        (groups_of(16, 32), {}, (32, 16)),
        (groups_of(16, 24), {"hash_block_size": 4}, (48, 4)),
        (groups_of(16, 24), {"enable_caching": False}, (48, 48)),
        (groups_of(16, 24), {"enable_caching": False, "has_connector": True}, (48, 8)),
        ((*groups_of(8), KVCacheGroup(("m",), state(64, 4_096))), {}, (4_096, 4_096)),
        ((*groups_of(16), KVCacheGroup(("m",), state(64, 8))), {}, (16, 8)),
    ],
)
def test_block_sizes(
    planner: Planner,
    groups: tuple[KVCacheGroup, ...],
    members: dict[str, int],
    sizes: tuple[int, int],
) -> None:
    """The configured block size is 8."""
    config = settings(**{"block_size": 8, **members})
    assert planner.block_sizes(layout(9, *groups), config) == BlockSizes(*sizes)


@pytest.mark.rule("KV-PLAN-18")
@pytest.mark.parametrize(
    ("members", "field"),
    [
        ({"hash_block_size": 16}, "hash_block_size"),
        ({"dcp_world_size": 2}, "dcp_world_size"),
        ({"pcp_world_size": 2}, "pcp_world_size"),
    ],
)
def test_block_sizes_that_do_not_divide(
    planner: Planner, members: dict[str, Any], field: str
) -> None:
    """Groups of 16 and 24."""
    with pytest.raises(ConfigError) as caught:
        planner.block_sizes(layout(9, *groups_of(16, 24)), settings(**members))
    assert caught.value.field == field


@pytest.mark.rule("KV-PLAN-19")
def test_planning_changes_nothing_it_is_given(planner: Planner) -> None:
    """Also with hybrid off, where windows turn into full attention."""
    layers, config = named(full(), window(8)), settings(disable_hybrid=True)
    before = copy.deepcopy((layers, config))
    first = planner.plan((layers,), config, (GIB,))
    assert (layers, config) == before
    assert planner.plan((layers,), config, (GIB,)) == first


def serve(
    implementation: Implementation, planner: Planner, config: PlanningConfig, memory: int
) -> bool:
    """Plan for one full-attention layer and admit a prompt of 64 tokens."""
    plan = planner.plan((named(full()),), config, (memory,))
    manager = implementation.create(ManagerConfig(plan.configs[0], 64, hash_seed="0"))
    request = implementation.make_request(manager, RequestInput("r", list(range(64))))
    return manager.allocate_slots(request, 64, full_sequence_must_fit=True) is not None


@pytest.mark.rule("KV-PLAN-20")
def test_an_accepted_plan_serves_one_request(
    implementation: Implementation, planner: Planner
) -> None:
    """With five blocks; the profile also accepts four, and the request waits for ever."""
    assert serve(implementation, planner, settings(64), 5 * PAGE)
    assert not serve(implementation, planner, settings(64, policy=PROFILE), 4 * PAGE)


@pytest.mark.rule("KV-PLAN-21")
def test_a_chunk_must_be_a_multiple_of_the_block_size(planner: Planner) -> None:
    """Also of the block size that it gets when pages are unified."""
    grown = named(full(head_size=1_024), chunk(64))
    with pytest.raises(ConfigError, match="multiple of the block size 128") as caught:
        planner.groups(grown, settings())
    assert caught.value.field == "attention_chunk_size"
    assert len(planner.groups(grown, settings(policy=PROFILE))) == 2
    one_type = named(chunk(24), replace(chunk(24), num_kv_heads=1))
    with pytest.raises(ConfigError, match="multiple of the block size 16"):
        planner.groups(one_type, settings())


@pytest.mark.rule("KV-PLAN-21")
@pytest.mark.parametrize("field", ["dcp_world_size", "pcp_world_size"])
def test_context_parallelism_needs_one_group_of_full_attention(
    planner: Planner, field: str
) -> None:
    """One group of any kinds of it will do."""
    members: dict[str, Any] = {field: 2}
    config = settings(**members)
    planner.plan((named(full(), latent()),), config, (GIB,))
    for layers in (named(full(), window(8)), named(window(8)), ()):
        with pytest.raises(ConfigError) as caught:
            planner.plan((layers,), config, (GIB,))
        assert caught.value.field == field
