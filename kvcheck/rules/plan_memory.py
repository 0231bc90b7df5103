"""Examples of planning: need, check, and what follows from a plan (KV-PLAN-9 …)."""

from __future__ import annotations

import copy
from dataclasses import replace
from typing import Any

from kvcheck.rules.bench import Bench
from kvcheck.rules.example import example
from kvcheck.rules.judging import equal, holds, raises
from kvcheck.rules.plan_specs import (
    ENCODER,
    GIB,
    PAGE,
    large,
    local,
    named,
    settings,
    sink,
    sliding,
    state,
)
from kvspec.config import KVCacheConfig, KVCacheGroup
from kvspec.errors import CacheMemoryError, ConfigError
from kvspec.interface import Feature
from kvspec.planning import AUTO_FIT, BlockSizes, Capacity, Layers, PlanningConfig


def needs(bench: Bench, layers: Layers, config: PlanningConfig, needed_bytes: int) -> None:
    """So many bytes are accepted, and one fewer is not."""
    check = bench.planner.check_enough_memory
    check(layers, config, needed_bytes)
    with raises(CacheMemoryError) as caught:
        check(layers, config, needed_bytes - 1)
    error = caught.value
    equal(getattr(error, "needed_bytes", None), needed_bytes, "the need in the error")


@example("KV-PLAN-9", "KV-POL-5")
def memory(bench: Bench) -> None:
    """A plan is accepted only if one request of full length fits beside what no request gets."""
    config = settings(64, policy=bench.policy)
    strict = bench.policy.capacity_counts_null_block
    needs(bench, named(large()), config, (5 if strict else 4) * PAGE)
    needs(bench, named(sink(32)), config, (7 if strict else 4) * PAGE)
    needs(bench, named(state(64, num_speculative_blocks=2)), config, (7 if strict else 3) * 64)
    # Groups of two layers: four blocks, and three of each of two groups of windows.
    padded = named(*[large()] * 2, *[sliding(8)] * 3)
    needs(bench, padded, config, ((4 + 2 * 3 + 1) * 2 if strict else 2 * 4 + 3 * 3) * PAGE)
    check = bench.planner.check_enough_memory
    for available in (0, -1):
        with raises(ConfigError) as caught:
            check(named(large()), config, available)
        error = caught.value
        holds(not isinstance(error, CacheMemoryError), "no memory is an error of its own")
        check((), config, available)
    with raises(CacheMemoryError) as caught:
        check(named(large()), config, 4 * PAGE - 1)
    error = caught.value
    longest = 48 - 16 * strict
    equal(getattr(error, "longest_tokens", None), longest, "the longest in the error")


@example("KV-PLAN-10")
def the_longest_length_is_the_largest_whose_need_is_there(bench: Bench) -> None:
    beside = 1 if bench.policy.capacity_counts_null_block else 0
    config = settings(100, policy=bench.policy)
    for blocks, tokens in ((0, 0), (1, 16), (5, 80), (6, 96), (7, 100), (8, 100)):
        memory_bytes = (blocks + beside) * PAGE
        found = bench.planner.estimate_max_model_len(named(large()), config, memory_bytes)
        equal(found, tokens, f"the longest in {blocks} blocks")
    automatic = replace(config, original_max_model_len_tokens=AUTO_FIT)
    stages = (named(large()), named(large(), large(), first=1), ())
    sizes = ((5 + beside) * PAGE, 2 * (3 + beside) * PAGE, 0)
    plan = bench.planner.plan(stages, automatic, sizes)
    equal(plan.max_model_len_tokens, 48, "as long as it fits")
    none = (sizes[0], 2 * beside * PAGE + 1, 0)
    with raises(ConfigError):
        bench.planner.plan(stages, automatic, none)


@example("KV-PLAN-12")
def as_many_blocks_are_made_as_the_memory_holds_or_as_were_asked_for(bench: Bench) -> None:
    ten = (KVCacheGroup(tuple("abcdefghij"), large()), KVCacheGroup(tuple("klm"), sliding(8)))
    for available, blocks in ((GIB, 1_638), (-1, 0), (655_359, 0), (655_360, 1)):
        cache = bench.planner.config_from_groups(ten, settings(), available)
        equal(cache.num_blocks, blocks, f"blocks in {available} bytes")
    config = settings(16, num_blocks_override=5)
    plan = bench.planner.plan((named(large(), large()),), config, (0,))
    equal(plan.configs[0].num_blocks, 5, "blocks asked for")


@example("KV-PLAN-17")
def concurrency_is_blocks_by_the_blocks_of_one_request(bench: Bench) -> None:
    cache = KVCacheConfig(36, (KVCacheGroup(("a", "b"), local(512, 64)),))
    config = settings(8_191, 2_048)
    equal(bench.planner.max_concurrency(cache, config), 0.9, "concurrency")
    equal(bench.planner.capacity(cache, config), Capacity(7_371, 0.9), "capacity")
    for groups in ((), (KVCacheGroup(("a",), ENCODER),)):
        empty = KVCacheConfig(1, groups)
        with raises(ConfigError):
            bench.planner.max_concurrency(empty, settings())


def sized(*block_sizes: int) -> tuple[KVCacheGroup, ...]:
    """Full attention with these block sizes."""
    return tuple(KVCacheGroup((str(index),), large(size)) for index, size in enumerate(block_sizes))


@example("KV-PLAN-18")
def block_sizes(bench: Bench) -> None:
    """Scheduler and hash block sizes come from the configured one, or the groups'."""
    states = (*sized(8), KVCacheGroup(("m",), state(64, 4_096)))
    cases: tuple[tuple[tuple[KVCacheGroup, ...], dict[str, Any], tuple[int, int]], ...] = (
        ((), {}, (8, 8)),
        (sized(64), {"dcp_world_size": 2, "pcp_world_size": 3}, (48, 48)),
        (sized(16, 32), {}, (32, 16)),
        (sized(16, 24), {"hash_block_size": 4}, (48, 4)),
        (sized(16, 24), {"enable_caching": False}, (48, 48)),
        (sized(16, 24), {"enable_caching": False, "has_connector": True}, (48, 8)),
        (states, {}, (4_096, 4_096)),
        ((*sized(16), KVCacheGroup(("m",), state(64, 8))), {}, (16, 8)),
    )
    for groups, members, expected in cases:
        config = settings(**{"block_size": 8, **members})
        found = bench.planner.block_sizes(KVCacheConfig(9, groups), config)
        equal(found, BlockSizes(*expected), f"sizes of {groups} with {members}")
    wrong: tuple[dict[str, Any], ...] = ({"hash_block_size": 16}, {"dcp_world_size": 2})
    for members in wrong:
        cache, config = KVCacheConfig(9, sized(16, 24)), settings(**members)
        (field,) = members
        with raises(ConfigError, field=field):
            bench.planner.block_sizes(cache, config)


@example("KV-PLAN-19")
def planning_changes_none_of_its_inputs_and_answers_the_same_again(bench: Bench) -> None:
    layers, config = named(large(), sliding(8), state(PAGE)), settings(64)
    for asked in (config, replace(config, packed_layout=True)):
        before = copy.deepcopy((layers, asked))
        first = bench.planner.plan((layers,), asked, (GIB,))
        equal((layers, asked), before, "the inputs")
        equal(bench.planner.plan((layers,), asked, (GIB,)), first, "the answer again")
    windowed, off = named(large(), sliding(8)), settings(disable_hybrid=True)
    bench.planner.plan((windowed,), off, (GIB,))
    equal(windowed, named(large(), sliding(8)), "the layers with hybrid off")


@example("KV-PLAN-20", "KV-LIVE-3", "KV-LIVE-1")
def served(bench: Bench) -> None:
    """A request of full length is served by the smallest plan that is accepted."""
    bench.need(Feature.ADMISSION)
    if not bench.policy.capacity_counts_null_block:
        return  # the promise is given up
    for layers, blocks in ((named(large()), 5), (named(sink(32)), 7), (named(sliding(20)), 5)):
        config = settings(64, policy=bench.policy)
        plan = bench.planner.plan((layers,), config, (blocks * PAGE,))
        groups = bench.planner.scheduler_config(plan.configs).groups
        for whole in (True, False):
            manager = bench.manager(plan.configs[0].num_blocks, *(group.spec for group in groups),
                                    max_model_len_tokens=64, max_num_batched_tokens=16)  # fmt: skip
            request = manager.request("r", range(64 if whole else 9))
            equal(refusal(bench, manager, request, whole=whole), None, "the gate")


def refusal(bench: Bench, manager: Any, request: Any, *, whole: bool) -> int | None:
    """Serve a request to its end in steps of 16; the computed tokens at which it was refused."""
    while request.num_computed_tokens < 64:
        if request.num_computed_tokens == request.num_tokens:
            manager.append(request, (7,))
        new = min(16, request.num_tokens - request.num_computed_tokens)
        first = request.num_computed_tokens == 0
        granted = manager.allocate_slots(request, new, full_sequence_must_fit=whole and first)
        if granted is None:
            return int(request.num_computed_tokens)
        request.num_computed_tokens += new
    return None


@example("KV-PLAN-21")
def a_plan_that_no_manager_would_accept_is_an_error(bench: Bench) -> None:
    grown = named(large(head_size=1_024), local(64))
    config = settings(policy=bench.policy)
    if bench.policy.chunk_must_align:
        field = "attention_chunk_size"
        with raises(ConfigError, field=field):
            bench.planner.groups(grown, config)
    else:
        equal(len(bench.planner.groups(grown, config)), 2, "groups")
    for field in ("dcp_world_size", "pcp_world_size"):
        members: dict[str, Any] = {field: 2}
        config = settings(**members)
        bench.planner.plan((named(large()),), config, (GIB,))
        for layers in (named(large(), sliding(8)), named(sliding(8)), ()):
            with raises(ConfigError, field=field):
                bench.planner.plan((layers,), config, (GIB,))
