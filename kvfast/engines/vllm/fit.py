"""Decide whether kvfast can replace vLLM's manager, and with which configuration."""

from __future__ import annotations

import importlib
from dataclasses import dataclass
from typing import Any

from kvspec import foreign
from kvspec.config import ManagerConfig
from kvspec.errors import KVSpecError, UnsupportedError
from kvspec.policy import Policy

CORE = "vllm.v1.core"


@dataclass(frozen=True)
class Given:
    """Arguments of vLLM's manager that it does not keep.

    `max_num_batched_tokens`: of all batches at a time, from 0.33 on.
    """

    max_num_batched_tokens: int | None = None
    dcp_world_size: int = 1
    pcp_world_size: int = 1
    watermark: float = 0.0
    hash_bytes: int = 32
    int_event_hashes: bool = False
    hash_lookahead_tokens: int = 0
    policy: Policy | None = None


def given_to(scheduler: Any) -> Given:
    """Return the arguments that a scheduler passes to vLLM's manager.

    Raises UnsupportedError if kvfast does not support the calls of that scheduler.
    """
    if scheduler.connector is not None and scheduler.has_mamba_layers:
        # Without a load, its scheduler offers hits of different length (docs/FINDINGS.md).
        raise UnsupportedError("Mamba layers beside a KV connector", "kvfast")
    algorithm = scheduler.cache_config.prefix_caching_hash_algo
    return Given(
        scheduler.scheduler_config.max_num_batched_tokens,
        scheduler.dcp_world_size,
        scheduler.pcp_world_size,
        float(scheduler.scheduler_config.watermark),
        16 if algorithm.startswith("xxhash") else 32,
        bool(importlib.import_module("vllm.envs").VLLM_KV_EVENTS_USE_INT_BLOCK_HASHES),
    )


def config_of(stock: Any, given: Given) -> ManagerConfig:
    """Return the configuration of kvfast's manager, read from vLLM's.

    Raises UnsupportedError or ConfigError if kvfast cannot replace it.
    """
    _refuse_other_classes(stock)
    layout = stock.kv_cache_config
    specs = [] if layout is None else [group.kv_cache_spec for group in layout.kv_cache_groups]
    if given.policy is None and any(type(spec).__name__ == "RSWASpec" for spec in specs):
        raise UnsupportedError("R-SWA of vLLM 0.25", "kvfast")  # never tried
    try:
        return foreign.config_of(
            stock,
            max_num_batched_tokens=given.max_num_batched_tokens,
            dcp_world_size=given.dcp_world_size,
            pcp_world_size=given.pcp_world_size,
            watermark=given.watermark,
            int_event_hashes=given.int_event_hashes,
            hash_function=f"given_{given.hash_bytes}",
            residency_sample_rate=getattr(stock.metrics_collector, "sample_rate", 0.0),
            hash_lookahead_tokens=given.hash_lookahead_tokens,
            policy=given.policy,
        )
    except (AttributeError, TypeError) as error:  # vLLM checks no types
        raise UnsupportedError(
            f"a configuration that it cannot read ({error})", "kvfast"
        ) from error


def _refuse_other_classes(stock: Any) -> None:
    """Refuse a manager, pool or group manager of another class, which may behave differently."""
    parts = [stock, stock.coordinator, stock.block_pool, *stock.coordinator.single_type_managers]
    if stock.metrics_collector is not None:
        parts.append(stock.metrics_collector)
    for part in parts:
        if not type(part).__module__.startswith(f"{CORE}."):
            raise UnsupportedError(f"{type(part).__module__}.{type(part).__qualname__}", "kvfast")


def reason_of(error: KVSpecError) -> str:
    """Return the log line for a configuration that stays with vLLM's manager."""
    return f"kvfast does not serve this configuration: {error}"
