"""From a configuration to a pool and its groups; what cannot be served is refused (KV-CFG-*)."""

from __future__ import annotations

import math
from dataclasses import replace

from kvref.block_pool import BlockPool
from kvref.coordinator import Coordinator, UnitaryCoordinator
from kvref.events import EventLog
from kvref.groups.base import Group, GroupContext
from kvref.groups.full_attention import FullAttentionGroup
from kvspec.config import ManagerConfig
from kvspec.errors import ConfigError, UnsupportedError
from kvspec.specs import (
    FullAttentionSpec,
    HiddenStateCacheSpec,
    LayerSpec,
    MLAAttentionSpec,
    SinkFullAttentionSpec,
    TQFullAttentionSpec,
)

GROUP_TYPES: tuple[tuple[type[LayerSpec], type[Group]], ...] = (
    (FullAttentionSpec, FullAttentionGroup),
    (TQFullAttentionSpec, FullAttentionGroup),
    (MLAAttentionSpec, FullAttentionGroup),
    (HiddenStateCacheSpec, FullAttentionGroup),
    (SinkFullAttentionSpec, FullAttentionGroup),
)
"""Which class manages which spec. Exact types: a subclass may behave differently."""


def spec_types() -> frozenset[type[LayerSpec]]:
    """The spec types that a group may have."""
    return frozenset(spec_type for spec_type, _ in GROUP_TYPES)


def checked(config: ManagerConfig) -> ManagerConfig:
    """The configuration with derived block sizes; ConfigError if it cannot be (KV-ERR-5)."""
    groups = config.kv_cache.groups
    for group in groups:
        _group_class(config.registry.resolve(group.spec))
    if config.retention_interval_tokens is not None:
        # No group of these types has windows, so retention would do nothing (KV-CFG-7).
        raise ConfigError(
            "retention_interval_tokens",
            config.retention_interval_tokens,
            "None, unless a group has a sliding window or Mamba state",
        )
    if config.enable_caching and not groups:  # KV-CFG-3
        raise ConfigError("kv_cache.groups", groups, "at least one group, or caching off")
    if config.enable_caching and len(groups) > 1:
        raise UnsupportedError("more than one group with caching on", "kvref")
    if len(groups) != 1:  # KV-CFG-6
        for field in ("dcp_world_size", "pcp_world_size"):
            if getattr(config, field) > 1:
                raise ConfigError(field, getattr(config, field), "1 unless there is one group")
    return _with_block_sizes(config)


def _with_block_sizes(config: ManagerConfig) -> ManagerConfig:
    """Fill in the scheduler and hash block sizes (KV-CFG-4, KV-CFG-5).

    They are equal here: with one group, and with caching off.
    """
    given = config.scheduler_block_size_tokens
    specs = [config.registry.resolve(group.spec) for group in config.kv_cache.groups]
    if specs:
        size = math.lcm(*(spec.block_size for spec in specs))
        size *= config.dcp_world_size * config.pcp_world_size
        if given is not None and given != size:
            raise ConfigError("scheduler_block_size_tokens", given, f"{size} with these groups")
    else:
        size = given or config.hash_block_size_tokens or 1
    return replace(config, scheduler_block_size_tokens=size, hash_block_size_tokens=size)


def _group_class(spec: LayerSpec) -> type[Group]:
    for spec_type, group_class in GROUP_TYPES:
        if type(spec) is spec_type:
            return group_class
    raise UnsupportedError(f"groups of {type(spec).__name__}", "kvref")


def build_groups(config: ManagerConfig, pool: BlockPool, events: EventLog) -> list[Group]:
    """The groups of a checked configuration."""
    flagged = any(group.is_eagle_group for group in config.kv_cache.groups)
    built: list[Group] = []
    for index, group in enumerate(config.kv_cache.groups):
        spec = config.registry.resolve(group.spec)
        context = GroupContext(
            index=index,
            spec=spec,
            block_size_tokens=spec.block_size * config.dcp_world_size * config.pcp_world_size,
            hash_block_size_tokens=config.hash_block_size_tokens or 1,
            alignment_tokens=config.scheduler_block_size_tokens or 1,
            drops_eagle_block=group.is_eagle_group or (config.use_eagle and not flagged),
        )  # KV-CFG-8
        built.append(_group_class(spec)(context, pool, events))
        if isinstance(spec, SinkFullAttentionSpec):
            pool.set_aside(spec.sink_len // spec.block_size)
    return built


def build_coordinator(config: ManagerConfig, groups: list[Group]) -> Coordinator:
    """The coordinator that fits the number of groups and the caching switch."""
    return UnitaryCoordinator(groups) if config.enable_caching else Coordinator(groups)
