"""The planning functions in records: their inputs, and results in one comparable form."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from types import MappingProxyType
from typing import Any

from kvspec._json import (
    Check,
    Where,
    boolean,
    checked_members,
    integer,
    list_of,
    null,
    optional,
    real,
    structure,
    text,
)
from kvspec.codec import (
    decode_groups,
    decode_kv_cache,
    decode_layers,
    decode_planning_config,
    decode_spec,
    encode_groups,
    encode_kv_cache,
    encode_layers,
    encode_spec,
)
from kvspec.planning import Planner

Input = Mapping[str, Any]


@dataclass(frozen=True)
class PlanningFunction:
    """A planning function: the planner's `method`, with `inputs` as its arguments in order.

    `expected` converts a record's output and `answer` the planner's result into the same JSON form,
    with every default written out.
    """

    method: str
    inputs: Mapping[str, Check[Any]]
    answer: Callable[[Any], Any]
    expected: Check[Any]

    def call(self, planner: Planner, values: Input) -> Any:
        """Call the planner."""
        given = (values[name] for name in self.inputs)
        arguments = (tuple(each) if isinstance(each, list) else each for each in given)
        return getattr(planner, self.method)(*arguments)


def _normal(decode: Check[Any], encode: Callable[[Any], Any]) -> Check[Any]:
    """Return a check that writes out the members that a record may omit."""

    def inner(value: Any, where: Where) -> Any:
        decoded = decode(value, where)
        return None if decoded is None else encode(decoded)

    return inner


def _plain(answer: Any) -> Any:
    return answer


def _or_none(encode: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """Return an encoder that leaves None as it is."""
    return lambda answer: None if answer is None else encode(answer)


_PROPERTIES: Mapping[str, str] = {
    "page_size_bytes": "page_size_bytes",
    "real_page_size_bytes": "real_page_size_bytes",
    "storage_block_size": "storage_block_size",
    "max_memory_usage_bytes": "max_memory_usage_bytes",
    "max_admission_blocks_per_request": "max_admission_blocks_per_request",
    "kind": "kind",
    "sliding_window": "sliding_window_tokens",
}


def _properties(value: object, where: Where) -> Any:
    """Check a record's spec properties; members that don't apply to the type are null."""
    found = checked_members(
        value,
        where,
        {
            "page_size_bytes": integer,
            "storage_block_size": integer,
            "max_memory_usage_bytes": integer,
            "kind": text,
            "sliding_window": optional(integer),
            "normalized_spec": _normal(decode_spec, encode_spec),
        },
        {"real_page_size_bytes": integer, "max_admission_blocks_per_request": integer},
    )
    return {**dict.fromkeys(_PROPERTIES), **found}


def _answer_properties(answer: Any) -> Any:
    shown = {member: getattr(answer, field) for member, field in _PROPERTIES.items()}
    return {**shown, "normalized_spec": encode_spec(answer.normalized_spec)}


def _answer_plan(answer: Any) -> Any:
    return {
        "kv_cache_configs": [encode_kv_cache(config) for config in answer.configs],
        "max_model_len": answer.max_model_len_tokens,
    }


def _answer_block_sizes(answer: Any) -> Any:
    return {
        "scheduler_block_size": answer.scheduler_block_size_tokens,
        "hash_block_size": answer.hash_block_size_tokens,
    }


_LAYERS = _normal(decode_layers, encode_layers)
_CACHE = _normal(decode_kv_cache, encode_kv_cache)
_INPUTS: Mapping[str, Check[Any]] = {
    "spec": decode_spec,
    "specs": list_of(decode_spec),
    "layers": decode_layers,
    "workers": list_of(decode_layers),
    "groups": decode_groups,
    "kv_cache_config": decode_kv_cache,
    "kv_cache_configs": list_of(decode_kv_cache),
    "config": decode_planning_config,
    "available_memory": integer,
}


def _function(
    method: str,
    inputs: str,
    answer: Callable[[Any], Any],
    expected: Check[Any],
    **others: Check[Any],
) -> PlanningFunction:
    """Return a function. `inputs`: their names, in order. `others`: inputs of unusual types."""
    checks = {**_INPUTS, **others}
    return PlanningFunction(
        method, {name: checks[name] for name in inputs.split()}, answer, expected
    )


FUNCTIONS: Mapping[str, PlanningFunction] = MappingProxyType(
    {
        "spec_properties": _function(
            "spec_properties", "spec config", _answer_properties, _properties
        ),
        "merge": _function(
            "merge", "specs", _or_none(encode_spec), _normal(decode_spec, encode_spec)
        ),
        "is_kv_cache_spec_uniform": _function("is_uniform", "layers", _plain, boolean),
        "uniform_type_from_specs": _function(
            "uniform_type",
            "layers",
            _or_none(encode_spec),
            _normal(optional(decode_spec), encode_spec),
        ),
        "unify_hybrid_kv_cache_specs": _function(
            "unify_hybrid", "layers", _or_none(encode_layers), _LAYERS
        ),
        "unify_kv_cache_spec_page_size": _function(
            "unify_page_size", "layers", _or_none(encode_layers), _LAYERS
        ),
        "get_kv_cache_groups": _function(
            "groups",
            "layers config",
            _or_none(encode_groups),
            _normal(decode_groups, encode_groups),
        ),
        "max_memory_usage_bytes": _function(
            "max_memory_usage_bytes", "layers config", _plain, integer
        ),
        "estimate_max_model_len": _function(
            "estimate_max_model_len", "layers config available_memory", _plain, integer
        ),
        "check_enough_kv_cache_memory": _function(
            "check_enough_memory", "layers config available_memory", _plain, null
        ),
        "get_kv_cache_config_from_groups": _function(
            "config_from_groups",
            "groups config available_memory",
            _or_none(encode_kv_cache),
            _CACHE,
        ),
        "get_kv_cache_configs": _function(
            "plan",
            "workers config available_memory",
            _answer_plan,
            structure({"kv_cache_configs": list_of(_CACHE), "max_model_len": integer}),
            available_memory=list_of(integer),
        ),
        "generate_scheduler_kv_cache_config": _function(
            "scheduler_config", "kv_cache_configs", _or_none(encode_kv_cache), _CACHE
        ),
        "get_max_concurrency_for_kv_cache_config": _function(
            "max_concurrency", "kv_cache_config config", _plain, real
        ),
        "get_kv_cache_capacity": _function(
            "capacity",
            "kv_cache_config config",
            asdict,
            structure({"num_tokens": integer, "max_concurrency": real}),
        ),
        "resolve_kv_cache_block_sizes": _function(
            "block_sizes",
            "kv_cache_config config",
            _answer_block_sizes,
            structure({"scheduler_block_size": integer, "hash_block_size": integer}),
        ),
    }
)
"""Every planning function of the records, by its name there."""
