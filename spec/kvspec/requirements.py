"""What a configuration needs of an implementation."""

from __future__ import annotations

from kvspec.config import ManagerConfig
from kvspec.interface import Capabilities, Feature


def features_of_config(config: ManagerConfig) -> set[Feature]:
    """What a configuration needs."""
    groups = config.kv_cache.groups
    needed = {
        Feature.MULTIPLE_GROUPS: len(groups) != 1,
        Feature.PREFIX_CACHING: config.enable_caching,
        Feature.EVENTS: config.enable_events,
        Feature.STATISTICS: config.log_stats,
        Feature.EAGLE: config.use_eagle or any(group.is_eagle_group for group in groups),
        Feature.CONTEXT_PARALLEL: config.dcp_world_size * config.pcp_world_size > 1,
        Feature.RETENTION: config.retention_interval_tokens is not None,
        Feature.ADMISSION: config.watermark > 0,
        Feature.RESIDENCY: config.residency_sample_rate > 0,
    }
    return {feature for feature, wanted in needed.items() if wanted}


def lacking(config: ManagerConfig, can: Capabilities, *, hashes_matter: bool) -> list[str]:
    """What a configuration needs and the subject does not have, in words."""
    types = {type(config.registry.resolve(group.spec)) for group in config.kv_cache.groups}
    found = sorted(cls.__name__ for cls in types - can.spec_types)
    if config.hash_function not in can.hash_functions and (hashes_matter or can.hash_functions):
        found.append(config.hash_function)
    sizes = [group.spec.block_size for group in config.kv_cache.groups]
    if min(sizes, default=can.min_block_size_tokens) < can.min_block_size_tokens:
        found.append(f"blocks of {min(sizes)}")
    return found + sorted(features_of_config(config) - can.features)
