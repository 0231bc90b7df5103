"""One case of each planning function, and a planner that returns recorded results."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kvcheck.remote import planner
from kvspec._json import Where
from kvspec.codec import decode_kv_cache, decode_spec, encode_planning_config
from kvspec.errors import ConfigError, UnknownBlockError, UnsupportedError
from kvspec.planning import Plan, PlanningConfig, SpecProperties
from kvspec.policy import Policy
from kvspec.record import PlanningRecord
from kvspec.record_file import read_planning
from kvspec.specs import LayerSpec

HERE = Where("tape")
HEADER = {"type": "header", "format": "kv-cache-planning", "version": 1, "source": "test"}
CONFIG = encode_planning_config(PlanningConfig(1024, 512, policy=Policy.vllm_0_24()))
SPEC = {"type": "FullAttentionSpec", "block_size": 16, "num_kv_heads": 2, "head_size": 64}
SPEC |= {"dtype": "float16"}
LAYERS = [["a", SPEC], ["b", SPEC]]
GROUPS = [{"layer_names": ["a", "b"], "spec": SPEC, "is_eagle_group": False}]
CACHE = {
    "num_blocks": 7,
    "kv_cache_tensors": [{"size": 70, "shared_by": ["a"], "offset": 0, "block_stride": 0}],
    "kv_cache_groups": GROUPS,
}
MEMORY = {"config": CONFIG, "layers": LAYERS, "available_memory": 1000}
CACHED = {"config": CONFIG, "kv_cache_config": CACHE}
UNIFORM = {"type": "UniformTypeKVCacheSpecs", "block_size": 16, "kv_cache_specs": LAYERS}
PROPERTIES = {
    "page_size_bytes": 8192,
    "storage_block_size": 16,
    "max_memory_usage_bytes": 524288,
    "kind": "full_attention",
    "sliding_window": None,
    "normalized_spec": {**SPEC, "head_size_v": 64},
}

# One record of each function with its output, and an altered output.
ANSWERS: Mapping[str, tuple[dict[str, Any], Any, Any]] = {
    "spec_properties": (
        {"spec": SPEC, "config": CONFIG},
        PROPERTIES,
        {**PROPERTIES, "real_page_size_bytes": 8192},
    ),
    "merge": ({"specs": [SPEC, SPEC]}, SPEC, {**SPEC, "block_size": 32}),
    "is_kv_cache_spec_uniform": ({"layers": LAYERS}, True, False),
    "uniform_type_from_specs": ({"layers": LAYERS}, UNIFORM, None),
    "unify_hybrid_kv_cache_specs": ({"layers": LAYERS}, LAYERS, LAYERS[::-1]),
    "unify_kv_cache_spec_page_size": ({"layers": LAYERS}, LAYERS, LAYERS[:1]),
    "get_kv_cache_groups": ({"config": CONFIG, "layers": LAYERS}, GROUPS, []),
    "max_memory_usage_bytes": ({"config": CONFIG, "layers": LAYERS}, 100, 101),
    "estimate_max_model_len": (MEMORY, 512, 0),
    "check_enough_kv_cache_memory": (MEMORY, None, "raises"),
    "get_kv_cache_config_from_groups": (
        {"config": CONFIG, "groups": GROUPS, "available_memory": 9},
        CACHE,
        {**CACHE, "num_blocks": 0},
    ),
    "get_kv_cache_configs": (
        {"config": CONFIG, "workers": [LAYERS], "available_memory": [9]},
        {"kv_cache_configs": [CACHE], "max_model_len": 1024},
        {"kv_cache_configs": [CACHE], "max_model_len": 1023},
    ),
    "generate_scheduler_kv_cache_config": (
        {"kv_cache_configs": [CACHE]},
        CACHE,
        {**CACHE, "kv_cache_tensors": []},
    ),
    "get_max_concurrency_for_kv_cache_config": (CACHED, 1.5, 1.25),
    "get_kv_cache_capacity": (
        CACHED,
        {"num_tokens": 12, "max_concurrency": 1.5},
        {"num_tokens": 12, "max_concurrency": 1.0},
    ),
    "resolve_kv_cache_block_sizes": (
        CACHED,
        {"scheduler_block_size": 32, "hash_block_size": 16},
        {"scheduler_block_size": 16, "hash_block_size": 16},
    ),
}


@dataclass
class TapePlanner:
    """A planner that returns the recorded results in order, whatever the call."""

    records: list[PlanningRecord]

    def __getattr__(self, name: str) -> Callable[..., Any]:
        return self._answer

    def spec_properties(self, spec: LayerSpec, config: PlanningConfig) -> SpecProperties:
        """Return the recorded properties; keep a spec that was built for this call."""
        if config == PlanningConfig(1, 1):
            return SpecProperties(1, 1, 1, 1, None, spec.kind, None, spec)
        found: SpecProperties = self._answer(spec, config)
        return found

    def _answer(self, *arguments: Any) -> Any:
        record = self.records.pop(0)
        if record.raises is not None:
            raise {
                "ValueError": ConfigError("a", 1, "b"),
                "NotImplementedError": UnsupportedError("a", "b"),
                "AssertionError": UnknownBlockError(1, 1),
            }[record.raises]
        return DECODERS[record.function](record.output, HERE)


def _properties(value: Any, where: Where) -> SpecProperties:
    return SpecProperties(
        value["page_size_bytes"],
        value.get("real_page_size_bytes"),
        value["storage_block_size"],
        value["max_memory_usage_bytes"],
        value.get("max_admission_blocks_per_request"),
        value["kind"],
        value["sliding_window"],
        decode_spec(value["normalized_spec"], where),
    )


def _plan(value: Any, where: Where) -> Plan:
    caches = tuple(decode_kv_cache(cache, where) for cache in value["kv_cache_configs"])
    return Plan(caches, value["max_model_len"])


DECODERS: Mapping[str, Callable[[Any, Where], Any]] = {
    **planner.ANSWERS,
    "spec_properties": _properties,
    "get_kv_cache_configs": _plan,
}
"""As a server's answers are read; a record leaves out more of these two."""


def tape_of(path: Path) -> TapePlanner:
    lines = read_planning(path)
    return TapePlanner(
        [line for line in lines if isinstance(line, PlanningRecord) and not line.quirks]
    )
