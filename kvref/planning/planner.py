"""The planning functions behind `kvspec.planning.Planner`."""

from __future__ import annotations

from collections.abc import Sequence

from kvref.planning.blocks import block_sizes, capacity, max_concurrency
from kvref.planning.grouping import group_layers
from kvref.planning.layout import config_from_groups
from kvref.planning.memory import check_fits, layers_bytes, longest_that_fits, need_of_layers
from kvref.planning.merging import is_mergeable, merge
from kvref.planning.pages import spec_properties
from kvref.planning.plan import make_plan, scheduler_config
from kvref.planning.unify import uniform_type, unify_hybrid, unify_page_size
from kvspec.config import KVCacheConfig, KVCacheGroup
from kvspec.planning import BlockSizes, Capacity, Layers, Plan, PlanningConfig, SpecProperties
from kvspec.specs import LayerSpec, UniformTypeKVCacheSpecs


class ReferencePlanner:
    """See `kvspec.planning.Planner` for what each call promises. Keeps no state."""

    def spec_properties(self, spec: LayerSpec, config: PlanningConfig) -> SpecProperties:
        """Compute what `spec` implies under `config` (KV-PLAN-1)."""
        return spec_properties(spec, config)

    def merge(self, specs: Sequence[LayerSpec]) -> LayerSpec:
        """Return the one spec of a group with these layers (KV-PLAN-2)."""
        return merge(specs)

    def is_uniform(self, layers: Layers) -> bool:
        """Return whether all layers can be merged into one group (KV-PLAN-2)."""
        return is_mergeable(layers)

    def uniform_type(self, layers: Layers) -> UniformTypeKVCacheSpecs | None:
        """Return all layers as one group of one type, or None (KV-PLAN-3)."""
        return uniform_type(layers)

    def unify_hybrid(self, layers: Layers) -> Layers:
        """Turn windowed layers into full attention (KV-PLAN-7)."""
        return unify_hybrid(layers)

    def unify_page_size(self, layers: Layers) -> Layers:
        """Return layers with equal page sizes (KV-PLAN-4)."""
        return unify_page_size(layers)

    def groups(self, layers: Layers, config: PlanningConfig) -> tuple[KVCacheGroup, ...]:
        """Return the groups of a model (KV-PLAN-5)."""
        return group_layers(layers, config)

    def max_memory_usage_bytes(self, layers: Layers, config: PlanningConfig) -> int:
        """Return the bytes of one request of full length, each layer on its own (KV-PLAN-8)."""
        return layers_bytes(layers, config)

    def estimate_max_model_len(
        self, layers: Layers, config: PlanningConfig, available_memory_bytes: int
    ) -> int:
        """Return the longest length that fits; 0 if none (KV-PLAN-10)."""
        need = need_of_layers(layers, config)
        return longest_that_fits(need, config, available_memory_bytes)

    def check_enough_memory(
        self, layers: Layers, config: PlanningConfig, available_memory_bytes: int
    ) -> None:
        """Raise CacheMemoryError unless one request of full length fits (KV-PLAN-9)."""
        if layers:
            check_fits(need_of_layers(layers, config), config, available_memory_bytes)

    def config_from_groups(
        self,
        groups: tuple[KVCacheGroup, ...],
        config: PlanningConfig,
        available_memory_bytes: int,
    ) -> KVCacheConfig:
        """Return blocks and tensors for these groups (KV-PLAN-12, KV-PLAN-13)."""
        return config_from_groups(groups, config, available_memory_bytes)

    def plan(
        self,
        workers: tuple[Layers, ...],
        config: PlanningConfig,
        available_memory_bytes: tuple[int, ...],
    ) -> Plan:
        """Plan from each worker's layers and memory to its layout (KV-PLAN-11 … KV-PLAN-15)."""
        return make_plan(workers, config, available_memory_bytes)

    def scheduler_config(self, configs: tuple[KVCacheConfig, ...]) -> KVCacheConfig:
        """Return the one layout a scheduler uses (KV-PLAN-16)."""
        return scheduler_config(configs)

    def max_concurrency(self, kv_cache: KVCacheConfig, config: PlanningConfig) -> float:
        """Return how many requests of full length fit at once (KV-PLAN-17)."""
        return max_concurrency(kv_cache, config)

    def capacity(self, kv_cache: KVCacheConfig, config: PlanningConfig) -> Capacity:
        """Return the tokens and requests the layout can hold (KV-PLAN-17)."""
        return capacity(kv_cache, config)

    def block_sizes(self, kv_cache: KVCacheConfig, config: PlanningConfig) -> BlockSizes:
        """Return the scheduler and hash block sizes (KV-PLAN-18)."""
        return block_sizes(kv_cache, config)
