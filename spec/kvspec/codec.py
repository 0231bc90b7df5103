"""Encode specs, groups and configurations as JSON, and decode them.

The member names are those of record files (`spec/records.md`); where they differ from the
dataclasses, the tables below say so. Decoding is strict: an unknown or missing member, a wrong type
or a value the dataclass refuses is a FormatError that names the field. Encoding writes all members.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import MISSING, fields
from functools import cache
from typing import Any, ClassVar, Protocol, TypeAlias, TypeVar, get_type_hints

from kvspec._json import (
    Check,
    Where,
    boolean,
    checked_members,
    count,
    integer,
    list_of,
    optional,
    real,
    shown,
    text,
)
from kvspec.config import WEAK_HASHES, KVCacheConfig, KVCacheGroup, KVCacheTensor, ManagerConfig
from kvspec.errors import ConfigError, InvalidArgumentError
from kvspec.planning import Layers, PlanningConfig
from kvspec.policy import OLDER, Policy
from kvspec.specs import SPEC_TYPES, LayerSpec, UniformTypeKVCacheSpecs, spec_fields

JSONObject: TypeAlias = dict[str, Any]


class _Dataclass(Protocol):
    """Any dataclass."""

    __dataclass_fields__: ClassVar[dict[str, Any]]


D = TypeVar("D", bound=_Dataclass)


def encode_spec(spec: LayerSpec) -> JSONObject:
    """Encode as `{"type": class name, …}` with every member of the spec."""
    values = {name: _plain(value) for name, value in spec_fields(spec).items()}
    if isinstance(spec, UniformTypeKVCacheSpecs):
        values["kv_cache_specs"] = encode_layers(spec.kv_cache_specs)
    return {"type": type(spec).__name__, **values}


def decode_spec(value: object, where: Where) -> LayerSpec:
    """Decode the spec that `value` describes; only built-in types."""
    if not isinstance(value, dict) or "type" not in value:
        raise where.member("type").error("missing; a spec is an object with a type")
    by_name = {cls.__name__: cls for cls in SPEC_TYPES}
    name = text(value["type"], where.member("type"))
    if name not in by_name:
        raise where.member("type").error(f"unknown type {shown(name)}; known: {', '.join(by_name)}")
    rest = {key: item for key, item in value.items() if key != "type"}
    return _decode_dataclass(by_name[name], rest, where)


def encode_layers(layers: Layers) -> list[list[Any]]:
    """Encode as `[[layer name, spec], …]` in order."""
    return [[name, encode_spec(spec)] for name, spec in layers]


def decode_layers(value: object, where: Where) -> Layers:
    """Decode layers in order; names must be unique."""
    pairs = []
    for index, item in enumerate(list_of(_pair)(value, where)):
        at = where.item(index)
        pairs.append((text(item[0], at.item(0)), decode_spec(item[1], at.item(1))))
    names = set[str]()
    for name, _ in pairs:
        if name in names:
            raise where.error(f"layer {shown(name)} is given twice")
        names.add(name)
    return tuple(pairs)


def _pair(value: object, where: Where) -> list[Any]:
    """Check a list of two elements."""
    if not isinstance(value, list) or len(value) != 2:
        raise where.error("not a list of layer name and spec")
    return value


def encode_group(group: KVCacheGroup) -> JSONObject:
    """Encode `{"layer_names", "spec", "is_eagle_group"}`."""
    return {
        "layer_names": list(group.layer_names),
        "spec": encode_spec(group.spec),
        "is_eagle_group": group.is_eagle_group,
    }


def decode_group(value: object, where: Where) -> KVCacheGroup:
    found = checked_members(
        value,
        where,
        {"layer_names": list_of(text), "spec": decode_spec},
        {"is_eagle_group": boolean},
    )
    return KVCacheGroup(
        tuple(found["layer_names"]), found["spec"], found.get("is_eagle_group", False)
    )


def encode_groups(groups: tuple[KVCacheGroup, ...]) -> list[JSONObject]:
    return [encode_group(group) for group in groups]


def decode_groups(value: object, where: Where) -> tuple[KVCacheGroup, ...]:
    return tuple(list_of(decode_group)(value, where))


def encode_tensor(tensor: KVCacheTensor) -> JSONObject:
    """Encode as `{"size", "shared_by", "offset", "block_stride"}`; the last two 0 unless packed."""
    return {
        "size": tensor.size_bytes,
        "shared_by": list(tensor.shared_by),
        "offset": tensor.offset_bytes or 0,
        "block_stride": tensor.block_stride_bytes or 0,
    }


def decode_tensor(value: object, where: Where) -> KVCacheTensor:
    """Decode a tensor. A `block_stride` of 0 means that it is not packed; then `offset` is 0."""
    found = checked_members(
        value,
        where,
        {"size": count, "shared_by": list_of(text)},
        {"offset": count, "block_stride": count},
    )
    offset, stride = found.get("offset", 0), found.get("block_stride", 0)
    if stride == 0 and offset != 0:
        raise where.member("offset").error(f"{offset} although block_stride is 0 (not packed)")
    packed = stride != 0
    return KVCacheTensor(
        size_bytes=found["size"],
        shared_by=tuple(found["shared_by"]),
        offset_bytes=offset if packed else None,
        block_stride_bytes=stride if packed else None,
    )


def encode_kv_cache(kv_cache: KVCacheConfig) -> JSONObject:
    """Encode `{"num_blocks", "kv_cache_tensors", "kv_cache_groups"}`."""
    return {
        "num_blocks": kv_cache.num_blocks,
        "kv_cache_tensors": [encode_tensor(tensor) for tensor in kv_cache.tensors],
        "kv_cache_groups": encode_groups(kv_cache.groups),
    }


def decode_kv_cache(value: object, where: Where) -> KVCacheConfig:
    found = checked_members(
        value,
        where,
        {
            "num_blocks": count,
            "kv_cache_tensors": list_of(decode_tensor),
            "kv_cache_groups": decode_groups,
        },
        {},
    )
    return _build(
        KVCacheConfig,
        where,
        {},
        num_blocks=found["num_blocks"],
        groups=found["kv_cache_groups"],
        tensors=tuple(found["kv_cache_tensors"]),
    )


# Member of a record's `config` -> field of ManagerConfig and the check of its value.
_MANAGER_MEMBERS: Mapping[str, tuple[str, Check[Any]]] = {
    "max_model_len": ("max_model_len_tokens", integer),
    "scheduler_block_size": ("scheduler_block_size_tokens", optional(integer)),
    "hash_block_size": ("hash_block_size_tokens", optional(integer)),
    "max_num_batched_tokens": ("max_num_batched_tokens", optional(integer)),
    "enable_caching": ("enable_caching", boolean),
    "use_eagle": ("use_eagle", boolean),
    "log_stats": ("log_stats", boolean),
    "enable_kv_cache_events": ("enable_events", boolean),
    "kv_events_use_int_block_hashes": ("int_event_hashes", boolean),
    "dcp_world_size": ("dcp_world_size", integer),
    "pcp_world_size": ("pcp_world_size", integer),
    "watermark": ("watermark", real),
    "prefix_cache_retention_interval": ("retention_interval_tokens", optional(integer)),
    "hash_function": ("hash_function", text),
    "python_hash_seed": ("hash_seed", optional(text)),
}

_RARE_MEMBERS: Mapping[str, tuple[str, Check[Any]]] = {
    "residency_sample_rate": ("residency_sample_rate", real),
    "trusted_tenants": ("trusted_tenants", boolean),
    "num_hash_lookahead_tokens": ("hash_lookahead_tokens", integer),
}
"""The same for members that are omitted at their defaults."""


def field_of_member(member: str) -> str:
    """Return the field of ManagerConfig for a member of a record's `config`."""
    pool = {name: (f"kv_cache.{name}", None) for name in ("num_blocks", "groups", "tensors")}
    return {**pool, **_MANAGER_MEMBERS, **_RARE_MEMBERS}.get(member, (member, None))[0]


def encode_manager_config(config: ManagerConfig) -> JSONObject:
    """Encode the `config` of a record's header.

    Only where needed: `policy` (unless `vllm-0.24`), `tensors`, and members of `_RARE_MEMBERS`.
    Custom specs are code and can't be written: InvalidArgumentError.
    """
    if config.registry.custom:
        raise InvalidArgumentError("registry", config.registry, "empty: a record can't hold code")
    value: JSONObject = {
        "num_blocks": config.kv_cache.num_blocks,
        "groups": encode_groups(config.kv_cache.groups),
    }
    for member, (field, _) in _MANAGER_MEMBERS.items():
        value[member] = getattr(config, field)
    value["watermark"] = float(config.watermark)
    if config.kv_cache.tensors:
        value["tensors"] = [encode_tensor(tensor) for tensor in config.kv_cache.tensors]
    for member, (field, _) in _RARE_MEMBERS.items():
        value |= {member: getattr(config, field)} if getattr(config, field) else {}
    if config.policy != Policy.vllm_0_24():
        value["policy"] = encode_policy(config.policy)
    return value


def decode_manager_config(value: object, where: Where) -> ManagerConfig:
    """Decode a manager's configuration, under the profile `vllm-0.24` unless it has a `policy`.

    A weak hash function without `trusted_tenants` is older than that member, and trusted.
    """
    checks = {member: check for member, (_, check) in _MANAGER_MEMBERS.items()}
    found = checked_members(
        value,
        where,
        {"num_blocks": integer, "groups": decode_groups, **checks},
        {
            "tensors": list_of(decode_tensor),
            "policy": decode_recorded_policy,
            **{member: check for member, (_, check) in _RARE_MEMBERS.items()},
        },
    )
    tensors, blocks = tuple(found.get("tensors", ())), found["num_blocks"]
    groups = found["groups"]
    kv_cache = _build(KVCacheConfig, where, {}, num_blocks=blocks, groups=groups, tensors=tensors)
    found.setdefault("trusted_tenants", found["hash_function"] in WEAK_HASHES)
    members = {**_MANAGER_MEMBERS, **_RARE_MEMBERS}
    return _build(
        ManagerConfig,
        where,
        {field: member for member, (field, _) in members.items()},
        kv_cache=kv_cache,
        policy=found.get("policy", Policy.vllm_0_24()),
        **{field: found[member] for member, (field, _) in members.items() if member in found},
    )


# Member of a planning record's `config` -> field of PlanningConfig and the check of its value.
_PLANNING_MEMBERS: Mapping[str, tuple[str, Check[Any]]] = {
    "max_model_len": ("max_model_len_tokens", integer),
    "original_max_model_len": ("original_max_model_len_tokens", optional(integer)),
    "decode_context_parallel_size": ("dcp_world_size", integer),
    "prefill_context_parallel_size": ("pcp_world_size", integer),
    "max_num_batched_tokens": ("max_num_batched_tokens", integer),
    "max_num_encoder_input_tokens": ("max_encoder_tokens", integer),
    "disable_hybrid_kv_cache_manager": ("disable_hybrid", boolean),
    "num_gpu_blocks_override": ("num_blocks_override", optional(integer)),
    "mamba_cache_mode": ("mamba_cache_mode", text),
    "block_size": ("block_size", integer),
    "hash_block_size": ("hash_block_size", optional(integer)),
    "enable_prefix_caching": ("enable_caching", boolean),
    "kv_transfer": ("has_connector", boolean),
    "use_eagle": ("use_eagle", optional(boolean)),
}


def encode_planning_config(config: PlanningConfig) -> JSONObject:
    """Encode the `config` of a planning record; without the policy of `vllm-0.24`."""
    value = {member: getattr(config, field) for member, (field, _) in _PLANNING_MEMBERS.items()}
    value["enable_cross_layers_blocks"] = "true" if config.packed_layout else None
    if config.policy != Policy.vllm_0_24():
        value["policy"] = encode_policy(config.policy)
    return value


def decode_planning_config(value: object, where: Where) -> PlanningConfig:
    """Decode a planning configuration, under the profile `vllm-0.24` unless it has a `policy`."""
    checks = {member: check for member, (_, check) in _PLANNING_MEMBERS.items()}
    found = checked_members(
        value,
        where,
        {**checks, "enable_cross_layers_blocks": optional(text)},
        {"policy": decode_recorded_policy},
    )
    # The option is a text of the connector's own; only "true", however it is written, means yes.
    packed = (found["enable_cross_layers_blocks"] or "").lower() == "true"
    values = {field: found[member] for member, (field, _) in _PLANNING_MEMBERS.items()}
    return _build(
        PlanningConfig,
        where,
        {field: member for member, (field, _) in _PLANNING_MEMBERS.items()},
        packed_layout=packed,
        policy=found.get("policy", Policy.vllm_0_24()),
        **values,
    )


def under_policy(value: object, policy: Policy | None) -> object:
    """Return `value` with `policy` in its `config`, unless that has one; None changes nothing.

    A value without `config` is also returned unchanged: its decoder reports the error.
    """
    config = value.get("config") if isinstance(value, dict) else None
    if policy is None or not isinstance(value, dict) or not isinstance(config, dict):
        return value
    return {**value, "config": {"policy": encode_policy(policy), **config}}


def encode_policy(policy: Policy) -> JSONObject:
    """Encode the policy by name; later choices only if omitting them would mean another value."""
    return {name: getattr(policy, name) for name in policy.written}


def decode_policy(value: object, where: Where) -> Policy:
    """Decode a policy; missing members get the rules' default."""
    return _decode_dataclass(Policy, value, where)


def decode_recorded_policy(value: object, where: Where) -> Policy:
    """Decode the policy of a record or message, where a missing key may mean another (`OLDER`)."""
    members = {**OLDER, **value} if isinstance(value, dict) else value
    return decode_policy(members, where)


# Check and conversion for each type that a member of a spec or a policy is annotated with.
_BY_TYPE: Mapping[Any, Check[Any]] = {
    int: integer,
    str: text,
    bool: boolean,
    int | None: optional(integer),
    str | None: optional(text),
    tuple[str, ...]: list_of(text),
    tuple[tuple[int, ...], ...]: list_of(list_of(integer)),
    tuple[tuple[str, LayerSpec], ...]: decode_layers,
}


def _decode_dataclass(cls: type[D], value: object, where: Where) -> D:
    """Make an instance of `cls` from an object with its fields by name."""
    found = checked_members(value, where, *_members_of(cls))
    return _build(cls, where, {}, **{name: _frozen(item) for name, item in found.items()})


@cache
def _members_of(cls: type[_Dataclass]) -> tuple[Mapping[str, Check[Any]], Mapping[str, Check[Any]]]:
    """Return the checks of required members, and of those that have a default."""
    hints = get_type_hints(cls)
    required: dict[str, Check[Any]] = {}
    optional_members: dict[str, Check[Any]] = {}
    for field in fields(cls):
        target = required if field.default is MISSING else optional_members
        target[field.name] = _BY_TYPE[hints[field.name]]
    return required, optional_members


def _build(cls: type[D], where: Where, names: Mapping[str, str], **values: Any) -> D:
    """Return `cls(**values)`; a value that it refuses becomes a FormatError under its file name."""
    try:
        return cls(**values)
    except ConfigError as error:
        at = where.member(names.get(error.field, error.field))
        if error.field in {field.name for field in fields(cls)} - set(values):
            raise at.error(f"missing; must be {error.allowed}") from None
        raise at.error(f"{shown(error.value)}: must be {error.allowed}") from None


def _plain(value: Any) -> Any:
    """Convert tuples to lists, at any depth."""
    return [_plain(item) for item in value] if isinstance(value, tuple) else value


def _frozen(value: Any) -> Any:
    """Convert lists to tuples, at any depth."""
    return tuple(_frozen(item) for item in value) if isinstance(value, list) else value
