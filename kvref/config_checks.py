"""Check that a configuration can be served; errors name the wrong field (KV-ERR-5)."""

from __future__ import annotations

import math
from dataclasses import replace

from kvref.configuration import eagle_groups, group_class, inside_class
from kvspec.config import ManagerConfig
from kvspec.errors import ConfigError
from kvspec.inside import looks_inside
from kvspec.specs import CrossAttentionSpec, EncoderOnlyAttentionSpec, LayerSpec

UNCACHED_SPECS = (CrossAttentionSpec, EncoderOnlyAttentionSpec)
"""Types whose blocks hold no tokens of the sequence, so that they cannot be hit."""


def checked(config: ManagerConfig) -> tuple[ManagerConfig, list[LayerSpec]]:
    """Return the configuration with derived block sizes, and its managed specs (KV-CFG-9).

    Raises ConfigError if it cannot be served.
    """
    if not isinstance(config, ManagerConfig):
        raise ConfigError("config", config, "a ManagerConfig")
    specs = [config.registry.resolve(group.spec) for group in config.kv_cache.groups]
    managed_by = inside_class if looks_inside(config) else group_class
    for spec in specs:
        managed_by(spec)
    _check_retention_has_an_effect(config, specs)
    if config.enable_caching and not any(spec.prefix_cacheable for spec in specs):  # KV-CFG-3
        groups = config.kv_cache.groups
        raise ConfigError("kv_cache.groups", groups, "one that is cached (KV-COORD-14), or it off")
    _check_context_parallel(config, specs)
    if config.enable_caching and len(specs) > 1 and all(spec == specs[0] for spec in specs):
        raise ConfigError(
            "kv_cache.groups",
            config.kv_cache.groups,
            "one group, or two different specs (KV-COORD-3)",
        )
    config = _with_block_sizes(config, specs)
    _check_retention_value(config)
    _check_chunks(config, specs)
    if config.enable_caching and any(isinstance(spec, UNCACHED_SPECS) for spec in specs):
        raise ConfigError(
            "enable_caching", True, "False with cross attention or encoder-only layers (KV-CROSS-4)"
        )
    return config, specs


def _check_retention_has_an_effect(config: ManagerConfig, specs: list[LayerSpec]) -> None:
    """Refuse retention without a windowed or Mamba group, where it would do nothing (KV-CFG-7)."""
    interval = config.retention_interval_tokens
    if interval is None or any(spec.retains_sparsely for spec in specs):
        return
    if interval == 0 and not config.policy.zero_retention_needs_windows:  # KV-POL-11
        return
    raise ConfigError(
        "retention_interval_tokens",
        interval,
        "None, unless a group has a sliding window or Mamba state",
    )


def _check_retention_value(config: ManagerConfig) -> None:
    """Check that boundaries of retention are places where hits can end (KV-CFG-7)."""
    interval, alignment = config.retention_interval_tokens, config.scheduler_block_size_tokens or 1
    if interval is not None and (interval < 0 or interval % alignment):
        raise ConfigError(
            "retention_interval_tokens",
            interval,
            f"0 or a multiple of the scheduler block size {alignment}",
        )


def _check_context_parallel(config: ManagerConfig, specs: list[LayerSpec]) -> None:
    """Check that context parallelism has exactly one full-attention group (KV-CFG-6)."""
    for name in ("dcp_world_size", "pcp_world_size"):
        value = getattr(config, name)
        if value > 1 and not (len(specs) == 1 and specs[0].is_full_attention):
            raise ConfigError(name, value, "1, unless there is exactly one full-attention group")


def _check_chunks(config: ManagerConfig, specs: list[LayerSpec]) -> None:
    """Check that chunks are looked up without drop and in their own block size (KV-CHUNK-3)."""
    eagle = eagle_groups(config, specs)
    for index, spec in enumerate(specs):
        if not spec.chunk_tokens:
            continue
        if config.policy.chunk_must_align and spec.chunk_tokens % spec.block_size:
            raise ConfigError(
                "attention_chunk_size",
                spec.chunk_tokens,
                f"a multiple of block_size {spec.block_size}",
            )
        if not config.enable_caching:
            continue
        if index in eagle:
            raise ConfigError("is_eagle_group", True, "False for chunked local attention")
        if spec.block_size != config.scheduler_block_size_tokens:
            raise ConfigError(
                "block_size",
                spec.block_size,
                f"the scheduler block size {config.scheduler_block_size_tokens}"
                " for chunked local attention",
            )


def _with_block_sizes(config: ManagerConfig, specs: list[LayerSpec]) -> ManagerConfig:
    """Fill in the scheduler and hash block sizes (KV-CFG-4, KV-CFG-5)."""
    scheduler, hashed = config.scheduler_block_size_tokens, config.hash_block_size_tokens
    if not specs:
        scheduler = hashed = scheduler or hashed or 1
    elif len(specs) == 1:
        derived = specs[0].block_size * config.dcp_world_size * config.pcp_world_size
        if scheduler is not None and scheduler != derived:
            raise ConfigError("scheduler_block_size_tokens", scheduler, f"{derived} with one group")
        scheduler = hashed = derived
    else:
        sizes = [spec.block_size for spec in specs]
        derived = math.lcm(*sizes)
        if scheduler is not None and scheduler != derived:
            raise ConfigError(
                "scheduler_block_size_tokens", scheduler, f"{derived} with these groups"
            )
        scheduler = derived
        if not config.enable_caching:
            hashed = scheduler
        sizes = [spec.block_size for spec in specs if spec.prefix_cacheable]  # KV-COORD-14
        hashed = hashed if hashed is not None else math.gcd(*sizes)
        if config.enable_caching and any(size % hashed for size in sizes):
            raise ConfigError(
                "hash_block_size_tokens", hashed, f"a divisor of every block size {sizes}"
            )
    return replace(config, scheduler_block_size_tokens=scheduler, hash_block_size_tokens=hashed)
