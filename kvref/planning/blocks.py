"""Block sizes, concurrency and capacity of a layout (KV-PLAN-17, KV-PLAN-18)."""

from __future__ import annotations

from math import gcd, lcm

from kvref.planning.pages import cdiv, max_memory_usage_bytes, page_size_bytes
from kvspec.config import KVCacheConfig
from kvspec.errors import ConfigError
from kvspec.planning import BlockSizes, Capacity, PlanningConfig


def block_sizes(kv_cache: KVCacheConfig, config: PlanningConfig) -> BlockSizes:
    """Return the scheduler and hash block sizes (KV-CFG-4, KV-CFG-5, KV-PLAN-18)."""
    context_parallel = config.dcp_world_size * config.pcp_world_size
    if len(kv_cache.groups) <= 1:
        size = config.block_size * context_parallel
        return BlockSizes(size, size)
    if context_parallel > 1:  # KV-CFG-6
        field = "dcp_world_size" if config.dcp_world_size > 1 else "pcp_world_size"
        raise ConfigError(field, getattr(config, field), "1 with more than one group")
    sizes = [group.spec.block_size for group in kv_cache.groups]
    scheduler = lcm(*sizes)
    hashes_unused = not config.enable_caching and not config.has_connector
    if hashes_unused or _has_long_state(kv_cache, config):
        return BlockSizes(scheduler, scheduler)
    hashed = gcd(*sizes) if config.hash_block_size is None else config.hash_block_size
    for size in sizes:
        if size % hashed:
            raise ConfigError("hash_block_size", hashed, f"a divisor of the block sizes {sizes}")
    return BlockSizes(scheduler, hashed)


def _has_long_state(kv_cache: KVCacheConfig, config: PlanningConfig) -> bool:
    """Return whether a state's block differs from the cache's, so that it spans several blocks."""
    return any(
        group.spec.is_state and group.spec.block_size != config.block_size
        for group in kv_cache.groups
    )


def max_concurrency(kv_cache: KVCacheConfig, config: PlanningConfig) -> float:
    """Return how many requests of full length fit at once (KV-PLAN-17)."""
    if not kv_cache.groups:
        raise ConfigError("groups", (), "at least one group: nothing else limits the number")
    per_request_bytes = sum(max_memory_usage_bytes(group.spec, config) for group in kv_cache.groups)
    blocks = cdiv(per_request_bytes, page_size_bytes(kv_cache.groups[0].spec))
    if blocks == 0:
        raise ConfigError("groups", kv_cache.groups, "a group that takes blocks for a request")
    return kv_cache.num_blocks / blocks


def capacity(kv_cache: KVCacheConfig, config: PlanningConfig) -> Capacity:
    """Return the tokens and requests that the layout can hold (KV-PLAN-17)."""
    concurrency = max_concurrency(kv_cache, config)
    return Capacity(int(concurrency * config.max_model_len_tokens), concurrency)
