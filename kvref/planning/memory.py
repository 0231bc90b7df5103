"""The memory that requests need, and whether it suffices (KV-PLAN-8 … KV-PLAN-10)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from kvref.planning.grouping import group_layers
from kvref.planning.latent import profile_bytes_per_block
from kvref.planning.layout import bytes_per_block
from kvref.planning.pages import cdiv, max_blocks, max_memory_usage_bytes
from kvspec.config import KVCacheGroup
from kvspec.errors import CacheMemoryError, ConfigError
from kvspec.planning import Layers, PlanningConfig
from kvspec.specs import LayerSpec

Need = Callable[[PlanningConfig], int]
"""Bytes needed to serve one request of the configuration's full length."""


def layers_bytes(layers: Layers, config: PlanningConfig) -> int:
    """Return the bytes of one request of full length, each layer on its own (KV-PLAN-8)."""
    return sum(max_memory_usage_bytes(spec, config) for _, spec in layers)


def groups_bytes(
    groups: Sequence[KVCacheGroup], everywhere: Sequence[KVCacheGroup], config: PlanningConfig
) -> int:
    """Return the bytes a worker's pool needs to serve one request of full length (KV-PLAN-9).

    A block of any group takes a page of every tensor, also of those that its layers don't use.
    `everywhere`: the groups with the layers of all workers; all number their blocks alike, so the
    sinks of a layer on one worker take their blocks from every pool.
    """
    if config.policy.capacity_counts_null_block:
        blocks = 1 + sum(set_aside_blocks(group.spec) for group in everywhere)
        blocks += sum(held_blocks(group.spec, config) for group in groups)
        return blocks * bytes_per_block(groups)
    blocks = sum(max_blocks(group.spec, config) for group in groups)
    beside = all(group.spec.layers for group in groups)
    is_mixed = beside and len(groups) > 1  # KV-PLAN-22
    return blocks * (profile_bytes_per_block(groups) if is_mixed else bytes_per_block(groups))


def held_blocks(spec: LayerSpec, config: PlanningConfig) -> int:
    """Return the most blocks a manager takes for one request of full length (KV-PLAN-9).

    This is `max_blocks`, except for a running state whose blocks are shorter than the sequence: a
    manager takes all blocks of the prompt, although it soon releases them.
    """
    if spec.layers:
        return max(held_blocks(layer, config) for _, layer in spec.layers)
    if spec.is_state and config.mamba_cache_mode == "none":
        return cdiv(config.max_model_len_tokens, spec.block_size) + spec.num_speculative_blocks
    return max_blocks(spec, config)


def set_aside_blocks(spec: LayerSpec) -> int:
    """Return the blocks that a group reserves at start and requests never get (KV-FULL-8)."""
    return max((set_aside_blocks(layer) for _, layer in spec.layers), default=spec.num_sink_blocks)


def need_of_layers(layers: Layers, config: PlanningConfig) -> Need:
    """Return the function that computes the need of these layers (KV-PLAN-9).

    The profile `vllm-0.24` adds up layers here: without null block, without padding.
    """
    if not config.policy.capacity_counts_null_block:
        return lambda asked: layers_bytes(layers, asked)
    groups = group_layers(layers, config)
    return lambda asked: groups_bytes(groups, groups, asked)


def longest_that_fits(need: Need, config: PlanningConfig, available_bytes: int) -> int:
    """Return the longest length that fits, at most the configured one; 0 if none (KV-PLAN-10).

    A longer request never needs less, so bisection finds it.
    """

    def fits(length: int) -> bool:
        return need(replace(config, max_model_len_tokens=length)) <= available_bytes

    fitting, too_long = 0, config.max_model_len_tokens + 1
    while too_long - fitting > 1:
        middle = (fitting + too_long) // 2
        if fits(middle):
            fitting = middle
        else:
            too_long = middle
    return fitting


def check_fits(need: Need, config: PlanningConfig, available_bytes: int) -> None:
    """Raise CacheMemoryError unless one request of full length fits (KV-PLAN-9).

    Without any memory it raises ConfigError.
    """
    if available_bytes <= 0:
        raise ConfigError("available_memory_bytes", available_bytes, "above 0")
    needed = need(config)
    if needed > available_bytes:
        longest = longest_that_fits(need, config, available_bytes)
        raise CacheMemoryError(config.max_model_len_tokens, needed, available_bytes, longest)
