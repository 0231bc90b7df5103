"""A configuration as constants of the modules from Groups on."""

from __future__ import annotations

from math import lcm
from typing import Any

from kvspec.config import ManagerConfig
from kvspec.specs import LayerSpec


def window_of(spec: LayerSpec) -> int:
    """Return the sliding window; 0 for full attention."""
    return spec.window_tokens


def constants_of(config: ManagerConfig, num_requests: int) -> dict[str, Any]:
    """Return the constants of Groups and Hits; groups count from 1."""
    specs = config.managed_specs
    spans = tuple(spec.block_size * config.dcp_world_size * config.pcp_world_size for spec in specs)
    retention = config.retention_interval_tokens
    return {
        "NumBlocks": config.kv_cache.num_blocks,
        "NumRequests": num_requests,
        "Windows": tuple(map(window_of, specs)),
        "BlockSizes": spans,
        "Alignment": config.scheduler_block_size_tokens or lcm(*spans),
        "LookUps": looked_up_together(specs),
        "EagleGroups": _eagle_groups(config, specs),
        "Retention": -1 if retention is None else retention,
        "MaxTokens": config.max_model_len_tokens,
    }


def looked_up_together(specs: tuple[LayerSpec, ...]) -> tuple[tuple[int, ...], ...]:
    """Join groups with equal specs, full attention first, the rest in order (KV-COORD-4)."""
    together = [
        tuple(number for number, other in enumerate(specs, 1) if other == spec)
        for number, spec in enumerate(specs)
        if spec not in specs[:number]
    ]
    return tuple(sorted(together, key=lambda group: window_of(specs[group[0] - 1]) != 0))


def _eagle_groups(config: ManagerConfig, specs: tuple[LayerSpec, ...]) -> frozenset[int]:
    """Flag all groups with an equal spec; without any flag, `use_eagle` flags all."""
    groups = config.kv_cache.groups
    flagged = [spec for spec, group in zip(specs, groups, strict=True) if group.is_eagle_group]
    if not flagged and config.use_eagle:
        flagged = list(specs)
    return frozenset(number for number, spec in enumerate(specs, 1) if spec in flagged)
