"""From a configuration to what the core needs; what cannot be served is refused (KV-CFG-*)."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType

from kvspec.config import ManagerConfig
from kvspec.errors import ConfigError, UnsupportedError
from kvspec.specs import (
    ChunkedLocalAttentionSpec,
    CrossAttentionSpec,
    EncoderOnlyAttentionSpec,
    FullAttentionSpec,
    HiddenStateCacheSpec,
    LayerSpec,
    MambaSpec,
    MLAAttentionSpec,
    SinkFullAttentionSpec,
    SlidingWindowMLASpec,
    SlidingWindowSpec,
    TQFullAttentionSpec,
)

KIND_OF_TYPE: Mapping[type[LayerSpec], str] = MappingProxyType(
    {
        FullAttentionSpec: "full",
        TQFullAttentionSpec: "full",
        MLAAttentionSpec: "full",
        HiddenStateCacheSpec: "full",
        SinkFullAttentionSpec: "full",
        SlidingWindowSpec: "sliding",
        SlidingWindowMLASpec: "sliding",
        ChunkedLocalAttentionSpec: "chunked",
        MambaSpec: "mamba",
        CrossAttentionSpec: "cross",
        EncoderOnlyAttentionSpec: "encoder_only",
    }
)
"""How groups of a spec use their blocks. Exact types: a subclass may behave differently."""

ZEROED_TYPES = (FullAttentionSpec, TQFullAttentionSpec, MLAAttentionSpec, HiddenStateCacheSpec)
"""Whose new blocks are queued for zeroing (KV-GRP-10)."""

MOST_BLOCKS = 2**31 - 1
MOST_TOKENS = 2**53 - 1


@dataclass(frozen=True)
class GroupPlan:
    """One group, as the core needs it.

    - `kind`: how it uses its blocks (see `kvfast._core.shape`).
    - `reach_tokens`: its window or chunk; `num_drafted`: Mamba states of drafted tokens.
    - `drops_block`: its hits give up their last block. `is_zeroed`: its new blocks are queued.
    - `cap_blocks`: the most one request holds at once, -1 where that is no less than all.
    - `num_sink_blocks`: set aside for it at the start.
    """

    spec: LayerSpec
    kind: str
    block_size: int
    hashes_per_block: int
    reach_tokens: int
    num_drafted: int
    drops_block: bool
    is_zeroed: bool
    cap_blocks: int
    num_sink_blocks: int


@dataclass(frozen=True)
class Plan:
    """A configuration that can be served.

    `config` has its derived block sizes filled in; `attention` lists the groups of each attention
    group, full attention first (KV-COORD-4).
    """

    config: ManagerConfig
    groups: tuple[GroupPlan, ...]
    attention: tuple[tuple[int, ...], ...]

    @property
    def alignment_tokens(self) -> int:
        """Every hit ends on a multiple of it."""
        return self.config.scheduler_block_size_tokens or 1

    @property
    def is_hybrid(self) -> bool:
        """Several groups that have to agree on hits."""
        return self.config.enable_caching and len(self.groups) > 1


def plan_of(config: ManagerConfig) -> Plan:
    """What a manager is made from; ConfigError or UnsupportedError if it cannot be made."""
    if not isinstance(config, ManagerConfig):
        raise ConfigError("config", config, "a ManagerConfig")
    specs = [config.registry.resolve(group.spec) for group in config.kv_cache.groups]
    kinds = [_kind_of(spec) for spec in specs]
    if config.kv_cache.num_blocks > MOST_BLOCKS:
        raise UnsupportedError(f"more than {MOST_BLOCKS} blocks", "kvfast")
    _refuse_retention_without_effect(config, kinds)
    _refuse_context_parallel(config, specs)
    if config.enable_caching:
        _refuse_caching(config, specs, kinds)
    config = replace(
        config,
        scheduler_block_size_tokens=(scheduler := _scheduler_block_size(config, specs)),
        hash_block_size_tokens=_hash_block_size(config, specs, scheduler),
    )
    _refuse_retention_value(config, scheduler)
    flagged = _flagged(config, specs)
    _refuse_chunks(config, specs, flagged, scheduler)
    groups = tuple(
        _group_plan(config, spec, kind, index in flagged)
        for index, (spec, kind) in enumerate(zip(specs, kinds, strict=True))
    )
    return Plan(config, groups, _attention_groups(specs, kinds))


def _kind_of(spec: LayerSpec) -> str:
    if type(spec) not in KIND_OF_TYPE:
        raise UnsupportedError(f"groups of {type(spec).__name__}", "kvfast")
    if isinstance(spec, MambaSpec) and spec.mamba_cache_mode == "align":
        return "aligned"
    return KIND_OF_TYPE[type(spec)]


def _group_plan(config: ManagerConfig, spec: LayerSpec, kind: str, drops: bool) -> GroupPlan:
    size = spec.block_size * config.dcp_world_size * config.pcp_world_size
    reach, drafted, cap = 0, 0, -1
    batched = config.max_num_batched_tokens or config.max_model_len_tokens
    longest = config.max_model_len_tokens
    if isinstance(spec, SlidingWindowSpec):  # KV-SW-7: a window need not start at a block
        reach = spec.sliding_window
        cap = -(-min(reach - 1 + batched, longest) // size) + 1
    elif isinstance(spec, ChunkedLocalAttentionSpec):  # KV-CHUNK-5
        reach = spec.attention_chunk_size
        cap = -(-min(reach + batched, longest) // size)
    elif isinstance(spec, MambaSpec):
        drafted = spec.num_speculative_blocks
    if max(size, drafted * size) > MOST_TOKENS:
        raise UnsupportedError(f"blocks of {size} tokens, {drafted} of them drafted", "kvfast")
    if kind == "aligned" and longest // size + drafted >= MOST_BLOCKS // 2:  # KV-MAMBA-6
        raise UnsupportedError(f"lists for sequences of {longest} tokens in mode align", "kvfast")
    sinks = spec.sink_len // spec.block_size if isinstance(spec, SinkFullAttentionSpec) else 0
    return GroupPlan(
        spec=spec,
        kind=kind,
        block_size=size,
        hashes_per_block=max(1, size // (config.hash_block_size_tokens or 1)),
        reach_tokens=reach,
        num_drafted=drafted,
        drops_block=drops,
        is_zeroed=type(spec) in ZEROED_TYPES,
        cap_blocks=cap,
        num_sink_blocks=sinks,
    )


def _attention_groups(
    specs: Sequence[LayerSpec], kinds: Sequence[str]
) -> tuple[tuple[int, ...], ...]:
    """Groups with equal specs together, full attention first, else in order (KV-COORD-4)."""
    members: dict[LayerSpec, list[int]] = {}
    for index, spec in enumerate(specs):
        members.setdefault(spec, []).append(index)
    found = [tuple(indices) for indices in members.values()]
    return tuple(sorted(found, key=lambda indices: kinds[indices[0]] != "full"))


def _flagged(config: ManagerConfig, specs: Sequence[LayerSpec]) -> frozenset[int]:
    """Groups whose hits drop a block (KV-CFG-8)."""
    flagged = {
        spec for spec, g in zip(specs, config.kv_cache.groups, strict=True) if g.is_eagle_group
    }
    if config.use_eagle and not flagged:
        return frozenset(range(len(specs)))
    return frozenset(index for index, spec in enumerate(specs) if spec in flagged)


def _scheduler_block_size(config: ManagerConfig, specs: Sequence[LayerSpec]) -> int:
    """KV-CFG-4."""
    given = config.scheduler_block_size_tokens
    if not specs:
        return given or config.hash_block_size_tokens or 1
    derived = math.lcm(*(spec.block_size for spec in specs))
    if len(specs) == 1:
        derived *= config.dcp_world_size * config.pcp_world_size
    if given is not None and given != derived:
        raise ConfigError("scheduler_block_size_tokens", given, f"{derived} with these groups")
    if derived > MOST_TOKENS:
        raise UnsupportedError(f"a scheduler block of {derived} tokens", "kvfast")
    return derived


def _hash_block_size(config: ManagerConfig, specs: Sequence[LayerSpec], scheduler: int) -> int:
    """KV-CFG-5."""
    if len(specs) < 2 or not config.enable_caching:
        return scheduler
    sizes = [spec.block_size for spec in specs]
    hashed = config.hash_block_size_tokens or math.gcd(*sizes)
    if any(size % hashed for size in sizes):
        raise ConfigError("hash_block_size_tokens", hashed, f"a divisor of every one of {sizes}")
    return hashed


def _refuse_retention_without_effect(config: ManagerConfig, kinds: Sequence[str]) -> None:
    """KV-CFG-7, the groups."""
    interval = config.retention_interval_tokens
    if interval is not None and not {"sliding", "mamba", "aligned"} & set(kinds):
        raise ConfigError(
            "retention_interval_tokens", interval, "None without sliding-window or Mamba groups"
        )


def _refuse_retention_value(config: ManagerConfig, scheduler: int) -> None:
    """KV-CFG-7, the number."""
    interval = config.retention_interval_tokens
    if interval is not None and (interval < 0 or interval % scheduler):
        raise ConfigError("retention_interval_tokens", interval, f"a multiple of {scheduler}, or 0")


def _refuse_context_parallel(config: ManagerConfig, specs: Sequence[LayerSpec]) -> None:
    """KV-CFG-6."""
    if len(specs) == 1 and isinstance(specs[0], FullAttentionSpec):
        return
    if config.dcp_world_size > 1:
        raise ConfigError("dcp_world_size", config.dcp_world_size, "1 but for one full attention")
    if config.pcp_world_size > 1:
        raise ConfigError("pcp_world_size", config.pcp_world_size, "1 but for one full attention")


def _refuse_caching(
    config: ManagerConfig, specs: Sequence[LayerSpec], kinds: Sequence[str]
) -> None:
    """KV-CFG-3, KV-COORD-3, KV-CROSS-4."""
    if not specs:
        raise ConfigError("kv_cache.groups", (), "at least one group, unless caching is off")
    if len(specs) > 1 and len(set(specs)) == 1:
        raise ConfigError(
            "kv_cache.groups", config.kv_cache.groups, "one group, or groups of different specs"
        )
    if {"cross", "encoder_only"} & set(kinds):
        raise ConfigError("enable_caching", True, "False beside encoder groups")


def _refuse_chunks(
    config: ManagerConfig, specs: Sequence[LayerSpec], flagged: frozenset[int], scheduler: int
) -> None:
    """KV-CHUNK-3, KV-POL-6."""
    for index, spec in enumerate(specs):
        if not isinstance(spec, ChunkedLocalAttentionSpec):
            continue
        chunk, size = spec.attention_chunk_size, spec.block_size
        if config.policy.chunk_must_align and chunk % size:
            raise ConfigError("attention_chunk_size", chunk, f"a multiple of {size}, its block")
        if config.enable_caching and index in flagged:
            raise ConfigError("is_eagle_group", True, "False for chunked local attention")
        if config.enable_caching and size != scheduler:
            raise ConfigError("block_size", size, f"{scheduler}, that of the scheduler, for chunks")
