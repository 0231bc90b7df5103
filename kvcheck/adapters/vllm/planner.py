"""vLLM's planning functions behind `kvspec.planning.Planner`, with a made-up configuration.

vLLM plans with plain Python and no device; the functions read a few members of vLLM's
configuration, which `settings` makes up. They work on values made for each call, so that their
changes to them have no effect elsewhere.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from logging.handlers import BufferingHandler
from types import SimpleNamespace
from typing import Any

from kvcheck.adapters.vllm.errors import NAME, planning_errors
from kvcheck.adapters.vllm.library import Library
from kvcheck.adapters.vllm.specs import answered, cache_config, group_specs, layer_spec
from kvspec.config import KVCacheConfig, KVCacheGroup
from kvspec.errors import UnsupportedError
from kvspec.foreign import cache_of, groups_of, spec_of
from kvspec.planning import BlockSizes, Capacity, Layers, Plan, PlanningConfig, SpecProperties
from kvspec.specs import LayerSpec, UniformTypeKVCacheSpecs


def settings(config: PlanningConfig) -> Any:
    """Return the members of a configuration that vLLM's planning reads, under vLLM's names."""
    transfer = speculative = None
    if config.has_connector or config.packed_layout:
        packed = {"enable_cross_layers_blocks": str(config.packed_layout)}
        transfer = SimpleNamespace(kv_connector_extra_config=packed)
    if config.use_eagle is not None:
        speculative = SimpleNamespace(use_eagle=lambda: config.use_eagle)
    return SimpleNamespace(
        model_config=SimpleNamespace(
            max_model_len=config.max_model_len_tokens,
            original_max_model_len=config.original_max_model_len_tokens,
        ),
        scheduler_config=SimpleNamespace(
            max_num_batched_tokens=config.max_num_batched_tokens,
            max_num_encoder_input_tokens=config.max_encoder_tokens,
            disable_hybrid_kv_cache_manager=config.disable_hybrid,
        ),
        parallel_config=SimpleNamespace(
            decode_context_parallel_size=config.dcp_world_size,
            prefill_context_parallel_size=config.pcp_world_size,
        ),
        cache_config=SimpleNamespace(
            block_size=config.block_size,
            hash_block_size=config.hash_block_size,
            num_gpu_blocks_override=config.num_blocks_override,
            mamba_cache_mode=config.mamba_cache_mode,
            enable_prefix_caching=config.enable_caching,
        ),
        kv_transfer_config=transfer,
        speculative_config=speculative,
    )


class VLLMPlanner:
    """See `kvspec.planning.Planner` for what each call promises."""

    def __init__(self, library: Library) -> None:
        self.library = library
        self.utils = library.utils

    def spec_properties(self, spec: LayerSpec, config: PlanningConfig) -> SpecProperties:
        interface, asked = self.library.interface, settings(config)
        with planning_errors("spec_properties"):
            made = layer_spec(self.library, spec)
            most = getattr(made, "max_admission_blocks_per_request", None)
            return SpecProperties(
                page_size_bytes=made.page_size_bytes,
                real_page_size_bytes=getattr(made, "real_page_size_bytes", None),
                storage_block_size=made.storage_block_size,
                max_memory_usage_bytes=made.max_memory_usage_bytes(asked),
                max_admission_blocks_per_request=None
                if most is None
                else most(config.max_num_batched_tokens, config.max_model_len_tokens),
                kind=interface.get_kv_cache_spec_kind(made).value,
                sliding_window_tokens=interface.get_kv_cache_spec_sliding_window(made),
                normalized_spec=answered(spec_of, made),
            )

    def merge(self, specs: Sequence[LayerSpec]) -> LayerSpec:
        if not specs:
            raise UnsupportedError("merging no specs", NAME)
        with planning_errors("merge"):
            made = [layer_spec(self.library, spec) for spec in specs]
            return answered(spec_of, made[0].merge(made))

    @planning_errors("is_uniform")
    def is_uniform(self, layers: Layers) -> bool:
        return bool(self.utils.is_kv_cache_spec_uniform(self._specs(layers)))

    @planning_errors("uniform_type")
    def uniform_type(self, layers: Layers) -> UniformTypeKVCacheSpecs | None:
        uniform = self.library.interface.UniformTypeKVCacheSpecs
        found = uniform.from_specs(self._specs(layers))
        answer = None if found is None else answered(spec_of, found)
        return answer if isinstance(answer, UniformTypeKVCacheSpecs) else None

    @planning_errors("unify_hybrid")
    def unify_hybrid(self, layers: Layers) -> Layers:
        specs = self._specs(layers)
        self.utils.unify_hybrid_kv_cache_specs(specs)  # changes them
        return _layers(specs)

    @planning_errors("unify_page_size")
    def unify_page_size(self, layers: Layers) -> Layers:
        return _layers(self.utils.unify_kv_cache_spec_page_size(self._specs(layers)))

    @planning_errors("groups")
    def groups(self, layers: Layers, config: PlanningConfig) -> tuple[KVCacheGroup, ...]:
        found = self.utils.get_kv_cache_groups(settings(config), self._specs(layers))
        return answered(groups_of, found)

    @planning_errors("max_memory_usage_bytes")
    def max_memory_usage_bytes(self, layers: Layers, config: PlanningConfig) -> int:
        specs = self._specs(layers).values()
        return int(self.utils.max_memory_usage_bytes(settings(config), specs))

    @planning_errors("estimate_max_model_len")
    def estimate_max_model_len(
        self, layers: Layers, config: PlanningConfig, available_memory_bytes: int
    ) -> int:
        asked, specs = settings(config), self._specs(layers)
        return int(self.utils.estimate_max_model_len(asked, specs, available_memory_bytes))

    @planning_errors("check_enough_memory")
    def check_enough_memory(
        self, layers: Layers, config: PlanningConfig, available_memory_bytes: int
    ) -> None:
        asked, specs = settings(config), self._specs(layers)
        self.utils.check_enough_kv_cache_memory(asked, specs, available_memory_bytes)

    @planning_errors("config_from_groups")
    def config_from_groups(
        self, groups: tuple[KVCacheGroup, ...], config: PlanningConfig, available_memory_bytes: int
    ) -> KVCacheConfig:
        made = group_specs(self.library, groups)
        ask = self.utils.get_kv_cache_config_from_groups
        return answered(cache_of, ask(settings(config), made, available_memory_bytes))

    def plan(
        self,
        workers: tuple[Layers, ...],
        config: PlanningConfig,
        available_memory_bytes: tuple[int, ...],
    ) -> Plan:
        """`get_kv_cache_configs`; its warnings are those that it logs."""
        asked, specs = settings(config), [self._specs(layers) for layers in workers]
        with planning_errors("plan"), self._warnings() as said:
            found = self.utils.get_kv_cache_configs(asked, specs, list(available_memory_bytes))
            caches = tuple(answered(cache_of, cache) for cache in found)
        warnings = tuple(record.getMessage() for record in said)
        return Plan(caches, asked.model_config.max_model_len, warnings)

    @planning_errors("scheduler_config")
    def scheduler_config(self, configs: tuple[KVCacheConfig, ...]) -> KVCacheConfig:
        made = [cache_config(self.library, cache) for cache in configs]
        return answered(cache_of, self.utils.generate_scheduler_kv_cache_config(made))

    @planning_errors("max_concurrency")
    def max_concurrency(self, kv_cache: KVCacheConfig, config: PlanningConfig) -> float:
        made = cache_config(self.library, kv_cache)
        ask = self.utils.get_max_concurrency_for_kv_cache_config
        return float(ask(settings(config), made))

    @planning_errors("capacity")
    def capacity(self, kv_cache: KVCacheConfig, config: PlanningConfig) -> Capacity:
        made = cache_config(self.library, kv_cache)
        return Capacity(*self.utils.get_kv_cache_capacity(settings(config), made))

    @planning_errors("block_sizes")
    def block_sizes(self, kv_cache: KVCacheConfig, config: PlanningConfig) -> BlockSizes:
        asked = settings(replace(config, packed_layout=False))  # it is no connector here
        made = cache_config(self.library, kv_cache)
        return BlockSizes(*self.utils.resolve_kv_cache_block_sizes(made, asked))

    def _specs(self, layers: Layers) -> dict[str, Any]:
        return {name: layer_spec(self.library, spec) for name, spec in layers}

    @contextmanager
    def _warnings(self) -> Iterator[list[logging.LogRecord]]:
        """Collect the warnings that vLLM's planning logs during the block."""
        log, handler = logging.getLogger(self.utils.__name__), BufferingHandler(1000)
        before = log.level, log.propagate
        log.addHandler(handler)
        log.setLevel(logging.WARNING)
        log.propagate = False
        try:
            yield handler.buffer
        finally:
            log.removeHandler(handler)
            log.level, log.propagate = before


def _layers(specs: dict[str, Any]) -> Layers:
    found: Iterable[tuple[str, Any]] = specs.items()
    return tuple((name, answered(spec_of, spec)) for name, spec in found)
