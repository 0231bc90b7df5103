"""From the contract's configuration to vLLM's, and from vLLM's layouts to the contract's."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

from kvcheck.adapters.vllm.errors import NAME
from kvcheck.adapters.vllm.library import Library
from kvspec.config import KVCacheConfig, ManagerConfig
from kvspec.errors import UnsupportedError
from kvspec.foreign import TYPE_OF_NAME
from kvspec.interface import Capabilities
from kvspec.policy import LATER, Policy
from kvspec.requirements import lacking
from kvspec.specs import LayerSpec, ReplayedWindowSpec, TQFullAttentionSpec, spec_fields

NAMES = """FullAttention TQFullAttention MLAAttention HiddenStateCache SlidingWindow
SlidingWindowMLA ChunkedLocalAttention Mamba CrossAttention"""
SPEC_TYPES = frozenset(TYPE_OF_NAME[f"{name}Spec"] for name in NAMES.split())
"""Specs of groups in 0.24. vLLM has a sink class too, but building its manager fails."""

LATER_SPEC_TYPES = SPEC_TYPES - {TQFullAttentionSpec} | {
    *(TYPE_OF_NAME["RSWASpec"], TYPE_OF_NAME["CircularBufferSpec"], ReplayedWindowSpec)
}
"""Specs in 0.33, in which Turboquant is not a separate spec."""

HASH_FUNCTIONS = ("sha256_cbor", "xxhash_cbor")

OLD_MEMBERS = ("indexes_kv_by_block_stride", "compress_ratio")
"""Members of specs that 0.33 does not have."""

CHOICES = ("unhashed_freed_to", "removed_event_per", "chunked_null_prefix_is_hit")
"""Choices that a policy may not change, besides the later ones."""


def check(config: ManagerConfig, can: Capabilities, own: Policy) -> None:
    """Raise UnsupportedError for what this vLLM lacks. It checks itself how values fit together."""
    for choice in (*CHOICES, *LATER):
        if getattr(config.policy, choice) != getattr(own, choice):
            said = f"the policy {choice} = {getattr(config.policy, choice)!r}"
            raise UnsupportedError(said, NAME)
    if lacks := lacking(config, can, hashes_matter=True):
        raise UnsupportedError(", ".join(lacks), NAME)


def with_block_sizes(config: ManagerConfig) -> ManagerConfig:
    """Return it with the block sizes that an engine would derive (KV-CFG-4, KV-CFG-5, KV-COORD-14).

    Given sizes stay, for vLLM to judge.
    """
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
    """vLLM's KVCacheConfig, without tensors; with the retention interval from 0.33 on."""
    later = {"prefix_cache_retention_interval": retention_interval} if library.is_later else {}
    groups = [
        library.interface.KVCacheGroupSpec(
            layer_names=list(group.layer_names),
            kv_cache_spec=layer_spec(library, group.spec),
            is_eagle_group=group.is_eagle_group,
        )
        for group in kv_cache.groups
    ]
    return library.interface.KVCacheConfig(kv_cache.num_blocks, [], groups, **later)


def layer_spec(library: Library, spec: LayerSpec) -> Any:
    """vLLM's spec of the same name and members."""
    interface, members = library.interface, spec_fields(spec)
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
