"""Planning functions that live in a child process, called as planning records call them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType
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
from kvspec.config import KVCacheConfig, KVCacheGroup
from kvspec.errors import FormatError
from kvspec.planning import BlockSizes, Capacity, Layers, Plan, PlanningConfig, SpecProperties
from kvspec.specs import LayerSpec, UniformTypeKVCacheSpecs


class RemotePlanner:
    """See `kvspec.planning.Planner` for what each function answers."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    def _call(self, function: str, **given: Any) -> Any:
        """Call one function by its name in records and decode its output."""
        output = self._connection.call("plan", args={"fn": function, "input": given})
        try:
            return ANSWERS[function](output, Where("answer", field="result"))
        except FormatError as error:
            raise self._connection.nonsense(str(error)) from None

    def spec_properties(self, spec: LayerSpec, config: PlanningConfig) -> SpecProperties:
        """What the spec implies."""
        found: SpecProperties = self._call(
            "spec_properties",
            spec=encode_spec(spec),
            config=encode_planning_config(config),
        )
        return found

    def merge(self, specs: Sequence[LayerSpec]) -> LayerSpec:
        """The one spec of a group with these layers."""
        found: LayerSpec = self._call("merge", specs=[encode_spec(spec) for spec in specs])
        return found

    def is_uniform(self, layers: Layers) -> bool:
        """Whether all layers can be merged into one group."""
        return bool(self._call("is_kv_cache_spec_uniform", layers=encode_layers(layers)))

    def uniform_type(self, layers: Layers) -> UniformTypeKVCacheSpecs | None:
        """All layers as one group of one type with different sizes, or None."""
        found: UniformTypeKVCacheSpecs | None = self._call(
            "uniform_type_from_specs", layers=encode_layers(layers)
        )
        return found

    def unify_hybrid(self, layers: Layers) -> Layers:
        """Windowed layers turned into full attention."""
        found: Layers = self._call("unify_hybrid_kv_cache_specs", layers=encode_layers(layers))
        return found

    def unify_page_size(self, layers: Layers) -> Layers:
        """Layers with equal page sizes."""
        found: Layers = self._call("unify_kv_cache_spec_page_size", layers=encode_layers(layers))
        return found

    def groups(self, layers: Layers, config: PlanningConfig) -> tuple[KVCacheGroup, ...]:
        """The groups of a model."""
        found: tuple[KVCacheGroup, ...] = self._call(
            "get_kv_cache_groups",
            config=encode_planning_config(config),
            layers=encode_layers(layers),
        )
        return found

    def max_memory_usage_bytes(self, layers: Layers, config: PlanningConfig) -> int:
        """Bytes one request of full length needs at most."""
        return int(
            self._call(
                "max_memory_usage_bytes",
                config=encode_planning_config(config),
                layers=encode_layers(layers),
            )
        )

    def estimate_max_model_len(
        self, layers: Layers, config: PlanningConfig, available_memory_bytes: int
    ) -> int:
        """The longest length that fits."""
        return int(
            self._call(
                "estimate_max_model_len",
                config=encode_planning_config(config),
                layers=encode_layers(layers),
                available_memory=available_memory_bytes,
            )
        )

    def check_enough_memory(
        self, layers: Layers, config: PlanningConfig, available_memory_bytes: int
    ) -> None:
        """Raise ConfigError unless one request of full length fits."""
        self._call(
            "check_enough_kv_cache_memory",
            config=encode_planning_config(config),
            layers=encode_layers(layers),
            available_memory=available_memory_bytes,
        )

    def config_from_groups(
        self,
        groups: tuple[KVCacheGroup, ...],
        config: PlanningConfig,
        available_memory_bytes: int,
    ) -> KVCacheConfig:
        """Blocks and tensors for these groups."""
        found: KVCacheConfig = self._call(
            "get_kv_cache_config_from_groups",
            config=encode_planning_config(config),
            groups=encode_groups(groups),
            available_memory=available_memory_bytes,
        )
        return found

    def plan(
        self,
        workers: tuple[Layers, ...],
        config: PlanningConfig,
        available_memory_bytes: tuple[int, ...],
    ) -> Plan:
        """From each worker's layers and memory to its layout."""
        found: Plan = self._call(
            "get_kv_cache_configs",
            config=encode_planning_config(config),
            workers=[encode_layers(layers) for layers in workers],
            available_memory=list(available_memory_bytes),
        )
        return found

    def scheduler_config(self, configs: tuple[KVCacheConfig, ...]) -> KVCacheConfig:
        """The one layout a scheduler works with."""
        found: KVCacheConfig = self._call(
            "generate_scheduler_kv_cache_config",
            kv_cache_configs=[encode_kv_cache(config) for config in configs],
        )
        return found

    def max_concurrency(self, kv_cache: KVCacheConfig, config: PlanningConfig) -> float:
        """How many requests of full length fit at once."""
        return float(
            self._call("get_max_concurrency_for_kv_cache_config", **_with_cache(kv_cache, config))
        )

    def capacity(self, kv_cache: KVCacheConfig, config: PlanningConfig) -> Capacity:
        """Tokens and requests the layout can hold."""
        found: Capacity = self._call("get_kv_cache_capacity", **_with_cache(kv_cache, config))
        return found

    def block_sizes(self, kv_cache: KVCacheConfig, config: PlanningConfig) -> BlockSizes:
        """The scheduler and hash block sizes."""
        found: BlockSizes = self._call(
            "resolve_kv_cache_block_sizes", **_with_cache(kv_cache, config)
        )
        return found


def _with_cache(kv_cache: KVCacheConfig, config: PlanningConfig) -> dict[str, Any]:
    return {
        "config": encode_planning_config(config),
        "kv_cache_config": encode_kv_cache(kv_cache),
    }


def _properties(value: object, where: Where) -> SpecProperties:
    found = checked_members(
        value,
        where,
        {
            "page_size_bytes": integer,
            "real_page_size_bytes": optional(integer),
            "storage_block_size": integer,
            "max_memory_usage_bytes": integer,
            "max_admission_blocks_per_request": optional(integer),
            "kind": text,
            "sliding_window": optional(integer),
            "normalized_spec": decode_spec,
        },
        {},
    )
    return SpecProperties(sliding_window_tokens=found.pop("sliding_window"), **found)


def _uniform_type(value: object, where: Where) -> UniformTypeKVCacheSpecs:
    spec = decode_spec(value, where)
    if not isinstance(spec, UniformTypeKVCacheSpecs):
        raise where.member("type").error("not UniformTypeKVCacheSpecs")
    return spec


def _plan(value: object, where: Where) -> Plan:
    found = checked_members(
        value,
        where,
        {
            "kv_cache_configs": list_of(decode_kv_cache),
            "max_model_len": integer,
            "warnings": list_of(text),
        },
        {},
    )
    return Plan(tuple(found["kv_cache_configs"]), found["max_model_len"], tuple(found["warnings"]))


def _capacity(value: object, where: Where) -> Capacity:
    found = checked_members(value, where, {"num_tokens": integer, "max_concurrency": real}, {})
    return Capacity(**found)


def _block_sizes(value: object, where: Where) -> BlockSizes:
    found = checked_members(
        value, where, {"scheduler_block_size": integer, "hash_block_size": integer}, {}
    )
    return BlockSizes(found["scheduler_block_size"], found["hash_block_size"])


ANSWERS: Mapping[str, Check[Any]] = MappingProxyType(
    {
        "spec_properties": _properties,
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
        "get_kv_cache_configs": _plan,
        "generate_scheduler_kv_cache_config": decode_kv_cache,
        "get_max_concurrency_for_kv_cache_config": real,
        "get_kv_cache_capacity": _capacity,
        "resolve_kv_cache_block_sizes": _block_sizes,
    }
)
"""What each function answers, by its name in records."""
