"""The planning functions of the records: their inputs, and answers in one comparable form."""

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
    """One planning function: what its input holds, how it is called, how answers are compared.

    `expected` turns a record's output and `answer` the planner's answer (with the input it was
    given) into the same JSON form, with every default written out.
    """

    inputs: Mapping[str, Check[Any]]
    call: Callable[[Planner, Input], Any]
    answer: Callable[[Any, Input], Any]
    expected: Check[Any]


def _normal(decode: Check[Any], encode: Callable[[Any], Any]) -> Check[Any]:
    """A check that writes out what a record may leave out."""

    def inner(value: Any, where: Where) -> Any:
        decoded = decode(value, where)
        return None if decoded is None else encode(decoded)

    return inner


def _plain(answer: Any, _: Input) -> Any:
    return answer


def _or_none(encode: Callable[[Any], Any]) -> Callable[[Any, Input], Any]:
    """The planner's answer in JSON; None stays None."""
    return lambda answer, _: None if answer is None else encode(answer)


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
    """A record's spec properties; members that don't apply to the type are null."""
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


def _answer_properties(answer: Any, _: Input) -> Any:
    shown = {member: getattr(answer, field) for member, field in _PROPERTIES.items()}
    return {**shown, "normalized_spec": encode_spec(answer.normalized_spec)}


def _answer_plan(answer: Any, _: Input) -> Any:
    return {
        "kv_cache_configs": [encode_kv_cache(config) for config in answer.configs],
        "max_model_len": answer.max_model_len_tokens,
    }


def _answer_block_sizes(answer: Any, _: Input) -> Any:
    return {
        "scheduler_block_size": answer.scheduler_block_size_tokens,
        "hash_block_size": answer.hash_block_size_tokens,
    }


_LAYERS = _normal(decode_layers, encode_layers)
_CACHE = _normal(decode_kv_cache, encode_kv_cache)
_WITH_MEMORY: Mapping[str, Check[Any]] = {
    "config": decode_planning_config,
    "layers": decode_layers,
    "available_memory": integer,
}
_WITH_CACHE: Mapping[str, Check[Any]] = {
    "config": decode_planning_config,
    "kv_cache_config": decode_kv_cache,
}

FUNCTIONS: Mapping[str, PlanningFunction] = MappingProxyType(
    {
        "spec_properties": PlanningFunction(
            {"spec": decode_spec, "config": decode_planning_config},
            lambda planner, v: planner.spec_properties(v["spec"], v["config"]),
            _answer_properties,
            _properties,
        ),
        "merge": PlanningFunction(
            {"specs": list_of(decode_spec)},
            lambda planner, v: planner.merge(tuple(v["specs"])),
            _or_none(encode_spec),
            _normal(decode_spec, encode_spec),
        ),
        "is_kv_cache_spec_uniform": PlanningFunction(
            {"layers": decode_layers},
            lambda planner, v: planner.is_uniform(v["layers"]),
            _plain,
            boolean,
        ),
        "uniform_type_from_specs": PlanningFunction(
            {"layers": decode_layers},
            lambda planner, v: planner.uniform_type(v["layers"]),
            _or_none(encode_spec),
            _normal(optional(decode_spec), encode_spec),
        ),
        "unify_hybrid_kv_cache_specs": PlanningFunction(
            {"layers": decode_layers},
            lambda planner, v: planner.unify_hybrid(v["layers"]),
            _or_none(encode_layers),
            _LAYERS,
        ),
        "unify_kv_cache_spec_page_size": PlanningFunction(
            {"layers": decode_layers},
            lambda planner, v: planner.unify_page_size(v["layers"]),
            _or_none(encode_layers),
            _LAYERS,
        ),
        "get_kv_cache_groups": PlanningFunction(
            {"config": decode_planning_config, "layers": decode_layers},
            lambda planner, v: planner.groups(v["layers"], v["config"]),
            _or_none(encode_groups),
            _normal(decode_groups, encode_groups),
        ),
        "max_memory_usage_bytes": PlanningFunction(
            {"config": decode_planning_config, "layers": decode_layers},
            lambda planner, v: planner.max_memory_usage_bytes(v["layers"], v["config"]),
            _plain,
            integer,
        ),
        "estimate_max_model_len": PlanningFunction(
            _WITH_MEMORY,
            lambda planner, v: planner.estimate_max_model_len(
                v["layers"], v["config"], v["available_memory"]
            ),
            _plain,
            integer,
        ),
        "check_enough_kv_cache_memory": PlanningFunction(
            _WITH_MEMORY,
            lambda planner, v: planner.check_enough_memory(
                v["layers"], v["config"], v["available_memory"]
            ),
            _plain,
            null,
        ),
        "get_kv_cache_config_from_groups": PlanningFunction(
            {
                "config": decode_planning_config,
                "groups": decode_groups,
                "available_memory": integer,
            },
            lambda planner, v: planner.config_from_groups(
                v["groups"], v["config"], v["available_memory"]
            ),
            _or_none(encode_kv_cache),
            _CACHE,
        ),
        "get_kv_cache_configs": PlanningFunction(
            {
                "config": decode_planning_config,
                "workers": list_of(decode_layers),
                "available_memory": list_of(integer),
            },
            lambda planner, v: planner.plan(
                tuple(v["workers"]), v["config"], tuple(v["available_memory"])
            ),
            _answer_plan,
            structure({"kv_cache_configs": list_of(_CACHE), "max_model_len": integer}),
        ),
        "generate_scheduler_kv_cache_config": PlanningFunction(
            {"kv_cache_configs": list_of(decode_kv_cache)},
            lambda planner, v: planner.scheduler_config(tuple(v["kv_cache_configs"])),
            _or_none(encode_kv_cache),
            _CACHE,
        ),
        "get_max_concurrency_for_kv_cache_config": PlanningFunction(
            _WITH_CACHE,
            lambda planner, v: planner.max_concurrency(v["kv_cache_config"], v["config"]),
            _plain,
            real,
        ),
        "get_kv_cache_capacity": PlanningFunction(
            _WITH_CACHE,
            lambda planner, v: planner.capacity(v["kv_cache_config"], v["config"]),
            lambda answer, _: asdict(answer),
            structure({"num_tokens": integer, "max_concurrency": real}),
        ),
        "resolve_kv_cache_block_sizes": PlanningFunction(
            _WITH_CACHE,
            lambda planner, v: planner.block_sizes(v["kv_cache_config"], v["config"]),
            _answer_block_sizes,
            structure({"scheduler_block_size": integer, "hash_block_size": integer}),
        ),
    }
)
"""Every planning function of the records, by its name there."""
