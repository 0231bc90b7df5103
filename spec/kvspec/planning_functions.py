"""The planning functions in records: their inputs, and results in one comparable form."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, get_type_hints

from kvspec.codec import (
    decode_groups,
    decode_kv_cache,
    decode_layers,
    decode_planning_config,
    decode_spec,
    encode_groups,
    encode_kv_cache,
    encode_layers,
    encode_planning_config,
    encode_spec,
)
from kvspec.config import KVCacheConfig, KVCacheGroup
from kvspec.files.objects import Check, Where, boolean, integer, null, optional, real
from kvspec.files.shapes import FORMS, Form, Shape, as_it_is, form_of
from kvspec.planning import (
    BlockSizes,
    Capacity,
    Layers,
    Plan,
    Planner,
    PlanningConfig,
    SpecProperties,
)
from kvspec.specs import LayerSpec, UniformTypeKVCacheSpecs

Input = Mapping[str, Any]


@dataclass(frozen=True)
class PlanningFunction:
    """A planning function: the planner's `method`, with `inputs` as its arguments in order.

    `answer` is the form of its result in messages. `recorded` is that of records, which lack some
    of it; `expected` reads a record's output and writes out every default.
    """

    method: str
    inputs: Mapping[str, Form]
    answer: Form
    recorded: Form

    @property
    def checks(self) -> Mapping[str, Check[Any]]:
        """The check of each input."""
        return {name: form.read for name, form in self.inputs.items()}

    def call(self, planner: Planner, values: Input) -> Any:
        """Call the planner."""
        return getattr(planner, self.method)(*(values[name] for name in self.inputs))

    def expected(self, value: Any, where: Where) -> Any:
        """Check a record's output, and write out the members that a record may omit."""
        return self.recorded.write(self.recorded.read(value, where))


def _uniform_type(value: object, where: Where) -> UniformTypeKVCacheSpecs:
    spec = decode_spec(value, where)
    if not isinstance(spec, UniformTypeKVCacheSpecs):
        raise where.member("type").error("not UniformTypeKVCacheSpecs")
    return spec


def _or_none(encode: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """Return an encoder that leaves None as it is."""
    return lambda answer: None if answer is None else encode(answer)


_SPEC = Form(decode_spec, _or_none(encode_spec))
_FORMS: Mapping[Any, Form] = {
    **FORMS,
    **{int: Form(integer, as_it_is), float: Form(real, as_it_is), bool: Form(boolean, as_it_is)},
    type(None): Form(null, as_it_is),
    LayerSpec: _SPEC,
    UniformTypeKVCacheSpecs | None: Form(optional(_uniform_type), _or_none(encode_spec)),
    Sequence[LayerSpec]: form_of(tuple[LayerSpec, ...], {LayerSpec: _SPEC}),
    Layers: Form(decode_layers, _or_none(encode_layers)),
    tuple[KVCacheGroup, ...]: Form(decode_groups, _or_none(encode_groups)),
    KVCacheConfig: Form(decode_kv_cache, _or_none(encode_kv_cache)),
    PlanningConfig: Form(decode_planning_config, encode_planning_config),
}
_PLAN: Mapping[str, str] = {"configs": "kv_cache_configs", "max_model_len_tokens": "max_model_len"}
_SIZES: Mapping[str, str] = {
    "scheduler_block_size_tokens": "scheduler_block_size",
    "hash_block_size_tokens": "hash_block_size",
}
_WINDOW: Mapping[str, str] = {"sliding_window_tokens": "sliding_window"}
_OF_SOME = ("real_page_size_bytes", "max_admission_blocks_per_request")
_ANSWERS: Mapping[Any, Form] = {
    **_FORMS,
    Plan: Shape(Plan, _PLAN, forms=_FORMS, sometimes=()).form,
    Capacity: Shape(Capacity, forms=_FORMS).form,
    BlockSizes: Shape(BlockSizes, _SIZES, forms=_FORMS).form,
    SpecProperties: Shape(SpecProperties, _WINDOW, forms=_FORMS).form,
}


def _properties(value: object, where: Where) -> SpecProperties:
    """Read a record's spec properties; members that don't apply to the type are missing."""
    whole = {**dict.fromkeys(_OF_SOME), **value} if isinstance(value, dict) else value
    found: SpecProperties = _ANSWERS[SpecProperties].read(whole, where)
    return found


_RECORDED: Mapping[Any, Form] = {
    **_ANSWERS,
    Plan: Shape(Plan, _PLAN, forms=_FORMS, elsewhere=("warnings",)).form,
    SpecProperties: Form(_properties, _ANSWERS[SpecProperties].write),
}


def _function(method: str, inputs: str) -> PlanningFunction:
    """Return a function. `inputs`: names of the method's arguments in records, in order."""
    hints = get_type_hints(getattr(Planner, method))
    result = hints.pop("return")
    given = {
        name: form_of(hint, _FORMS)
        for name, hint in zip(inputs.split(), hints.values(), strict=True)
    }
    return PlanningFunction(method, given, form_of(result, _ANSWERS), form_of(result, _RECORDED))


_MEMORY, _CACHE = "config available_memory", "kv_cache_config config"
_METHODS: Mapping[str, tuple[str, str]] = {
    "spec_properties": ("spec_properties", "spec config"),
    "merge": ("merge", "specs"),
    "is_kv_cache_spec_uniform": ("is_uniform", "layers"),
    "uniform_type_from_specs": ("uniform_type", "layers"),
    "unify_hybrid_kv_cache_specs": ("unify_hybrid", "layers"),
    "unify_kv_cache_spec_page_size": ("unify_page_size", "layers"),
    "get_kv_cache_groups": ("groups", "layers config"),
    "max_memory_usage_bytes": ("max_memory_usage_bytes", "layers config"),
    "estimate_max_model_len": ("estimate_max_model_len", f"layers {_MEMORY}"),
    "check_enough_kv_cache_memory": ("check_enough_memory", f"layers {_MEMORY}"),
    "get_kv_cache_config_from_groups": ("config_from_groups", f"groups {_MEMORY}"),
    "get_kv_cache_configs": ("plan", f"workers {_MEMORY}"),
    "generate_scheduler_kv_cache_config": ("scheduler_config", "kv_cache_configs"),
    "get_max_concurrency_for_kv_cache_config": ("max_concurrency", _CACHE),
    "get_kv_cache_capacity": ("capacity", _CACHE),
    "resolve_kv_cache_block_sizes": ("block_sizes", _CACHE),
}
"""The method of each function, and its arguments as records name them."""

FUNCTIONS: Mapping[str, PlanningFunction] = {
    name: _function(*method) for name, method in _METHODS.items()
}
"""Every planning function of the records, by its name there."""
