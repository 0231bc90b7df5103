"""From a configuration to what the core needs; what cannot be served is refused (KV-CFG-*)."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType

from kvfast._core import kinds
from kvfast._core.kinds import Kind, never
from kvfast._core.plan import GroupPlan, Plan
from kvspec.config import ManagerConfig
from kvspec.errors import ConfigError, UnsupportedError
from kvspec.inside import looks_inside
from kvspec.specs import (
    AttentionSpec,
    ChunkedLocalAttentionSpec,
    CircularBufferSpec,
    CrossAttentionSpec,
    EncoderOnlyAttentionSpec,
    FullAttentionSpec,
    HiddenStateCacheSpec,
    LayerSpec,
    MambaSpec,
    MLAAttentionSpec,
    ReplayedWindowSpec,
    RSWASpec,
    SinkFullAttentionSpec,
    SlidingWindowMLASpec,
    SlidingWindowSpec,
    TQFullAttentionSpec,
)

KIND_OF_TYPE: Mapping[type[LayerSpec], Kind] = MappingProxyType(
    {
        FullAttentionSpec: kinds.FULL,
        TQFullAttentionSpec: kinds.FULL,
        MLAAttentionSpec: kinds.FULL,
        HiddenStateCacheSpec: kinds.FULL,
        SinkFullAttentionSpec: kinds.FULL,
        RSWASpec: kinds.RSWA,
        SlidingWindowSpec: kinds.SLIDING,
        SlidingWindowMLASpec: kinds.SLIDING,
        ReplayedWindowSpec: kinds.REPLAYED,
        ChunkedLocalAttentionSpec: kinds.CHUNKED,
        MambaSpec: kinds.MAMBA,
        CrossAttentionSpec: kinds.CROSS,
        EncoderOnlyAttentionSpec: kinds.ENCODER_ONLY,
        CircularBufferSpec: kinds.CIRCULAR,
    }
)
"""The way in which groups of a spec use their blocks. Exact types: a subclass may behave
differently.
"""

FULL = (kinds.FULL, kinds.RSWA)
"""Whose hits are runs from the first block on."""

ZEROED_TYPES = (
    RSWASpec,
    FullAttentionSpec,
    TQFullAttentionSpec,
    MLAAttentionSpec,
    HiddenStateCacheSpec,
)
"""Whose new blocks are queued for zeroing (KV-GRP-10)."""

MOST_BLOCKS = 2**31 - 1
MOST_TOKENS = 2**53 - 1


def plan_of(config: ManagerConfig) -> Plan:
    """Return the plan for a configuration; ConfigError or UnsupportedError without one."""
    if not isinstance(config, ManagerConfig):
        raise ConfigError("config", config, "a ManagerConfig")
    specs = [config.registry.resolve(group.spec) for group in config.kv_cache.groups]
    kind_per_group = [kind_of(spec) for spec in specs]
    if config.hash_lookahead_tokens > MOST_TOKENS:
        raise UnsupportedError(f"a look-ahead of more than {MOST_TOKENS} tokens", "kvfast")
    if config.kv_cache.num_blocks > MOST_BLOCKS:
        raise UnsupportedError(f"more than {MOST_BLOCKS} blocks", "kvfast")
    _refuse_retention_without_effect(config, specs)
    _refuse_context_parallel(config, specs)
    if config.enable_caching:
        _refuse_caching(config, specs, kind_per_group)
    if any(spec.has_checkpoints for spec in specs) and not looks_inside(config):
        raise UnsupportedError(
            "states inside a chunk in this configuration (KV-INSIDE-19)", "kvfast"
        )
    if kinds.RSWA in kind_per_group and looks_inside(config):
        raise UnsupportedError("R-SWA where hits end inside a block", "kvfast")
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
        for index, (spec, kind) in enumerate(zip(specs, kind_per_group, strict=True))
    )
    return Plan(config, groups, _attention_groups(specs, kind_per_group))


def kind_of(spec: LayerSpec) -> Kind:
    """Return how groups of the spec use their blocks; UnsupportedError for other types."""
    if type(spec) not in KIND_OF_TYPE:
        raise UnsupportedError(f"groups of {type(spec).__name__}", "kvfast")
    if spec.is_aligned:
        return kinds.ALIGNED
    return KIND_OF_TYPE[type(spec)]


def reach_of(spec: LayerSpec) -> int:
    """Return the tokens of its window or chunk; 0 if it has neither."""
    return spec.window_tokens or spec.chunk_tokens or spec.rswa_window


def _group_plan(config: ManagerConfig, spec: LayerSpec, kind: Kind, drops: bool) -> GroupPlan:
    size = spec.block_size * config.dcp_world_size * config.pcp_world_size
    reach = reach_of(spec)
    drafted, longest = spec.num_speculative_blocks, config.max_model_len_tokens
    if max(size, drafted * size) > MOST_TOKENS:
        raise UnsupportedError(f"blocks of {size} tokens, {drafted} of them drafted", "kvfast")
    if kind == kinds.ALIGNED and longest // size + drafted >= MOST_BLOCKS // 2:  # KV-MAMBA-6
        raise UnsupportedError(f"lists for sequences of {longest} tokens in mode align", "kvfast")
    return GroupPlan(
        spec=spec,
        kind=kind,
        block_size=size,
        hashes_per_block=max(1, size // (config.hash_block_size_tokens or 1)),
        reach_tokens=reach,
        num_drafted=drafted,
        drops_block=drops,
        extra_tokens=spec.extra_retained_tokens,
        is_zeroed=_is_zeroed(config, spec),
        cap_blocks=_cap_blocks(config, kind, size, reach + spec.extra_retained_tokens),
        num_sink_blocks=spec.num_sink_blocks,
        export_step_tokens=spec.checkpoint_step_tokens,
        has_partial_tails=config.policy.full_partial_tails and kind in FULL,
        checkpoints_return=config.policy.checkpoints_return and kind == kinds.ALIGNED,
    )


def _is_zeroed(config: ManagerConfig, spec: LayerSpec) -> bool:
    """Return whether new blocks of the spec are zeroed (KV-GRP-10, KV-POL-13)."""
    if config.policy.zeroed_blocks == "full_attention":
        return type(spec) in ZEROED_TYPES
    specs = config.managed_specs
    attention = [each for each in specs if isinstance(each, AttentionSpec)]
    formats = {(each.dtype, each.kv_quant_mode) for each in attention}
    has_states = any(each.is_state for each in specs)
    is_attention = isinstance(spec, AttentionSpec) and spec.prefix_cacheable
    return is_attention and (has_states or len(formats) > 1)


def _cap_blocks(config: ManagerConfig, kind: Kind, size: int, reach: int) -> int:
    """Return the most blocks that a request holds at once, -1 if that is no less than all."""
    longest = config.max_model_len_tokens
    batched = config.max_num_batched_tokens or longest
    if kind == kinds.SLIDING or kind == kinds.REPLAYED:  # KV-SW-7: it need not start at a block
        return -(-min(reach - 1 + batched, longest) // size) + 1
    if kind == kinds.CHUNKED:  # KV-CHUNK-5
        return -(-min(reach + batched, longest) // size)
    if kind == kinds.FULL or kind == kinds.RSWA or kind == kinds.MAMBA or kind == kinds.ALIGNED:
        return -1
    if kind == kinds.CROSS or kind == kinds.ENCODER_ONLY or kind == kinds.CIRCULAR:
        return -1
    return never(kind)


def _attention_groups(
    specs: Sequence[LayerSpec], kind_per_group: Sequence[Kind]
) -> tuple[tuple[int, ...], ...]:
    """Join groups with equal specs, full attention first, then in order (KV-COORD-4)."""
    members: dict[LayerSpec, list[int]] = {}
    for index, spec in enumerate(specs):
        if spec.prefix_cacheable:  # KV-COORD-14
            members.setdefault(spec, []).append(index)
    found = [tuple(indices) for indices in members.values()]
    return tuple(sorted(found, key=lambda indices: kind_per_group[indices[0]] not in FULL))


def _flagged(config: ManagerConfig, specs: Sequence[LayerSpec]) -> frozenset[int]:
    """Return the groups whose hits drop a block (KV-CFG-8)."""
    if config.hash_lookahead_tokens > 0:  # KV-HASH-14
        return frozenset()
    flagged = {
        spec for spec, g in zip(specs, config.kv_cache.groups, strict=True) if g.is_eagle_group
    }
    if config.use_eagle and not flagged:
        return frozenset(range(len(specs)))
    if not (config.use_eagle or config.policy.eagle_flag_counts_alone):  # KV-POL-16
        return frozenset()
    return frozenset(index for index, spec in enumerate(specs) if spec in flagged)


def _scheduler_block_size(config: ManagerConfig, specs: Sequence[LayerSpec]) -> int:
    """Return the given or derived scheduler block size (KV-CFG-4)."""
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
    """Return the given or derived hash block size (KV-CFG-5)."""
    if len(specs) < 2 or not config.enable_caching:
        return scheduler
    sizes = [spec.block_size for spec in specs if spec.prefix_cacheable]  # KV-COORD-14
    hashed = config.hash_block_size_tokens or math.gcd(*sizes)
    if any(size % hashed for size in sizes):
        raise ConfigError("hash_block_size_tokens", hashed, f"a divisor of every one of {sizes}")
    return hashed


def _refuse_retention_without_effect(config: ManagerConfig, specs: Sequence[LayerSpec]) -> None:
    """Refuse retention that no group can use (KV-CFG-7)."""
    interval = config.retention_interval_tokens
    if interval == 0 and not config.policy.zero_retention_needs_windows:  # KV-POL-11
        return
    if interval is not None and not any(spec.retains_sparsely for spec in specs):
        raise ConfigError(
            "retention_interval_tokens", interval, "None without sliding-window or Mamba groups"
        )


def _refuse_retention_value(config: ManagerConfig, scheduler: int) -> None:
    """Refuse intervals that are not a multiple of the alignment (KV-CFG-7)."""
    interval = config.retention_interval_tokens
    if interval is not None and (interval < 0 or interval % scheduler):
        raise ConfigError("retention_interval_tokens", interval, f"a multiple of {scheduler}, or 0")


def _refuse_context_parallel(config: ManagerConfig, specs: Sequence[LayerSpec]) -> None:
    """Refuse context parallelism except with one group of full attention (KV-CFG-6)."""
    if len(specs) == 1 and specs[0].is_full_attention:
        return
    if config.dcp_world_size > 1:
        raise ConfigError("dcp_world_size", config.dcp_world_size, "1 but for one full attention")
    if config.pcp_world_size > 1:
        raise ConfigError("pcp_world_size", config.pcp_world_size, "1 but for one full attention")


def _refuse_caching(
    config: ManagerConfig, specs: Sequence[LayerSpec], kind_per_group: Sequence[Kind]
) -> None:
    """Refuse groups that cannot be cached together (KV-CFG-3, KV-COORD-3, KV-CROSS-4)."""
    if not specs:
        raise ConfigError("kv_cache.groups", (), "at least one group, unless caching is off")
    if len(specs) > 1 and len(set(specs)) == 1:
        raise ConfigError(
            "kv_cache.groups", config.kv_cache.groups, "one group, or groups of different specs"
        )
    if any(kind == kinds.CROSS or kind == kinds.ENCODER_ONLY for kind in kind_per_group):
        raise ConfigError("enable_caching", True, "False beside encoder groups")
    if not any(spec.prefix_cacheable for spec in specs):  # KV-COORD-14
        groups = config.kv_cache.groups
        raise ConfigError("kv_cache.groups", groups, "at least one that takes part in caching")


def _refuse_chunks(
    config: ManagerConfig, specs: Sequence[LayerSpec], flagged: frozenset[int], scheduler: int
) -> None:
    """Refuse chunks that are unaligned, flagged, or of other blocks (KV-CHUNK-3, KV-POL-6)."""
    for index, spec in enumerate(specs):
        if not spec.chunk_tokens:
            continue
        chunk, size = spec.chunk_tokens, spec.block_size
        if config.policy.chunk_must_align and chunk % size:
            raise ConfigError("attention_chunk_size", chunk, f"a multiple of {size}, its block")
        if config.enable_caching and index in flagged:
            raise ConfigError("is_eagle_group", True, "False for chunked local attention")
        if config.enable_caching and size != scheduler:
            raise ConfigError("block_size", size, f"{scheduler}, that of the scheduler, for chunks")
