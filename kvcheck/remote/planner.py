"""Planning functions that live in a child process, called as planning records call them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import wraps
from inspect import signature
from typing import Any

from kvcheck.remote.connection import Connection
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
    text,
)
from kvspec.codec import (
    decode_groups,
    decode_kv_cache,
    decode_layers,
    decode_spec,
    encode_groups,
    encode_kv_cache,
    encode_layers,
    encode_planning_config,
    encode_spec,
)
from kvspec.errors import FormatError
from kvspec.planning import BlockSizes, Capacity, Plan, Planner, SpecProperties
from kvspec.planning_functions import FUNCTIONS, PlanningFunction
from kvspec.specs import UniformTypeKVCacheSpecs


class RemotePlanner:
    """See `kvspec.planning.Planner` for the functions, which are added below."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    def _call(self, function: str, given: Mapping[str, Any]) -> Any:
        sent = {name: ENCODERS[name](value) for name, value in given.items()}
        output = self._connection.call("plan", args={"fn": function, "input": sent})
        try:
            return ANSWERS[function](output, Where("answer", field="result"))
        except FormatError as error:
            raise self._connection.nonsense(str(error)) from None


def _method(name: str, function: PlanningFunction) -> Callable[..., Any]:
    declared = getattr(Planner, function.method)
    arguments = signature(declared)

    @wraps(declared)
    def ask(self: RemotePlanner, *given: Any, **named: Any) -> Any:
        _, *values = arguments.bind(self, *given, **named).arguments.values()
        return self._call(name, dict(zip(function.inputs, values, strict=True)))

    return ask


for _name, _function in FUNCTIONS.items():
    setattr(RemotePlanner, _function.method, _method(_name, _function))


def _each(encode: Callable[[Any], Any]) -> Callable[[Any], Any]:
    return lambda values: [encode(value) for value in values]


ENCODERS: Mapping[str, Callable[[Any], Any]] = {
    "spec": encode_spec,
    "specs": _each(encode_spec),
    "layers": encode_layers,
    "workers": _each(encode_layers),
    "groups": encode_groups,
    "kv_cache_config": encode_kv_cache,
    "kv_cache_configs": _each(encode_kv_cache),
    "config": encode_planning_config,
    "available_memory": lambda value: list(value) if isinstance(value, Sequence) else value,
}


def _value(make: Callable[..., Any], **members: Check[Any]) -> Check[Any]:
    """Return a decoder of objects with these members, in the order of the arguments of `make`."""

    def inner(value: object, where: Where) -> Any:
        found = checked_members(value, where, members, {})
        return make(*(found[name] for name in members))

    return inner


def _uniform_type(value: object, where: Where) -> UniformTypeKVCacheSpecs:
    spec = decode_spec(value, where)
    if not isinstance(spec, UniformTypeKVCacheSpecs):
        raise where.member("type").error("not UniformTypeKVCacheSpecs")
    return spec


ANSWERS: Mapping[str, Check[Any]] = {
    "spec_properties": _value(
        SpecProperties,
        page_size_bytes=integer,
        real_page_size_bytes=optional(integer),
        storage_block_size=integer,
        max_memory_usage_bytes=integer,
        max_admission_blocks_per_request=optional(integer),
        kind=text,
        sliding_window=optional(integer),
        normalized_spec=decode_spec,
    ),
    "merge": decode_spec,
    "is_kv_cache_spec_uniform": boolean,
    "uniform_type_from_specs": optional(_uniform_type),
    "unify_hybrid_kv_cache_specs": decode_layers,
    "unify_kv_cache_spec_page_size": decode_layers,
    "get_kv_cache_groups": decode_groups,
    "max_memory_usage_bytes": integer,
    "estimate_max_model_len": integer,
    "check_enough_kv_cache_memory": null,
    "get_kv_cache_config_from_groups": decode_kv_cache,
    "get_kv_cache_configs": _value(
        lambda configs, length, warnings: Plan(tuple(configs), length, tuple(warnings)),
        kv_cache_configs=list_of(decode_kv_cache),
        max_model_len=integer,
        warnings=list_of(text),
    ),
    "generate_scheduler_kv_cache_config": decode_kv_cache,
    "get_max_concurrency_for_kv_cache_config": real,
    "get_kv_cache_capacity": _value(Capacity, num_tokens=integer, max_concurrency=real),
    "resolve_kv_cache_block_sizes": _value(
        BlockSizes, scheduler_block_size=integer, hash_block_size=integer
    ),
}
