"""Decide whether kvfast can replace vLLM's manager, and with which configuration."""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from typing import Any

import kvfast
from kvfast.engines.vllm.versions import is_since, policy_of, release
from kvspec import foreign
from kvspec.config import ManagerConfig
from kvspec.errors import KVSpecError, UnsupportedError
from kvspec.foreign import beyond_contract

CORE = "vllm.v1.core"


def given_by(scheduler: Any) -> dict[str, Any]:
    """Return the members of kvfast's configuration that vLLM's manager does not keep.

    Raises UnsupportedError if kvfast does not support the calls of that scheduler.
    """
    if scheduler.connector is not None and scheduler.has_mamba_layers:
        # Without a load, its scheduler offers hits of different length (docs/FINDINGS.md).
        raise UnsupportedError("Mamba layers beside a KV connector", "kvfast")
    is_short = scheduler.cache_config.prefix_caching_hash_algo.startswith("xxhash")
    int_hashes = importlib.import_module("vllm.envs").VLLM_KV_EVENTS_USE_INT_BLOCK_HASHES
    policy = None
    if is_since(26):
        _refuse(scheduler)
        policy = policy_of(release(), enable_caching=scheduler.kv_cache_manager.enable_caching)
    return {
        **foreign.given_by(scheduler, policy),
        "hash_function": f"given_{16 if is_short else 32}",
        "int_event_hashes": bool(int_hashes),
    }


def _refuse(scheduler: Any) -> None:
    """Raise UnsupportedError for what the contract does not have."""
    specs = [group.kv_cache_spec for group in scheduler.kv_cache_config.kv_cache_groups]
    coordinator = scheduler.kv_cache_manager.coordinator
    leaves = any(getattr(spec, "num_prefill_checkpoint_blocks", 0) for spec in specs)
    refused = {
        **beyond_contract(scheduler),
        f"windows that are replayed in vLLM 0.{release()}": not is_since(33)
        and getattr(scheduler, "prefix_replay_tokens", 0) > 0,
        "context parallelism": max(scheduler.dcp_world_size, scheduler.pcp_world_size) > 1,
        f"Mamba layers with prefix caching in vLLM 0.{release()}": scheduler.has_mamba_layers
        and scheduler.kv_cache_manager.enable_caching
        and not is_since(33),
        # They key the end of a prompt elsewhere.
        f"blocks larger than those that are hashed in vLLM 0.{release()}": (
            not is_since(32) and any(spec.block_size != scheduler.hash_block_size for spec in specs)
        ),
        f"windows that are zeroed in vLLM 0.{release()}": not is_since(28)
        and scheduler.needs_kv_cache_zeroing
        and any(hasattr(spec, "sliding_window") and spec.sliding_window for spec in specs),
        # They keep other places to replay from.
        f"EAGLE beside windows with sparse retention in vLLM 0.{release()}": len(specs) > 1
        and scheduler.use_eagle
        and coordinator.retention_interval is not None
        and not is_since(33),
        "Mamba layers where EAGLE drops blocks, with sparse retention or states inside chunks": (
            scheduler.has_mamba_layers
            and getattr(scheduler, "use_eagle_block_drop", scheduler.use_eagle)
            and (coordinator.retention_interval is not None or leaves or not is_since(33))
        ),
        "several modules that draft": getattr(coordinator, "num_reprefillable_tokens", 0) > 0,
        f"a KV connector beside blocks that are zeroed in vLLM 0.{release()}": not is_since(33)
        and scheduler.connector is not None
        and scheduler.needs_kv_cache_zeroing,
    }
    for what, is_there in refused.items():
        if is_there:
            raise UnsupportedError(what, "kvfast")


def config_of(stock: Any, given: Mapping[str, Any]) -> ManagerConfig:
    """Return the configuration of kvfast's manager, read from vLLM's, with what is `given`.

    Raises UnsupportedError or ConfigError if kvfast cannot replace it.
    """
    _refuse_other_classes(stock)
    layout = stock.kv_cache_config
    specs = [] if layout is None else [group.kv_cache_spec for group in layout.kv_cache_groups]
    if given.get("policy") is None and any(type(spec).__name__ == "RSWASpec" for spec in specs):
        raise UnsupportedError("R-SWA of vLLM 0.25", "kvfast")  # never tried
    rate = getattr(stock.metrics_collector, "sample_rate", 0.0)
    members = {"hash_function": "given_32", "residency_sample_rate": rate, **given}
    try:
        return foreign.config_of(stock, **members)
    except (AttributeError, TypeError) as error:  # vLLM checks no types
        raise UnsupportedError(
            f"a configuration that it cannot read ({error})", "kvfast"
        ) from error


def kvfast_manager(stock: Any, given: Mapping[str, Any]) -> Any:
    """Replace an unused manager of vLLM's by kvfast.

    Raises UnsupportedError or ConfigError if kvfast cannot serve its configuration.
    """
    from kvfast.engines.vllm.manager import KvfastManager  # needs vLLM

    implementation = kvfast.implementation()
    manager = implementation.create(config_of(stock, given), check_invariants=False)
    return KvfastManager(stock, implementation, manager)


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
