"""Plan from each worker's layers and memory to its layout (KV-PLAN-11 … KV-PLAN-16)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from kvref.planning.grouping import group_layers, padding_warnings, project
from kvref.planning.layout import bytes_per_block, config_from_groups, shrunk_to
from kvref.planning.memory import Need, check_fits, groups_bytes, longest_that_fits
from kvspec.config import KVCacheConfig, KVCacheGroup
from kvspec.errors import ConfigError
from kvspec.planning import AUTO_FIT, Layers, Plan, PlanningConfig
from kvspec.specs import LayerSpec

Groups = tuple[KVCacheGroup, ...]


def make_plan(
    workers: Sequence[Layers], config: PlanningConfig, available_memory_bytes: Sequence[int]
) -> Plan:
    """Make one layout per worker, all with the same groups and the same number of blocks."""
    if len(workers) != len(available_memory_bytes):
        raise ConfigError(
            "available_memory_bytes", available_memory_bytes, f"one per worker ({len(workers)})"
        )
    groups = group_layers(all_layers(workers), config)
    _check_context_parallel(groups, config)
    of_worker = [project(groups, layers) for layers in workers]
    memory = [
        usable_bytes(mine, config, given)
        for mine, given in zip(of_worker, available_memory_bytes, strict=True)
    ]
    config = _fitted(groups, of_worker, config, memory)
    for mine, available in zip(of_worker, memory, strict=True):
        if bytes_per_block(mine):  # a worker without layers needs nothing
            check_fits(_need(mine, groups), config, available)
    caches = [
        config_from_groups(mine, config, available)
        for mine, available in zip(of_worker, memory, strict=True)
    ]
    return Plan(_in_step(caches), config.max_model_len_tokens, padding_warnings(groups))


def _check_context_parallel(groups: Groups, config: PlanningConfig) -> None:
    """Check that context parallelism has one group, of full attention (KV-CFG-6, KV-PLAN-21)."""
    field = "dcp_world_size" if config.dcp_world_size > 1 else "pcp_world_size"
    if getattr(config, field) > 1:
        specs = [_first_spec(group.spec) for group in groups]
        if len(specs) != 1 or not specs[0].is_full_attention:
            raise ConfigError(
                field,
                getattr(config, field),
                "1, unless all layers are full attention and share one group",
            )


def all_layers(workers: Sequence[Layers]) -> Layers:
    """Return the layers of all workers, each once (KV-PLAN-11)."""
    found: dict[str, LayerSpec] = {}
    for layers in workers:
        for name, spec in layers:
            if found.setdefault(name, spec) != spec:
                raise ConfigError(f"workers, layer {name}", spec, "the same spec on every worker")
    return tuple(found.items())


def usable_bytes(groups: Groups, config: PlanningConfig, given: int) -> int:
    """Return the memory, or the bytes of the number of blocks asked for (KV-PLAN-12)."""
    if config.num_blocks_override is None:
        return given
    return config.num_blocks_override * bytes_per_block(groups)


def _need(groups: Groups, everywhere: Groups) -> Need:
    return lambda asked: groups_bytes(groups, everywhere, asked)


def _fitted(
    groups: Groups, of_worker: Sequence[Groups], config: PlanningConfig, memory: Sequence[int]
) -> PlanningConfig:
    """Set the longest length that fits on every worker, if that is asked for (KV-PLAN-10)."""
    if config.original_max_model_len_tokens != AUTO_FIT:
        return config
    longest = min(
        (
            longest_that_fits(_need(mine, groups), config, available)
            for mine, available in zip(of_worker, memory, strict=True)
            if bytes_per_block(mine)
        ),
        default=config.max_model_len_tokens,
    )
    if longest == 0:
        raise ConfigError(
            "available_memory_bytes", tuple(memory), "enough for a request of one token"
        )
    return replace(config, max_model_len_tokens=longest)


def _in_step(caches: Sequence[KVCacheConfig]) -> tuple[KVCacheConfig, ...]:
    """Cut all layouts to the smallest number of blocks (KV-PLAN-15)."""
    limiting = [cache.num_blocks for cache in caches if cache.tensors]
    fewest = min(limiting, default=1)
    return tuple(shrunk_to(cache, fewest) for cache in caches)


def scheduler_config(configs: Sequence[KVCacheConfig]) -> KVCacheConfig:
    """Return the one layout a scheduler uses: worker 0's (KV-PLAN-16)."""
    if not configs:
        raise ConfigError("configs", configs, "at least one layout")
    first = configs[0]
    for cache in configs:
        if cache.num_blocks != first.num_blocks:
            raise ConfigError("num_blocks", cache.num_blocks, f"{first.num_blocks}, as worker 0's")
    groups = tuple(replace(group, spec=_first_spec(group.spec)) for group in first.groups)
    return replace(first, groups=groups)


def _first_spec(spec: LayerSpec) -> LayerSpec:
    """Return any layer's spec as representative of its type: a scheduler needs no sizes."""
    if spec.layers:
        return spec.layers[0][1]
    return spec
