"""Mutants of plans: merging, groups, layouts, memory, concurrency (KV-PLAN-2 …)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

from kvref.planning import blocks, grouping, latent, layout, merging, pages, plan, planner
from kvref.planning import unify as unifying
from kvspec.config import KVCacheConfig, KVCacheGroup
from kvspec.errors import ConfigError
from kvspec.planning import BlockSizes, Capacity, Layers, PlanningConfig
from kvspec.specs import (
    AttentionSpec,
    FullAttentionSpec,
    LayerSpec,
    MambaSpec,
    SlidingWindowSpec,
    UniformTypeKVCacheSpecs,
)
from tests.mutants.make import planning

Spec = AttentionSpec | MambaSpec

right_real_page = pages.real_page_size_bytes
right_used_page = pages._used_page_size_bytes
right_token = pages._latent_token_bytes
right_vector = pages._vector_bytes
right_storage = pages.storage_block_size
right_blocks = pages.max_blocks

right_merge = merging.merge
right_uniform = unifying.uniform_type
right_normalized = pages.normalized
right_with_page = unifying.with_page_size
right_unify = unifying.unify_hybrid
right_project = grouping.project
right_scheduler = plan.scheduler_config
right_sizes = blocks.block_sizes
right_layout = layout.config_from_groups
right_layers = plan.all_layers
right_concurrency = blocks.max_concurrency


def causality_of_the_first(specs: Sequence[LayerSpec]) -> LayerSpec:
    """KV-PLAN-2: a merged spec is causal if the first layer is."""
    made = right_merge(specs)
    if isinstance(made, FullAttentionSpec):
        made = replace(made, non_causal=getattr(specs[0], "non_causal", False))
    return made


def windows_are_lost(specs: Sequence[LayerSpec]) -> LayerSpec:
    """KV-PLAN-2: a merged spec forgets the windows of its layers."""
    made = right_merge(specs)
    if isinstance(made, FullAttentionSpec) and made.sliding_window is not None:
        made = replace(made, sliding_window=None)
    return made


def first_window_counts(specs: Sequence[LayerSpec]) -> LayerSpec:
    """KV-PLAN-2: layers with different windows are merged, with the window of the first."""
    try:
        return right_merge(specs)
    except ConfigError as error:
        if error.field != "sliding_window" or not isinstance(specs[0], FullAttentionSpec):
            raise
        return specs[0]


def everything_agrees(specs: Sequence[LayerSpec], names: tuple[str, ...]) -> None:
    """KV-PLAN-2: specs merge whatever they differ in."""


def no_uniform_groups(layers: Layers) -> None:
    """KV-PLAN-3, KV-PLAN-5: layers of one type with several page sizes get no common group."""


def uniform_of_any_window(layers: Layers) -> UniformTypeKVCacheSpecs | None:
    """KV-PLAN-3: windows of different lengths share a group."""
    kinds = {(type(spec), spec.block_size) for _, spec in layers}
    if len(kinds) != 1 or not isinstance(layers[0][1], SlidingWindowSpec):
        return right_uniform(layers)
    return UniformTypeKVCacheSpecs(layers[0][1].block_size, tuple(layers))


def pages_are_padded(name: str, spec: LayerSpec, size: int) -> LayerSpec:
    """KV-PLAN-4: smaller pages are padded where longer blocks would do."""
    page = pages.page_size_bytes(spec)
    if page == size or not isinstance(spec, AttentionSpec):
        return right_with_page(name, spec, size)
    return replace(spec, page_size_padded=size)


def pages_stay_unequal(layers: Layers) -> Layers:
    """KV-PLAN-4: groups keep pages of different sizes."""
    return layers


def windows_lose_their_length(layers: Layers) -> Layers:
    """KV-PLAN-7: windowed layers that become full attention forget their window."""
    return tuple(
        (name, replace(spec, sliding_window=None))
        if isinstance(spec, FullAttentionSpec) and spec.sliding_window is not None
        else (name, spec)
        for name, spec in right_unify(layers)
    )


def always_the_smallest(counts: Sequence[int]) -> int:
    """KV-PLAN-6: a group is as large as the rarest spec, whatever the others."""
    return min(counts)


def one_and_a_half_is_close(counts: Sequence[int]) -> int:
    """KV-PLAN-6: a count of exactly 1.5 times the smallest still sets the size."""
    return max(counts) if max(counts) * 2 <= min(counts) * 3 else min(counts)


def twice_is_close(counts: Sequence[int]) -> int:
    """KV-PLAN-6: up to twice the smallest count the largest sets the size."""
    return max(counts) if max(counts) < min(counts) * 2 else min(counts)


def layers_in_runs(names: Sequence[str], size: int) -> Iterator[tuple[str, ...]]:
    """KV-PLAN-6: neighbouring layers share a group."""
    for start in range(0, len(names), size):
        yield tuple(names[start : start + size])


def groups_of_one_worker(workers: Sequence[Layers]) -> Layers:
    """KV-PLAN-11: the groups are made from the first worker's layers."""
    right_layers(workers)
    return tuple(workers[0]) if workers else ()


def empty_groups_go(groups: Sequence[KVCacheGroup], layers: Layers) -> tuple[KVCacheGroup, ...]:
    """KV-PLAN-11: a group of which a worker has no layer is dropped there."""
    return tuple(g for g in right_project(groups, layers) if g.layer_names)


def blocks_of_the_first_worker(caches: Sequence[KVCacheConfig]) -> tuple[KVCacheConfig, ...]:
    """KV-PLAN-15: all workers get the number of blocks of the first."""
    return tuple(layout.shrunk_to(cache, caches[0].num_blocks) for cache in caches)


def layout_of_the_last(configs: Sequence[KVCacheConfig]) -> KVCacheConfig:
    """KV-PLAN-16: the scheduler works with the last worker's layout."""
    return right_scheduler(tuple(configs)[::-1])


def groups_of_one_type_stay(configs: Sequence[KVCacheConfig]) -> KVCacheConfig:
    """KV-PLAN-16: the scheduler sees a group of one type with the sizes of all its layers."""
    right_scheduler(configs)
    return configs[0]


def whole_requests(kv_cache: KVCacheConfig, config: PlanningConfig) -> float:
    """KV-PLAN-17: concurrency is a whole number."""
    return float(int(right_concurrency(kv_cache, config)))


def concurrency_without_null(kv_cache: KVCacheConfig, config: PlanningConfig) -> float:
    """KV-PLAN-17: the null block does not count."""
    smaller = replace(kv_cache, num_blocks=max(kv_cache.num_blocks - 1, 1))
    return right_concurrency(smaller, config)


def capacity_in_whole_requests(kv_cache: KVCacheConfig, config: PlanningConfig) -> Capacity:
    """KV-PLAN-17: the capacity is that of whole requests."""
    concurrency = right_concurrency(kv_cache, config)
    return Capacity(int(concurrency) * config.max_model_len_tokens, concurrency)


def scheduler_size_of_the_spec(kv_cache: KVCacheConfig, config: PlanningConfig) -> BlockSizes:
    """KV-PLAN-18: with one group the sizes are those of its spec, not the configured one."""
    if len(kv_cache.groups) != 1:
        return right_sizes(kv_cache, config)
    size = kv_cache.groups[0].spec.block_size * config.dcp_world_size * config.pcp_world_size
    return BlockSizes(size, size)


def hashes_though_unused(kv_cache: KVCacheConfig, config: PlanningConfig) -> BlockSizes:
    """KV-PLAN-18: without caching the hash block size is the GCD all the same."""
    return right_sizes(kv_cache, replace(config, enable_caching=True))


def unpacked_always(*anything: Any) -> KVCacheConfig:
    """KV-PLAN-14: the packed layout is not made when it is asked for."""
    groups, config, available = anything
    return right_layout(groups, replace(config, packed_layout=False), available)


def no_warnings(groups: Sequence[KVCacheGroup]) -> tuple[str, ...]:
    """KV-PLAN-24: missing layers are not reported."""
    return ()


def any_parallel_groups(*anything: Any) -> None:
    """KV-PLAN-21, KV-CFG-6: context parallelism is planned for any groups."""


def any_chunk_size(*anything: Any) -> None:
    """KV-PLAN-21: chunks that end inside a block are planned."""


def nobody_needs_memory(*anything: Any) -> None:
    """KV-PLAN-9: a plan is accepted whatever the memory."""


def windows_not_beside_latents(layers: Layers) -> bool:
    """KV-PLAN-22: latents with several page sizes are grouped as all others."""
    return False


def latents_unpadded(spec: LayerSpec, sizes: Sequence[int]) -> LayerSpec:
    """KV-PLAN-22: windowed latents keep their own page."""
    return spec


def hidden_states_as_others(layers: Layers) -> tuple[KVCacheGroup, ...]:
    """KV-PLAN-23: hidden states count for page size and group size."""
    return grouping.split_by_spec(unifying.unify_page_size(layers))


MERGE = ((merging, "merge"), (grouping, "merge"), (planner, "merge"))
UNIFORM = (
    (unifying, "uniform_type"),
    (grouping, "uniform_type"),
    (planner, "uniform_type"),
)
HYBRID = ((grouping, "unify_hybrid"), (planner, "unify_hybrid"))
SIZE = ((grouping, "group_size"), (latent, "group_size"))
TURN = ((grouping, "in_turn"), (latent, "in_turn"))
SCHEDULER = (planner, "scheduler_config")
CONCURRENCY = (
    (blocks, "max_concurrency"),
    (planner, "max_concurrency"),
)
CAPACITY = (planner, "capacity")
SIZES = (planner, "block_sizes")
LAYOUT = ((plan, "config_from_groups"), (planner, "config_from_groups"))
CHECK = ((plan, "check_fits"), (planner, "check_fits"))

MUTANTS = (
    planning(causality_of_the_first, *MERGE),
    planning(windows_are_lost, *MERGE),
    planning(first_window_counts, *MERGE),
    planning(everything_agrees, (merging, "_must_agree")),
    planning(no_uniform_groups, *UNIFORM),
    planning(uniform_of_any_window, *UNIFORM),
    planning(pages_are_padded, (unifying, "with_page_size")),
    planning(pages_stay_unequal, (grouping, "unify_page_size")),
    planning(windows_lose_their_length, *HYBRID),
    planning(always_the_smallest, *SIZE),
    planning(one_and_a_half_is_close, *SIZE),
    planning(twice_is_close, *SIZE),
    planning(layers_in_runs, *TURN),
    planning(groups_of_one_worker, (plan, "all_layers")),
    planning(empty_groups_go, (plan, "project")),
    planning(blocks_of_the_first_worker, (plan, "_in_step")),
    planning(layout_of_the_last, SCHEDULER),
    planning(groups_of_one_type_stay, SCHEDULER),
    planning(whole_requests, *CONCURRENCY),
    planning(concurrency_without_null, *CONCURRENCY),
    planning(capacity_in_whole_requests, CAPACITY),
    planning(scheduler_size_of_the_spec, SIZES),
    planning(hashes_though_unused, SIZES),
    planning(unpacked_always, *LAYOUT),
    planning(no_warnings, (plan, "padding_warnings")),
    planning(any_parallel_groups, (plan, "_check_context_parallel")),
    planning(any_chunk_size, (grouping, "_check_chunks")),
    planning(nobody_needs_memory, *CHECK),
    planning(windows_not_beside_latents, (grouping, "lie_side_by_side")),
    planning(latents_unpadded, (latent, "_padded_to_one_of")),
    planning(hidden_states_as_others, (grouping, "with_hidden_states")),
)
