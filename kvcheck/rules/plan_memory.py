"""Examples of planning: need, check, and what follows from a plan (KV-PLAN-9 …)."""

from __future__ import annotations

import copy
from dataclasses import replace
from typing import Any

from kvcheck.rules.bench import Bench
from kvcheck.rules.example import cases, example
from kvcheck.rules.judging import equal, holds, raises
from kvcheck.rules.plan_layout import COMPRESSED, INDEXER, WINDOW, version_4
from kvcheck.rules.plan_specs import (
    ENCODER,
    GIB,
    PAGE,
    large,
    latent,
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
from kvspec.planning import AUTO_FIT, BlockSizes, Capacity, Layers
from kvspec.specs import MambaSpec, UniformTypeKVCacheSpecs


def needs(bench: Bench, layers: Layers, needed_bytes: int, *, planned: bool = True) -> None:
    """So many bytes are accepted for 64 tokens under the subject's policy, and one fewer is not."""
    config = settings(64, policy=bench.policy)
    check = bench.planner.check_enough_memory
    check(layers, config, needed_bytes)
    members: dict[str, Any] = {"needed_bytes": needed_bytes, "available_bytes": needed_bytes - 1}
    with raises(CacheMemoryError, max_model_len_tokens=64, **members) as caught:
        check(layers, config, needed_bytes - 1)
    equal((caught.value.field, caught.value.value), ("available_memory_bytes", needed_bytes - 1))
    equal(type(caught.value.needed_bytes), int)
    if planned:
        bench.planner.plan((layers,), config, (needed_bytes,))


@example("KV-PLAN-9", "KV-POL-5")
def a_plan_is_accepted_only_if_one_request_fits_beside_what_no_request_gets(bench: Bench) -> None:
    """64 tokens are four blocks, and the null block; sinks and short blocks of a state besides."""
    strict = bench.policy.capacity_counts_null_block
    needs(bench, named(large()), (5 if strict else 4) * PAGE)
    needs(bench, named(sink(32)), (7 if strict else 4) * PAGE)
    # One group of one type: a block takes a page of each layer, and sinks are set aside once.
    needs(bench, named(sink(32), latent()), (7 if strict else 4) * (PAGE + 18_432))
    needs(bench, named(large(), large(), latent()), (5 if strict else 4) * (2 * PAGE + 18_432))
    short = state(64, num_speculative_blocks=2)
    needs(bench, named(short), (7 if strict else 3) * 64)
    needs(bench, named(state(64, 64, num_speculative_blocks=2)), (4 if strict else 3) * 64)
    both = named(short, state(128, num_speculative_blocks=2))
    needs(bench, both, (7 if strict else 3) * 192)
    # A window: cdiv(min(8 - 1 + 16, 64), 16) + 1 = 3 blocks.
    needs(bench, named(large(), sliding(8)), (4 + 3 + strict) * PAGE)
    # Groups of two layers: four blocks, and three of each of two groups of windows.
    padded = named(*[large()] * 2, *[sliding(8)] * 3)
    needed = (4 + 2 * 3 + 1) * 2 if strict else 2 * 4 + 3 * 3
    needs(bench, padded, needed * PAGE, planned=strict)


@example("KV-PLAN-9", "KV-POL-5", "KV-PLAN-22")
def pages_of_several_sizes_are_counted(bench: Bench) -> None:
    """Where no null block counts, every slot counts with every page size."""
    planner = bench.planner
    if bench.policy.capacity_counts_null_block:
        return
    # One block of 256 tokens, and cdiv(min(128 - 1 + 64, 256), 64) + 1 = 4 of windows.
    config = settings(256, 64, block_size=256, policy=bench.policy)
    two = named(COMPRESSED, COMPRESSED, INDEXER, WINDOW, WINDOW)
    for layers, needed in (
        (version_4(8), (1 + 2 * 4) * 5 * (37_440 + 8_640 + 1_728)),
        (two, (1 + 4) * 2 * (37_440 + 8_640)),
    ):
        planner.plan((layers,), config, (needed,))
        with raises(CacheMemoryError, needed_bytes=needed):
            planner.plan((layers,), config, (needed - 1,))


@example("KV-PLAN-9", since="0.2")
def no_memory_is_an_error_of_its_own(bench: Bench) -> None:
    """Not a request too long, but nothing there; a single byte is too little, and not none."""
    check = bench.planner.check_enough_memory
    config = settings(64, policy=bench.policy)
    for available in (0, -1):
        with raises(ConfigError, field="available_memory_bytes", value=available) as caught:
            check(named(large()), config, available)
        holds(not isinstance(caught.value, CacheMemoryError))
        check((), config, available)
    longest = 48 - 16 * bench.policy.capacity_counts_null_block
    for available, tokens in ((1, 0), (4 * PAGE - 1, longest)):
        with raises(CacheMemoryError, available_bytes=available, longest_tokens=tokens):
            check(named(large()), config, available)


@example("KV-PLAN-10")
def the_longest_length_is_the_largest_whose_need_is_there(bench: Bench) -> None:
    """At most the configured 100 tokens; the smallest over the workers that have layers."""
    beside = 1 if bench.policy.capacity_counts_null_block else 0
    config = settings(100, policy=bench.policy)
    for blocks, tokens in ((0, 0), (1, 16), (5, 80), (6, 96), (7, 100), (8, 100)):
        memory_bytes = (blocks + beside) * PAGE
        found = bench.planner.estimate_max_model_len(named(large()), config, memory_bytes)
        equal(found, tokens, f"the longest in {blocks} blocks")
    automatic = replace(config, original_max_model_len_tokens=AUTO_FIT)
    stages = (named(large()), named(large(), large(), first=1), ())
    sizes = ((5 + beside) * PAGE, 2 * (3 + beside) * PAGE, 0)
    equal(bench.planner.plan(stages, automatic, sizes).max_model_len_tokens, 48)
    none = (sizes[0], 2 * beside * PAGE + 1, 0)
    with raises(ConfigError, field="available_memory_bytes"):
        bench.planner.plan(stages, automatic, none)
    fixed = bench.planner.plan((named(large()),), config, (8 * PAGE,))
    nobody = bench.planner.plan(((),), automatic, (0,))
    equal((fixed.max_model_len_tokens, nobody.max_model_len_tokens), (100, 100))


@example("KV-PLAN-12")
def as_many_blocks_are_made_as_the_memory_holds(bench: Bench) -> None:
    """Ten layers of 65,536 bytes are 655,360 a block; 1 GiB holds 1,638, and less than none 0."""
    ten = (KVCacheGroup(tuple("abcdefghij"), large()), KVCacheGroup(tuple("klm"), sliding(8)))
    byte = (KVCacheGroup(("a",), MambaSpec(16, ((1,),), ("uint8",))),)
    for groups, available, blocks in (
        (ten, GIB, 1_638), (ten, -1, 0), (ten, 655_359, 0), (ten, 655_360, 1),
        (byte, -1, 0), (byte, 0, 0), (byte, 1, 1), (byte, 7, 7),
    ):  # fmt: skip
        cache = bench.planner.config_from_groups(groups, settings(), available)
        equal(cache.num_blocks, blocks, f"blocks in {available} bytes")
    equal(bench.planner.config_from_groups((), settings(), GIB), KVCacheConfig(1, ()))


@example("KV-PLAN-12")
def a_number_of_blocks_replaces_the_memory(bench: Bench) -> None:
    """In the layout, the check and the search."""
    beside = 1 if bench.policy.capacity_counts_null_block else 0
    config = settings(64, num_blocks_override=4 + beside, policy=bench.policy)
    plan = bench.planner.plan((named(large(), large()),), config, (0,))
    equal(plan.configs[0].num_blocks, 4 + beside)
    fewer = replace(config, num_blocks_override=3 + beside)
    with raises(CacheMemoryError):
        bench.planner.plan((named(large()),), fewer, (GIB,))
    fit = replace(fewer, original_max_model_len_tokens=AUTO_FIT)
    equal(bench.planner.plan((named(large()),), fit, (GIB,)).max_model_len_tokens, 48)


@example("KV-PLAN-17")
def concurrency_is_blocks_by_the_blocks_of_one_request(bench: Bench) -> None:
    bench.here("the value of an error as it was given")
    cache = KVCacheConfig(36, (KVCacheGroup(("a", "b"), local(512, 64)),))
    config = settings(8_191, 2_048)
    equal(bench.planner.max_concurrency(cache, config), 0.9, "concurrency")
    equal(bench.planner.capacity(cache, config), Capacity(7_371, 0.9), "capacity")
    two = KVCacheConfig(10, sized(16, 16))
    equal(bench.planner.max_concurrency(two, settings(64)), 10 / 8, "of two groups")
    for groups in ((), (KVCacheGroup(("a",), ENCODER),)):
        with raises(ConfigError, field="groups", value=groups):
            bench.planner.capacity(KVCacheConfig(1, groups), settings())


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
    wrong: tuple[dict[str, Any], ...] = (
        {"hash_block_size": 16},
        {"hash_block_size": 5},
        {"dcp_world_size": 2},
        {"pcp_world_size": 3},
    )
    for members in wrong:
        cache, config = KVCacheConfig(9, sized(16, 24)), settings(**members)
        ((field, value),) = members.items()
        with raises(ConfigError, field=field, value=value):
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
    if not bench.policy.capacity_counts_null_block:  # the promise is given up
        config = settings(64, policy=bench.policy)
        plan = bench.planner.plan((named(large()),), config, (4 * PAGE,))
        manager = bench.manager(plan.configs[0].num_blocks, large(), max_model_len_tokens=64)
        request = manager.request("r", range(64))
        equal(manager.allocate_slots(request, 64, full_sequence_must_fit=True), None)
        return
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


@example("KV-PLAN-21", since="0.2")
def a_chunk_must_be_a_multiple_of_the_block_size(bench: Bench) -> None:
    """Also of the block size that it gets when pages are unified; of one block as of four."""
    config = settings(policy=bench.policy)
    wrong = ((named(large(head_size=1_024), local(64)), 64, 2), (named(local(24)), 24, 1),
             (named(local(24), replace(local(24), num_kv_heads=1)), 24, 1))  # fmt: skip
    for layers, chunk, number in wrong:
        if bench.policy.chunk_must_align:
            with raises(ConfigError, field="attention_chunk_size", value=chunk):
                bench.planner.groups(layers, config)
        else:
            equal(len(bench.planner.groups(layers, config)), number, f"groups of {layers}")
    for size in (16, 64):
        equal_ones, unlike = local(size), named(local(size), replace(local(size), head_size=64))
        (group,) = bench.planner.groups(named(equal_ones, equal_ones), config)
        equal(group, KVCacheGroup(("0", "1"), equal_ones))
        (group,) = bench.planner.groups(unlike, config)
        equal(group.spec, UniformTypeKVCacheSpecs(16, unlike))


@cases(("dcp_world_size", 2), ("pcp_world_size", 3))
@example("KV-PLAN-21")
def a_plan_for_context_parallelism_needs_one_group_of_full_attention(
    bench: Bench, field: str, ranks: int
) -> None:
    """One group of any kinds of it will do."""
    members: dict[str, Any] = {field: ranks}
    config = settings(**members)
    bench.planner.plan((named(large(), latent()),), config, (GIB,))
    for layers in (named(large(), sliding(8)), named(sliding(8)), ()):
        with raises(ConfigError, field=field, value=ranks):
            bench.planner.plan((layers,), config, (GIB,))
