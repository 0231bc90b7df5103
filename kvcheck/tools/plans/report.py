"""The results of a plan: groups, blocks, tokens, requests, waste."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from kvcheck.tools.plans.document import PlanFile
from kvspec.codec import encode_spec
from kvspec.config import KVCacheConfig, ManagerConfig
from kvspec.errors import ConfigError, UnsupportedError
from kvspec.interface import Implementation
from kvspec.planning import AUTO_FIT, BlockSizes, Capacity, Layers, Plan, Planner, PlanningConfig
from kvspec.specs import AttentionSpec, LayerSpec, MambaSpec

PROBE_BLOCKS = 64
"""Blocks of the manager that is made to see whether one accepts the groups."""


@dataclass(frozen=True)
class GroupReport:
    """One group over all workers.

    `padding_percent`: the part of a block's bytes that its layers leave unused.
    """

    kind: str
    num_layers: int
    block_size_tokens: int
    window_tokens: int | None
    page_size_bytes: int
    blocks_per_request: int
    padding_percent: float
    spec: LayerSpec


@dataclass(frozen=True)
class PlanReport:
    """A plan and what follows from it. `capacity`: None where nothing limits it."""

    name: str
    implementation: str
    config: PlanningConfig
    workers: tuple[Layers, ...]
    memory_bytes: tuple[int, ...]
    plan: Plan
    block_sizes: BlockSizes
    capacity: Capacity | None
    groups: tuple[GroupReport, ...]
    padding_percent: float

    @property
    def is_automatic(self) -> bool:
        """Whether the plan was asked for the longest length that fits."""
        return self.config.original_max_model_len_tokens == AUTO_FIT

    @property
    def num_blocks(self) -> int:
        """Blocks of the pool, the null block included."""
        return self.plan.configs[0].num_blocks

    @property
    def blocks_per_request(self) -> int:
        """Blocks of one request of full length, in all groups."""
        return sum(group.blocks_per_request for group in self.groups)

    def bytes_per_block(self, worker: int) -> int:
        cache = self.plan.configs[worker]
        return 0 if not cache.num_blocks else used_bytes(cache) // cache.num_blocks

    def to_json(self) -> dict[str, Any]:
        """Return the document of `--json`; `spec/planning.md` describes its keys."""
        capacity = self.capacity
        return {
            "name": self.name,
            "implementation": self.implementation,
            "max_model_len": self.plan.max_model_len_tokens,
            "automatic": self.is_automatic,
            "num_blocks": self.num_blocks,
            "scheduler_block_size": self.block_sizes.scheduler_block_size_tokens,
            "hash_block_size": self.block_sizes.hash_block_size_tokens,
            "capacity_tokens": None if capacity is None else capacity.num_tokens,
            "max_concurrency": None if capacity is None else capacity.max_concurrency,
            "blocks_per_request": self.blocks_per_request,
            "padding_percent": round(self.padding_percent, 2),
            "warnings": list(self.plan.warnings),
            "groups": [
                {
                    "kind": group.kind,
                    "num_layers": group.num_layers,
                    "block_size": group.block_size_tokens,
                    "window": group.window_tokens,
                    "page_size_bytes": group.page_size_bytes,
                    "blocks_per_request": group.blocks_per_request,
                    "padding_percent": round(group.padding_percent, 2),
                    "spec": encode_spec(group.spec),
                }
                for group in self.groups
            ],
            "workers": [self._worker(index) for index in range(len(self.workers))],
        }

    def _worker(self, index: int) -> dict[str, Any]:
        cache = self.plan.configs[index]
        return {
            "memory_bytes": self.memory_bytes[index],
            "used_bytes": used_bytes(cache),
            "bytes_per_block": self.bytes_per_block(index),
            "layers_by_group": [list(group.layer_names) for group in cache.groups],
            "tensors": [
                {
                    "size_bytes": tensor.size_bytes,
                    "shared_by": list(tensor.shared_by),
                    "offset_bytes": tensor.offset_bytes,
                    "block_stride_bytes": tensor.block_stride_bytes,
                }
                for tensor in cache.tensors
            ],
        }


def used_bytes(cache: KVCacheConfig) -> int:
    """Sum the bytes of all tensors; packed ones are views of one allocation."""
    if any(tensor.block_stride_bytes is not None for tensor in cache.tensors):
        return cache.tensors[0].size_bytes
    return sum(tensor.size_bytes for tensor in cache.tensors)


def make_report(file: PlanFile, implementation: Implementation, planner: Planner) -> PlanReport:
    """Plan for what the file says, and see that a manager accepts it.

    Raises FormatError where the file is at fault; CacheMemoryError where the memory is too little.
    """
    workers, config = file.workers(planner)
    memory = file.memory()
    plan = planner.plan(workers, config, memory)
    config = replace(config, max_model_len_tokens=plan.max_model_len_tokens)
    scheduler = planner.scheduler_config(plan.configs)
    sizes = planner.block_sizes(scheduler, config)
    _check_a_manager_accepts(implementation, scheduler, config, sizes)
    try:
        capacity = planner.capacity(plan.configs[0], config)
    except ConfigError:
        capacity = None
    groups = tuple(
        _group(planner, plan, config, index) for index in range(len(plan.configs[0].groups))
    )
    blocks = sum(group.blocks_per_request for group in groups)
    wasted = sum(group.blocks_per_request * group.padding_percent for group in groups)
    return PlanReport(
        file.name,
        implementation.capabilities.name,
        config,
        workers,
        memory,
        plan,
        sizes,
        capacity,
        groups,
        wasted / blocks if blocks else 0.0,
    )


def _check_a_manager_accepts(
    implementation: Implementation,
    scheduler: KVCacheConfig,
    config: PlanningConfig,
    sizes: BlockSizes,
) -> None:
    """Check that a small manager accepts these groups; passes on its ConfigError."""
    several = len(scheduler.groups) > 1
    blocks = min(scheduler.num_blocks, PROBE_BLOCKS)
    blocks += sum(group.spec.num_sink_blocks for group in scheduler.groups)
    manager = ManagerConfig(
        KVCacheConfig(max(blocks, 1), scheduler.groups),
        max_model_len_tokens=config.max_model_len_tokens,
        scheduler_block_size_tokens=sizes.scheduler_block_size_tokens if several else None,
        hash_block_size_tokens=sizes.hash_block_size_tokens if several else None,
        max_num_batched_tokens=config.max_num_batched_tokens,
        enable_caching=config.enable_caching and bool(scheduler.groups),
        use_eagle=bool(config.use_eagle),
        dcp_world_size=config.dcp_world_size,
        pcp_world_size=config.pcp_world_size,
        policy=config.policy,
    )
    try:
        implementation.create(manager)
    except UnsupportedError:
        return  # it plans more than it manages


def _group(planner: Planner, plan: Plan, config: PlanningConfig, index: int) -> GroupReport:
    """Report one group: its sizes from the planner, its waste over all workers."""
    names: set[str] = set()
    used = taken = 0
    for cache in plan.configs:
        group = cache.groups[index]
        names |= set(group.layer_names)
        if cache.num_blocks:
            taken += used_bytes(cache) // cache.num_blocks
        specs = dict(_specs_of(group.spec, group.layer_names))
        used += sum(_content_bytes(planner, specs[name], config) for name in group.layer_names)
    spec = next(
        (cache.groups[index].spec for cache in plan.configs if cache.groups[index].layer_names),
        plan.configs[0].groups[index].spec,
    )
    bound = planner.spec_properties(_first(spec), config)
    blocks = bound.max_memory_usage_bytes // bound.page_size_bytes if bound.page_size_bytes else 0
    return GroupReport(
        kind=bound.kind,
        num_layers=len(names),
        block_size_tokens=spec.block_size,
        window_tokens=_first(spec).window_tokens or _first(spec).chunk_tokens or None,
        page_size_bytes=planner.spec_properties(spec, config).page_size_bytes,
        blocks_per_request=blocks,
        padding_percent=100 * (1 - used / taken) if taken else 0.0,
        spec=spec,
    )


def _specs_of(spec: LayerSpec, names: tuple[str, ...]) -> Layers:
    if spec.layers:
        return spec.layers
    return tuple((name, spec) for name in names)


def _first(spec: LayerSpec) -> LayerSpec:
    return spec.layers[0][1] if spec.layers else spec


def _content_bytes(planner: Planner, spec: LayerSpec, config: PlanningConfig) -> int:
    """Return the bytes used in a page: without padding, but with scales and alignment."""
    if isinstance(spec, AttentionSpec | MambaSpec):
        spec = replace(spec, page_size_padded=None)
    return planner.spec_properties(spec, config).page_size_bytes
