"""The contract's layout of an engine whose classes have the same names and members, as vLLM's."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import fields
from typing import Any

from kvspec.config import KVCacheConfig, KVCacheGroup, KVCacheTensor, ManagerConfig
from kvspec.policy import Policy
from kvspec.specs import SPEC_TYPES, LayerSpec, ReplayedWindowSpec

TYPE_OF_NAME: Mapping[str, type[LayerSpec]] = {t.__name__: t for t in SPEC_TYPES}


def config_of(manager: Any, *, policy: Policy | None = None, **others: Any) -> ManagerConfig:
    """Convert the configuration of vLLM's manager; `others`: members that it does not keep.

    `policy`: None for that of vLLM 0.24.
    """
    return ManagerConfig(
        cache_of(manager.kv_cache_config),
        max_model_len_tokens=manager.max_model_len,
        scheduler_block_size_tokens=manager.coordinator.scheduler_block_size,
        hash_block_size_tokens=manager.block_pool.hash_block_size,
        enable_caching=bool(manager.enable_caching),
        use_eagle=bool(manager.use_eagle),
        enable_events=bool(manager.block_pool.enable_kv_cache_events),
        retention_interval_tokens=manager.coordinator.retention_interval,
        policy=policy or Policy.vllm_0_24(),
        **others,
    )


def cache_of(kv_cache: Any) -> KVCacheConfig:
    """Convert the layout of a whole cache. Raises ConfigError for what the contract refuses."""
    tensors = tuple(
        KVCacheTensor(
            tensor.size,
            tuple(tensor.shared_by),
            *((tensor.offset, tensor.block_stride) if tensor.block_stride else ()),
        )
        for tensor in kv_cache.kv_cache_tensors
        if hasattr(tensor, "shared_by")  # later ones place layers in one allocation
    )
    return KVCacheConfig(kv_cache.num_blocks, groups_of(kv_cache.kv_cache_groups), tensors)


def groups_of(groups: Iterable[Any]) -> tuple[KVCacheGroup, ...]:
    """Convert the groups of layers."""
    return tuple(
        KVCacheGroup(tuple(group.layer_names), spec_of(group.kv_cache_spec), group.is_eagle_group)
        for group in groups
    )


def spec_of(spec: Any) -> LayerSpec:
    """Convert to the spec of the same name; to the bare base for a name the contract lacks."""
    made = TYPE_OF_NAME.get(type(spec).__name__, LayerSpec)
    if getattr(spec, "bounded_replay", False):
        made = ReplayedWindowSpec
    # Members that an older engine lacks have their default.
    has = (each.name for each in fields(made) if hasattr(spec, each.name))
    members = {name: getattr(spec, name) for name in has}
    if members.get("head_size_v") == 0:  # since 0.29 for a latent, which has no values
        del members["head_size_v"]
    if "dtype" in members:
        members["dtype"] = _name_of(members["dtype"])
    for name in ("kv_quant_mode", "mamba_type"):
        if name in members:
            members[name] = members[name].name
    if "shapes" in members:  # vLLM takes a number for a shape of one side, and counts pairs alone
        pairs = list(zip(members["shapes"], members["dtypes"], strict=False))
        members["shapes"] = tuple(
            (one,) if isinstance(one, int) else tuple(one) for one, _ in pairs
        )
        members["dtypes"] = tuple(_name_of(dtype) for _, dtype in pairs)
    if "kv_cache_specs" in members:
        layers = members["kv_cache_specs"].items()
        members["kv_cache_specs"] = tuple((name, spec_of(layer)) for name, layer in layers)
    return made(**members)


def given_by(scheduler: Any, policy: Policy | None = None) -> dict[str, Any]:
    """Return the members of a configuration that vLLM's manager does not keep.

    `policy`: of its version, from 0.26 on.
    """
    config = scheduler.scheduler_config
    given: dict[str, Any] = {
        "max_num_batched_tokens": config.max_num_batched_tokens,
        "dcp_world_size": scheduler.dcp_world_size,
        "pcp_world_size": scheduler.pcp_world_size,
        "watermark": float(config.watermark),
    }
    if policy is not None:
        given |= {
            "max_num_batched_tokens": scheduler.vllm_config.max_in_flight_tokens,
            "hash_lookahead_tokens": getattr(scheduler, "num_hash_lookahead_tokens", 0),  # of 0.33
            "policy": policy,
        }
    return given


def beyond_contract(scheduler: Any) -> dict[str, bool]:
    """Return vLLM's features that the contract lacks, and whether this scheduler uses them."""
    cache = scheduler.kv_cache_config
    groups = cache.kv_cache_groups
    specs = [group.kv_cache_spec for group in groups]
    return {
        "blocks beside the device's": getattr(cache, "hisparse_host_num_blocks", None) is not None
        or any(
            getattr(group, "host_resident", False) or getattr(group, "role", "default") != "default"
            for group in groups
        ),
        "groups that are not cached": any(
            getattr(spec, "prefix_cacheable", True) != spec_of(spec).prefix_cacheable
            for spec in specs
        ),
        "states at the end of a shared prefix": (
            getattr(scheduler.kv_cache_manager, "mamba_shared_prefix_checkpoint", False)
        ),
        "a connector for routed experts": (
            getattr(scheduler, "aux_output_connector", None) is not None
        ),
    }


def _name_of(dtype: Any) -> str:
    return str(dtype).removeprefix("torch.")
