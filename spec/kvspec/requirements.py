"""Features that a configuration needs of an implementation."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from kvspec.config import WEAK_HASHES, ManagerConfig
from kvspec.editions import has_come
from kvspec.inside import hits_end_inside
from kvspec.interface import Capabilities, Feature
from kvspec.specs import LayerSpec, MambaSpec


def _specs(config: ManagerConfig) -> list[LayerSpec]:
    return [config.registry.resolve(group.spec) for group in config.kv_cache.groups]


def _context_parallel(config: ManagerConfig) -> set[str]:
    sizes = {"decode": config.dcp_world_size, "prefill": config.pcp_world_size}
    return {name for name, size in sizes.items() if size > 1}


def _hash_block_size(config: ManagerConfig) -> set[str]:
    given, sizes = config.hash_block_size_tokens, {spec.block_size for spec in _specs(config)}
    factor = config.dcp_world_size * config.pcp_world_size
    smaller = given is not None and any(given < size * factor for size in sizes)
    return {"smaller" if smaller else "block"}


VALUES: Mapping[str, Callable[[ManagerConfig], set[str]]] = {
    "mamba_cache_mode": lambda config: {
        spec.mamba_cache_mode for spec in _specs(config) if isinstance(spec, MambaSpec)
    },
    "context_parallel": _context_parallel,
    "block_sizes": lambda config: {
        "equal" if len({spec.block_size for spec in _specs(config)}) < 2 else "different"
    },
    "hash_block_size": _hash_block_size,
}
"""The values that a configuration uses, for each member of `Capabilities.values`: the modes of its
Mamba groups; `decode` and `prefill` context parallelism; block sizes of its groups that are `equal`
or `different`; a given hash block size that is at least that of some `block`, or `smaller`."""

LIMITS: Mapping[str, Callable[[ManagerConfig], int]] = {
    "groups": lambda config: len(config.kv_cache.groups),
    "num_blocks": lambda config: config.kv_cache.num_blocks,
    "block_size": lambda config: max((spec.block_size for spec in _specs(config)), default=0),
    "max_model_len": lambda config: config.max_model_len_tokens,
    "num_speculative_blocks": lambda config: max(
        (s.num_speculative_blocks for s in _specs(config)), default=0
    ),
    "extra_retained_tokens": lambda config: max(
        (s.extra_retained_tokens for s in _specs(config)), default=0
    ),
}
"""The amount that a configuration uses, for each member of `Capabilities.limits`."""


def limits_of(can: Capabilities) -> Mapping[str, int]:
    """Return the limits of an implementation; those newer than its edition are at most 0."""
    return (
        can.limits if has_come("0.2", can.edition) else {"extra_retained_tokens": 0, **can.limits}
    )


def features_of_config(config: ManagerConfig) -> set[Feature]:
    """Return the features that a configuration needs."""
    groups = config.kv_cache.groups
    uncounted = frozenset() if config.log_stats else {"lookups_counted"}
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
        Feature.GIVEN_HASHES: config.given_hash_bytes > 0,
        Feature.LATER_CHOICES: bool(config.policy.later_choices - uncounted),
        Feature.HITS_INSIDE_BLOCKS: hits_end_inside(config)
        or any(spec.has_checkpoints for spec in _specs(config)),
        Feature.HASH_LOOKAHEAD: config.hash_lookahead_tokens > 0,
        Feature.EVICTION_ORDERS: config.eviction_order != "lru",
    }
    return {feature for feature, wanted in needed.items() if wanted}


def lacking(config: ManagerConfig, can: Capabilities, *, hashes_matter: bool) -> list[str]:
    """Return, in words, what a configuration needs and the subject lacks."""
    types = {type(spec) for spec in _specs(config)}
    found = sorted(cls.__name__ for cls in types - can.spec_types)
    is_computed = not config.given_hash_bytes and (hashes_matter or can.hash_functions)
    if is_computed and config.hash_function not in can.hash_functions:
        found.append(config.hash_function)
    sizes = [group.spec.block_size for group in config.kv_cache.groups]
    if min(sizes, default=can.min_block_size_tokens) < can.min_block_size_tokens:
        found.append(f"blocks of {min(sizes)}")
    for name, allowed in can.values.items():
        found += [f"{name} {value}" for value in sorted(VALUES[name](config) - allowed)]
    if config.hash_function in WEAK_HASHES and not has_come("0.2", can.edition):
        found.append("edition 0.2")  # `trusted_tenants`
    for name, most in limits_of(can).items():
        if LIMITS[name](config) > most:
            found.append(f"{name} above {most}")
    return found + sorted(features_of_config(config) - can.features)
