"""Encode specs, groups and configurations as JSON, and decode them.

The member names are those of record files (`spec/records.md`); where they differ from the
dataclasses, the tables below say so. Decoding is strict: an unknown or missing member, a wrong type
or a value the dataclass refuses is a FormatError that names the field. Encoding writes all members.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from kvspec.config import WEAK_HASHES, KVCacheConfig, KVCacheGroup, KVCacheTensor, ManagerConfig
from kvspec.errors import InvalidArgumentError
from kvspec.files.objects import (
    Where,
    checked_members,
    count,
    integer,
    list_of,
    optional,
    shown,
    text,
)
from kvspec.files.shapes import FORMS, Form, JSONObject, Shape, as_it_is, form_of
from kvspec.planning import Layers, PlanningConfig
from kvspec.policy import OLDER, Policy
from kvspec.specs import SPEC_TYPES, LayerSpec, UniformTypeKVCacheSpecs, spec_fields


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
    name = text(value["type"], where.member("type"))
    if name not in _SPECS:
        raise where.member("type").error(f"unknown type {shown(name)}; known: {', '.join(_SPECS)}")
    rest = {key: item for key, item in value.items() if key != "type"}
    return _SPECS[name].read(rest, where)


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


def decode_tensor(value: object, where: Where) -> KVCacheTensor:
    """Decode a tensor. A `block_stride` of 0 means that it is not packed; then `offset` is 0."""
    tensor = _TENSOR.read(value, where)
    offset, stride = tensor.offset_bytes or 0, tensor.block_stride_bytes or 0
    if stride == 0 and offset != 0:
        raise where.member("offset").error(f"{offset} although block_stride is 0 (not packed)")
    packed = (offset, stride) if stride else (None, None)
    return KVCacheTensor(tensor.size_bytes, tensor.shared_by, *packed)


def decode_recorded_policy(value: object, where: Where) -> Policy:
    """Decode the policy of a record or message, where a missing key may mean another (`OLDER`)."""
    members = {**OLDER, **value} if isinstance(value, dict) else value
    return decode_policy(members, where)


def encode_policy(policy: Policy) -> JSONObject:
    """Encode the policy by name; later choices only if omitting them would mean another value."""
    return {name: getattr(policy, name) for name in policy.written}


decode_policy = Shape(Policy).read
"""Decode a policy; missing members get the rules' default."""

_NUMBERS: Mapping[Any, Form] = {**FORMS, int: Form(integer, as_it_is)}
_COUNTS: Mapping[Any, Form] = {**FORMS, int: Form(count, as_it_is)}
_TENSOR = Shape(
    KVCacheTensor,
    {"size_bytes": "size", "offset_bytes": "offset", "block_stride_bytes": "block_stride"},
    forms={**_COUNTS, int | None: Form(count, lambda value: value or 0)},
)
_FORMS: Mapping[Any, Form] = {
    **_NUMBERS,
    LayerSpec: Form(decode_spec, encode_spec),
    Layers: Form(decode_layers, encode_layers),
    KVCacheTensor: Form(decode_tensor, _TENSOR.write),
    Policy: Form(decode_recorded_policy, encode_policy),
}
"""The forms of the values that configurations are made of."""

_SPECS: Mapping[str, Shape[LayerSpec]] = {
    cls.__name__: Shape(cls, forms=_FORMS) for cls in SPEC_TYPES
}
_GROUP = Shape(KVCacheGroup, forms=_FORMS)
_GROUPS = form_of(tuple[KVCacheGroup, ...], {**_FORMS, KVCacheGroup: _GROUP.form})
decode_group, decode_groups, encode_groups = _GROUP.read, _GROUPS.read, _GROUPS.write
_KV_CACHE = Shape(
    KVCacheConfig,
    {"groups": "kv_cache_groups", "tensors": "kv_cache_tensors"},
    forms={**_FORMS, "num_blocks": Form(count, as_it_is), "groups": _GROUPS},
    sometimes=(),
)
decode_kv_cache, encode_kv_cache = _KV_CACHE.read, _KV_CACHE.write
_POOL = Shape(KVCacheConfig, forms={**_FORMS, "groups": _GROUPS}, sometimes=("tensors",))
"""The same members in the configuration of a manager."""

_RARE = (
    *("residency_sample_rate", "trusted_tenants", "hash_lookahead_tokens", "policy"),
    "eviction_order",
)
_MANAGER = Shape(
    ManagerConfig,
    {
        "max_model_len_tokens": "max_model_len",
        "scheduler_block_size_tokens": "scheduler_block_size",
        "hash_block_size_tokens": "hash_block_size",
        "enable_events": "enable_kv_cache_events",
        "int_event_hashes": "kv_events_use_int_block_hashes",
        "retention_interval_tokens": "prefix_cache_retention_interval",
        "hash_seed": "python_hash_seed",
        "hash_lookahead_tokens": "num_hash_lookahead_tokens",
    },
    forms=_FORMS,
    sometimes=_RARE,
    elsewhere=("kv_cache", "registry"),
)


def field_of_member(member: str) -> str:
    """Return the field of ManagerConfig for a member of a record's `config`."""
    fields = {shown: field for field, shown in _MANAGER.names.items()}
    return f"kv_cache.{member}" if member in _POOL.names else fields.get(member, member)


def encode_manager_config(config: ManagerConfig) -> JSONObject:
    """Encode the `config` of a record's header.

    Only where needed: `policy` (unless `vllm-0.24`), `tensors`, and members of `_RARE`.
    Custom specs are code and can't be written: InvalidArgumentError.
    """
    if config.registry.custom:
        raise InvalidArgumentError("registry", config.registry, "empty: a record can't hold code")
    return _POOL.write(config.kv_cache) | _with_policy(_MANAGER, config)


def decode_manager_config(value: object, where: Where) -> ManagerConfig:
    """Decode a manager's configuration, under the profile `vllm-0.24` unless it has a `policy`.

    A weak hash function without `trusted_tenants` is older than that member, and trusted.
    """
    required = {**_POOL.required, **_MANAGER.required}
    found = checked_members(value, where, required, {**_POOL.optional, **_MANAGER.optional})
    found.setdefault("trusted_tenants", found["hash_function"] in WEAK_HASHES)
    found.setdefault("policy", Policy.vllm_0_24())
    return _MANAGER.made(found, where, kv_cache=_POOL.made(found, where))


_PLANNING = Shape(
    PlanningConfig,
    {
        "max_model_len_tokens": "max_model_len",
        "original_max_model_len_tokens": "original_max_model_len",
        "dcp_world_size": "decode_context_parallel_size",
        "pcp_world_size": "prefill_context_parallel_size",
        "max_encoder_tokens": "max_num_encoder_input_tokens",
        "disable_hybrid": "disable_hybrid_kv_cache_manager",
        "num_blocks_override": "num_gpu_blocks_override",
        "enable_caching": "enable_prefix_caching",
        "has_connector": "kv_transfer",
        "packed_layout": "enable_cross_layers_blocks",
    },
    # An option of the connector's own; only "true", however it is written, means yes.
    forms={
        **_FORMS,
        "packed_layout": Form(optional(text), lambda is_packed: "true" if is_packed else None),
    },
    sometimes=("policy",),
)


def encode_planning_config(config: PlanningConfig) -> JSONObject:
    """Encode the `config` of a planning record; without the policy of `vllm-0.24`."""
    return _with_policy(_PLANNING, config)


def decode_planning_config(value: object, where: Where) -> PlanningConfig:
    """Decode a planning configuration, under the profile `vllm-0.24` unless it has a `policy`."""
    found = checked_members(value, where, _PLANNING.required, _PLANNING.optional)
    layout = found["enable_cross_layers_blocks"] or ""
    found["enable_cross_layers_blocks"] = layout.lower() == "true"
    return _PLANNING.made({"policy": Policy.vllm_0_24(), **found}, where)


def _with_policy(shape: Shape[Any], config: Any) -> JSONObject:
    """Write a configuration with its policy, unless that is `vllm-0.24`."""
    written = {**shape.write(config), "policy": encode_policy(config.policy)}
    if config.policy == Policy.vllm_0_24():
        del written["policy"]
    return written


def under_policy(value: object, policy: Policy | None) -> object:
    """Return `value` with `policy` in its `config`, unless that has one; None changes nothing.

    A value without `config` is also returned unchanged: its decoder reports the error.
    """
    config = value.get("config") if isinstance(value, dict) else None
    if policy is None or not isinstance(value, dict) or not isinstance(config, dict):
        return value
    return {**value, "config": {"policy": encode_policy(policy), **config}}


def _plain(value: Any) -> Any:
    """Convert tuples to lists, at any depth."""
    return [_plain(item) for item in value] if isinstance(value, tuple) else value
