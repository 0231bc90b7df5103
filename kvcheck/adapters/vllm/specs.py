"""From the contract's configuration to vLLM's, and from vLLM's layouts to the contract's."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from types import MappingProxyType
from typing import Any, TypeVar

from kvcheck.adapters.vllm.errors import NAME, VLLMAnswerError
from kvcheck.adapters.vllm.library import Library
from kvspec.config import KVCacheConfig, KVCacheGroup, ManagerConfig
from kvspec.errors import ConfigError, UnsupportedError
from kvspec.foreign import TYPE_OF_NAME
from kvspec.policy import LATER
from kvspec.requirements import VALUES
from kvspec.specs import (
    ChunkedLocalAttentionSpec,
    CircularBufferSpec,
    CrossAttentionSpec,
    FullAttentionSpec,
    HiddenStateCacheSpec,
    LayerSpec,
    MambaSpec,
    MLAAttentionSpec,
    ReplayedWindowSpec,
    RSWASpec,
    SlidingWindowMLASpec,
    SlidingWindowSpec,
    TQFullAttentionSpec,
    spec_fields,
)

T = TypeVar("T")

SPEC_TYPES: frozenset[type[LayerSpec]] = frozenset(
    {
        *(FullAttentionSpec, TQFullAttentionSpec, MLAAttentionSpec, HiddenStateCacheSpec),
        *(SlidingWindowSpec, SlidingWindowMLASpec, ChunkedLocalAttentionSpec),
        *(MambaSpec, CrossAttentionSpec),
    }
)
"""Specs of groups in 0.24. vLLM has a sink class too, but building its manager fails."""

LATER_SPEC_TYPES = SPEC_TYPES - {TQFullAttentionSpec} | {
    *(RSWASpec, CircularBufferSpec, ReplayedWindowSpec)
}
"""Specs in 0.33, in which Turboquant is not a separate spec."""

PLANNED_TYPES = frozenset(TYPE_OF_NAME.values())
"""What planning knows."""

HASH_FUNCTIONS = ("sha256_cbor", "xxhash_cbor")

OLD_MEMBERS = ("indexes_kv_by_block_stride", "compress_ratio")
"""Members of specs that 0.33 does not have."""

CHOICES = ("unhashed_freed_to", "removed_event_per", "chunked_null_prefix_is_hit")
"""Choices that a policy may not change, besides the later ones."""


def spec_types(library: Library) -> frozenset[type[LayerSpec]]:
    return LATER_SPEC_TYPES if library.is_later else SPEC_TYPES


def values(library: Library) -> Mapping[str, frozenset[str]]:
    if not library.is_later:
        return MappingProxyType({})
    found = {"mamba_cache_mode": frozenset({"align"}), "context_parallel": frozenset({"decode"})}
    return MappingProxyType(found)


def checked(config: ManagerConfig, library: Library) -> ManagerConfig:
    """Return the configuration with the block sizes that an engine would derive.

    Raises UnsupportedError for features that this vLLM lacks. vLLM checks whether the values fit
    together.
    """
    for group in config.kv_cache.groups:
        if type(group.spec) not in spec_types(library):
            raise UnsupportedError(f"groups of {type(group.spec).__name__}", NAME)
    states = [spec for spec in config.managed_specs if isinstance(spec, MambaSpec)]
    if not library.is_later and any(spec.has_checkpoints for spec in states):
        raise UnsupportedError("states inside a chunk", NAME)
    if not library.is_later and any(map(_retains_more, config.managed_specs)):
        raise UnsupportedError("windows that retain more", NAME)
    for name, offered in values(library).items():
        for value in sorted(VALUES[name](config) - offered):
            raise UnsupportedError(f"{name} {value}", NAME)
    if config.hash_function not in HASH_FUNCTIONS:
        raise UnsupportedError(f"the hash function {config.hash_function}", NAME)
    if config.hash_lookahead_tokens > 0 and not library.is_later:
        raise UnsupportedError("hash look-ahead", NAME)
    if config.residency_sample_rate > 0:
        raise UnsupportedError("residency samples on a given clock", NAME)
    own, policy = library.policy, config.policy
    for choice in (*CHOICES, *LATER):
        if getattr(policy, choice) != getattr(own, choice):
            raise UnsupportedError(f"the policy {choice} = {getattr(policy, choice)!r}", NAME)
    return _with_block_sizes(config)


def _retains_more(spec: LayerSpec) -> bool:
    return isinstance(spec, SlidingWindowSpec) and spec.extra_retained_tokens > 0


def _with_block_sizes(config: ManagerConfig) -> ManagerConfig:
    """Given sizes stay, for vLLM to judge; missing ones follow KV-CFG-4, KV-CFG-5, KV-COORD-14."""
    specs = [group.spec for group in config.kv_cache.groups]
    sizes = [spec.block_size for spec in specs]
    cached = [spec.block_size for spec in specs if spec.prefix_cacheable] or sizes
    scheduler, hashed = config.scheduler_block_size_tokens, config.hash_block_size_tokens
    if not sizes:
        scheduler = hashed = scheduler or hashed or 1
    elif len(sizes) == 1:
        scheduler = scheduler or sizes[0] * config.dcp_world_size * config.pcp_world_size
        hashed = scheduler
    else:
        scheduler = scheduler or math.lcm(*sizes)
        hashed = (hashed or math.gcd(*cached)) if config.enable_caching else scheduler
    return replace(config, scheduler_block_size_tokens=scheduler, hash_block_size_tokens=hashed)


def cache_config(
    library: Library, kv_cache: KVCacheConfig, retention_interval: int | None = None
) -> Any:
    """vLLM's KVCacheConfig; with the retention interval, and without tensors, from 0.33 on."""
    tensors = [
        library.interface.KVCacheTensor(
            size=tensor.size_bytes,
            shared_by=list(tensor.shared_by),
            offset=tensor.offset_bytes or 0,
            block_stride=tensor.block_stride_bytes or 0,
        )
        for tensor in kv_cache.tensors
        if not library.is_later
    ]
    later = {"prefix_cache_retention_interval": retention_interval} if library.is_later else {}
    return library.interface.KVCacheConfig(
        num_blocks=kv_cache.num_blocks,
        kv_cache_tensors=tensors,
        kv_cache_groups=group_specs(library, kv_cache.groups),
        **later,
    )


def group_specs(library: Library, groups: Iterable[KVCacheGroup]) -> list[Any]:
    return [
        library.interface.KVCacheGroupSpec(
            layer_names=list(group.layer_names),
            kv_cache_spec=layer_spec(library, group.spec),
            is_eagle_group=group.is_eagle_group,
        )
        for group in groups
    ]


def layer_spec(library: Library, spec: LayerSpec) -> Any:
    """vLLM's spec of the same name and members; its bare base class for one that it has not."""
    interface, members = library.interface, spec_fields(spec)
    if type(spec) not in PLANNED_TYPES:
        return interface.KVCacheSpec(spec.block_size)
    if "dtype" in members:
        members["dtype"] = getattr(library.torch, members["dtype"])
    if "dtypes" in members:
        members["dtypes"] = tuple(getattr(library.torch, name) for name in members["dtypes"])
    if "kv_quant_mode" in members:
        members["kv_quant_mode"] = _of_enum(interface.KVQuantMode, members["kv_quant_mode"])
    if "mamba_type" in members:
        kinds = library.backends.MambaAttentionBackendEnum
        members["mamba_type"] = _of_enum(kinds, members["mamba_type"])
    if library.is_later:
        members = _renamed(members)
    if "kv_cache_specs" in members:
        layers = members["kv_cache_specs"]
        members["kv_cache_specs"] = {name: layer_spec(library, layer) for name, layer in layers}
    if spec.replays_window:
        return interface.SlidingWindowMLASpec(**members, bounded_replay=True)
    return getattr(interface, type(spec).__name__)(**members)


def _renamed(members: dict[str, Any]) -> dict[str, Any]:
    """Rename members as since 0.29; those for the byte order of a page are dropped."""
    left = {name: value for name, value in members.items() if name not in OLD_MEMBERS}
    if "compress_ratio" in members:
        left["tokens_per_state"] = members["compress_ratio"]
    return left


def _of_enum(kinds: Any, name: str) -> Any:
    if name not in kinds.__members__:
        raise UnsupportedError(f"{kinds.__name__} {name}", NAME)
    return kinds[name]


def answered(make: Callable[[Any], T], found: Any) -> T:
    """Convert a result of vLLM; VLLMAnswerError if the contract refuses it."""
    try:
        return make(found)
    except ConfigError as error:
        raise VLLMAnswerError(error) from error
