"""Mutants of configurations: what follows from one, and which are refused (KV-CFG-*)."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from kvref import config_checks, hybrid, manager
from kvref.config_checks import checked
from kvref.groups.base import Group
from kvref.hybrid import AttentionGroup
from kvspec.config import ManagerConfig, SpecRegistry
from kvspec.errors import ConfigError
from kvspec.specs import LayerSpec
from tests.mutants.make import patched

Checked = tuple[ManagerConfig, list[LayerSpec]]


def alignment_of_the_largest(config: ManagerConfig, specs: list[LayerSpec]) -> ManagerConfig:
    """KV-CFG-4: the scheduler block size of several groups is the largest, not the LCM."""
    made = _with_block_sizes(config, specs)
    if len(specs) < 2:
        return made
    return replace(made, scheduler_block_size_tokens=max(spec.block_size for spec in specs))


def alignment_of_the_product(config: ManagerConfig, specs: list[LayerSpec]) -> ManagerConfig:
    """KV-CFG-4: the scheduler block size of several groups is the product of different sizes."""
    made = _with_block_sizes(config, specs)
    if len(specs) < 2:
        return made
    sizes = {spec.block_size for spec in specs}
    return replace(made, scheduler_block_size_tokens=math.prod(sizes))


def hash_size_of_the_smallest(config: ManagerConfig, specs: list[LayerSpec]) -> ManagerConfig:
    """KV-CFG-5: the hash block size is the smallest block size, not the GCD."""
    made = _with_block_sizes(config, specs)
    if len(specs) < 2 or config.hash_block_size_tokens is not None or not config.enable_caching:
        return made
    return replace(made, hash_block_size_tokens=min(spec.block_size for spec in specs))


def given_hash_size_is_ignored(config: ManagerConfig, specs: list[LayerSpec]) -> ManagerConfig:
    """KV-CFG-5: the hash block size is the GCD, whatever is given."""
    return _with_block_sizes(replace(config, hash_block_size_tokens=None), specs)


def any_hash_size(config: ManagerConfig, specs: list[LayerSpec]) -> ManagerConfig:
    """KV-CFG-5: a hash block size that divides no block size is accepted."""
    try:
        return _with_block_sizes(config, specs)
    except ConfigError as error:
        if error.field != "hash_block_size_tokens":
            raise
        return given_hash_size_is_ignored(config, specs)


def any_scheduler_size(config: ManagerConfig, specs: list[LayerSpec]) -> ManagerConfig:
    """KV-CFG-4: a scheduler block size that does not follow from the groups is accepted."""
    return _with_block_sizes(replace(config, scheduler_block_size_tokens=None), specs)


def parallel_windows(*anything: Any) -> None:
    """KV-CFG-6, KV-COORD-3: context parallelism is accepted with any groups."""


def retention_of_nothing(*anything: Any) -> None:
    """KV-CFG-7: a retention interval is accepted without a windowed or Mamba group."""


def unaligned_retention(*anything: Any) -> None:
    """KV-CFG-7: a retention interval need be no multiple of the alignment."""


def any_chunks(*anything: Any) -> None:
    """KV-CHUNK-3: chunks are accepted with eagle, and of any size."""


def cached_encoders(config: ManagerConfig) -> Checked:
    """KV-CROSS-4: caching is accepted with cross attention."""
    return _unless(config, "enable_caching")


def equal_specs(config: ManagerConfig) -> Checked:
    """KV-COORD-3: several groups with one spec are accepted with caching."""
    return _unless(config, "kv_cache.groups") if config.kv_cache.groups else checked(config)


def caching_without_groups(config: ManagerConfig) -> Checked:
    """KV-CFG-3: caching is accepted without a group."""
    return checked(config) if config.kv_cache.groups else _unless(config, "kv_cache.groups")


def equal_specs_never(config: ManagerConfig) -> Checked:
    """KV-COORD-1, KV-COORD-3: several groups with one spec are refused without caching, too."""
    made = checked(config)
    if len(made[1]) > 1 and all(spec == made[1][0] for spec in made[1]):
        raise ConfigError("kv_cache.groups", config.kv_cache.groups, "two different specs")
    return made


def refused_without_a_field(config: ManagerConfig) -> Checked:
    """KV-ERR-5: a configuration that cannot be served is a ValueError."""
    try:
        return checked(config)
    except ConfigError as error:
        raise ValueError(str(error)) from None


def refused_for_another_field(config: ManagerConfig) -> Checked:
    """KV-ERR-5: the error of a configuration names no field of it."""
    try:
        return checked(config)
    except ConfigError as error:
        raise ConfigError("config", config, "one that can be served") from error


def registry_is_ignored(config: ManagerConfig) -> Checked:
    """KV-CFG-9: a spec from outside the contract is not managed as what the registry says."""
    return checked(replace(config, registry=SpecRegistry()))


def all_full_attention_is_equal(groups: Sequence[Group]) -> list[AttentionGroup]:
    """KV-CFG-1, KV-COORD-4: full-attention groups of one block size share a specification."""
    made = right_attention_groups(groups)
    first = made[0]
    for other in [attention for attention in made[1:] if attention.is_full]:
        if first.is_full and other.block_size == first.block_size:
            first.members.extend(other.members)
            made.remove(other)
    return made


def _unless(config: ManagerConfig, field: str) -> Checked:
    """The configuration, also if it would be refused for this field."""
    specs: Sequence[LayerSpec] = [config.registry.resolve(g.spec) for g in config.kv_cache.groups]
    try:
        return checked(config)
    except ConfigError as error:
        if error.field != field:
            raise
        return _with_block_sizes(config, list(specs)), list(specs)


right_attention_groups = hybrid.attention_groups_of
_with_block_sizes = config_checks._with_block_sizes
_SIZES = (config_checks, "_with_block_sizes")
_CHECKED = (manager, "checked")

MUTANTS = (
    patched(alignment_of_the_largest, _SIZES),
    patched(alignment_of_the_product, _SIZES),
    patched(hash_size_of_the_smallest, _SIZES),
    patched(given_hash_size_is_ignored, _SIZES),
    patched(any_hash_size, _SIZES),
    patched(any_scheduler_size, _SIZES),
    patched(parallel_windows, (config_checks, "_check_context_parallel")),
    patched(retention_of_nothing, (config_checks, "_check_retention_has_an_effect")),
    patched(unaligned_retention, (config_checks, "_check_retention_value")),
    patched(any_chunks, (config_checks, "_check_chunks")),
    patched(registry_is_ignored, _CHECKED),
    patched(all_full_attention_is_equal, (hybrid, "attention_groups_of")),
    patched(cached_encoders, _CHECKED),
    patched(equal_specs, _CHECKED),
    patched(caching_without_groups, _CHECKED),
    patched(equal_specs_never, _CHECKED),
    patched(refused_without_a_field, _CHECKED),
    patched(refused_for_another_field, _CHECKED),
)
