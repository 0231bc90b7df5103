"""The contract's layout of an engine whose classes have the same names and members, as vLLM's."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import fields
from types import MappingProxyType
from typing import Any

from kvspec.config import KVCacheConfig, KVCacheGroup, KVCacheTensor
from kvspec.specs import (
    ChunkedLocalAttentionSpec,
    CrossAttentionSpec,
    EncoderOnlyAttentionSpec,
    FullAttentionSpec,
    HiddenStateCacheSpec,
    LayerSpec,
    MambaSpec,
    MLAAttentionSpec,
    SinkFullAttentionSpec,
    SlidingWindowMLASpec,
    SlidingWindowSpec,
    TQFullAttentionSpec,
    UniformTypeKVCacheSpecs,
)

_TYPES = (
    ChunkedLocalAttentionSpec,
    CrossAttentionSpec,
    EncoderOnlyAttentionSpec,
    FullAttentionSpec,
    HiddenStateCacheSpec,
    MambaSpec,
    MLAAttentionSpec,
    SinkFullAttentionSpec,
    SlidingWindowMLASpec,
    SlidingWindowSpec,
    TQFullAttentionSpec,
    UniformTypeKVCacheSpecs,
)
TYPE_OF_NAME: Mapping[str, type[LayerSpec]] = MappingProxyType({t.__name__: t for t in _TYPES})


def cache_of(kv_cache: Any) -> KVCacheConfig:
    """The layout of a whole cache. Raises ConfigError for what the contract refuses."""
    tensors = tuple(
        KVCacheTensor(
            tensor.size,
            tuple(tensor.shared_by),
            *((tensor.offset, tensor.block_stride) if tensor.block_stride else ()),
        )
        for tensor in kv_cache.kv_cache_tensors
    )
    return KVCacheConfig(kv_cache.num_blocks, groups_of(kv_cache.kv_cache_groups), tensors)


def groups_of(groups: Iterable[Any]) -> tuple[KVCacheGroup, ...]:
    """The groups of layers."""
    return tuple(
        KVCacheGroup(tuple(group.layer_names), spec_of(group.kv_cache_spec), group.is_eagle_group)
        for group in groups
    )


def spec_of(spec: Any) -> LayerSpec:
    """The spec of the same name; the bare base for a name that the contract does not know."""
    made = TYPE_OF_NAME.get(type(spec).__name__, LayerSpec)
    members = {each.name: getattr(spec, each.name) for each in fields(made)}
    if "dtype" in members:
        members["dtype"] = _name_of(members["dtype"])
    if "dtypes" in members:
        members["dtypes"] = tuple(map(_name_of, members["dtypes"]))
    for name in ("kv_quant_mode", "mamba_type"):
        if name in members:
            members[name] = members[name].name
    if "kv_cache_specs" in members:
        layers = members["kv_cache_specs"].items()
        members["kv_cache_specs"] = tuple((name, spec_of(layer)) for name, layer in layers)
    return made(**members)


def _name_of(dtype: Any) -> str:
    return str(dtype).removeprefix("torch.")
