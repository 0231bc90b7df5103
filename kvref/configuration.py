"""From a configuration to a pool and its groups (KV-CFG-*)."""

from __future__ import annotations

from kvref.block_pool import BlockPool
from kvref.coordinator import Coordinator, UnitaryCoordinator
from kvref.events import EventLog
from kvref.groups.base import Group, GroupContext
from kvref.groups.chunked_local import ChunkedLocalGroup
from kvref.groups.circular import CircularBufferGroup
from kvref.groups.cross_attention import CrossAttentionGroup, EncoderOnlyGroup
from kvref.groups.full_attention import FullAttentionGroup, RSWAGroup
from kvref.groups.inside import InsideFullGroup
from kvref.groups.inside_mamba import InsideAlignedGroup, InsideMambaGroup
from kvref.groups.mamba import MambaGroup
from kvref.groups.mamba_align import AlignedMambaGroup
from kvref.groups.sliding_window import ReplayedWindowGroup, SlidingWindowGroup
from kvref.hybrid import HybridCoordinator
from kvref.inside import InsideCoordinator
from kvspec.config import ManagerConfig
from kvspec.errors import UnsupportedError
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

GROUP_TYPES: tuple[tuple[type[LayerSpec], type[Group]], ...] = (
    (FullAttentionSpec, FullAttentionGroup),
    (TQFullAttentionSpec, FullAttentionGroup),
    (MLAAttentionSpec, FullAttentionGroup),
    (HiddenStateCacheSpec, FullAttentionGroup),
    (SinkFullAttentionSpec, FullAttentionGroup),
    (RSWASpec, RSWAGroup),
    (SlidingWindowSpec, SlidingWindowGroup),
    (SlidingWindowMLASpec, SlidingWindowGroup),
    (ReplayedWindowSpec, ReplayedWindowGroup),
    (ChunkedLocalAttentionSpec, ChunkedLocalGroup),
    (MambaSpec, MambaGroup),
    (CrossAttentionSpec, CrossAttentionGroup),
    (EncoderOnlyAttentionSpec, EncoderOnlyGroup),
    (CircularBufferSpec, CircularBufferGroup),
)
"""The class that manages each spec. Exact types: a subclass may behave differently."""

ZEROED_SPECS = (
    *(FullAttentionSpec, TQFullAttentionSpec, MLAAttentionSpec, HiddenStateCacheSpec, RSWASpec),
)
"""Exactly these types, not subclasses, have their new blocks zeroed (KV-GRP-10)."""


def spec_types() -> frozenset[type[LayerSpec]]:
    """Return the spec types that a group may have."""
    return frozenset(spec_type for spec_type, _ in GROUP_TYPES)


def inside_class(spec: LayerSpec) -> type[Group]:
    """Return the class for configurations whose hits may end inside a block."""
    if spec.is_state:
        return InsideAlignedGroup if spec.is_aligned else InsideMambaGroup
    if spec.rswa_window:
        raise UnsupportedError("R-SWA where hits end inside a block", "kvref")
    found = group_class(spec)
    return InsideFullGroup if found is FullAttentionGroup else found


def group_class(spec: LayerSpec) -> type[Group]:
    """Return the class that manages groups of this spec."""
    if spec.has_checkpoints:
        raise UnsupportedError(
            "states inside a chunk in this configuration (KV-INSIDE-19)", "kvref"
        )
    if spec.is_aligned:
        return AlignedMambaGroup
    for spec_type, found in GROUP_TYPES:
        if type(spec) is spec_type:
            return found
    raise UnsupportedError(f"groups of {type(spec).__name__}", "kvref")


def build_groups(
    config: ManagerConfig,
    specs: list[LayerSpec],
    pool: BlockPool,
    events: EventLog,
) -> list[Group]:
    """Make the groups of a checked configuration, and reserve sink blocks."""
    eagle, is_inside = eagle_groups(config, specs), looks_inside(config)
    built: list[Group] = []
    for index, spec in enumerate(specs):
        context = GroupContext(
            index=index,
            spec=spec,
            block_size_tokens=spec.block_size * config.dcp_world_size * config.pcp_world_size,
            hash_block_size_tokens=config.hash_block_size_tokens or 1,
            alignment_tokens=alignment(config),
            drops_eagle_block=index in eagle,
            max_model_len_tokens=config.max_model_len_tokens,
            max_num_batched_tokens=config.max_num_batched_tokens or config.max_model_len_tokens,
            retention_interval_tokens=config.retention_interval_tokens,
            null_prefix_is_hit=config.policy.chunked_null_prefix_is_hit,
            is_zeroed=is_zeroed(config, specs, spec),
            keeps_leading_nulls=config.policy.popped_leading_nulls,
            counts_common_prefix=config.policy.counts_common_prefix,
            has_partial_tails=config.policy.full_partial_tails or is_inside,
            eagle_looks_beyond=config.policy.eagle_looks_beyond,
            drafts_hold_states=config.policy.drafts_hold_states,
            checkpoints_return=config.policy.checkpoints_return,
            some_group_drops=bool(eagle),
            num_last_tokens=max(1, config.hash_lookahead_tokens),
            replays_before_drop=config.policy.eagle_replays_before_drop and bool(eagle),
            replay_block_tokens=config.scheduler_block_size_tokens or 1,
        )
        made = inside_class(spec) if is_inside else group_class(spec)
        built.append(made(context, pool, events))
        if spec.num_sink_blocks:  # KV-FULL-8
            pool.set_aside(spec.num_sink_blocks)
    return built


def is_zeroed(config: ManagerConfig, specs: list[LayerSpec], spec: LayerSpec) -> bool:
    """Return whether new blocks of this spec are queued for zeroing (KV-GRP-10, KV-POL-13)."""
    if config.policy.zeroed_blocks == "full_attention":
        return type(spec) in ZEROED_SPECS
    formats = {(s.dtype, s.kv_quant_mode) for s in specs if isinstance(s, AttentionSpec)}
    is_mixed = len(formats) > 1 or any(s.is_state for s in specs)
    return is_mixed and isinstance(spec, AttentionSpec) and spec.prefix_cacheable


def eagle_groups(config: ManagerConfig, specs: list[LayerSpec]) -> set[int]:
    """Return the groups whose hits drop a block: flagged, or of an equal spec (KV-CFG-8)."""
    if config.hash_lookahead_tokens > 0:  # KV-HASH-14
        return set()
    flagged = {i for i, group in enumerate(config.kv_cache.groups) if group.is_eagle_group}
    if not config.use_eagle and not config.policy.eagle_flag_counts_alone:  # KV-POL-16
        return set()
    if config.use_eagle and not flagged:
        return set(range(len(specs)))
    return {i for i, spec in enumerate(specs) if any(spec == specs[j] for j in flagged)}


def build_coordinator(config: ManagerConfig, groups: list[Group]) -> Coordinator:
    """Make the coordinator for the number of groups, with or without caching."""
    if not config.enable_caching:
        return Coordinator(groups)
    if len(groups) == 1:
        return UnitaryCoordinator(groups)
    hybrid = InsideCoordinator if looks_inside(config) else HybridCoordinator
    return hybrid(groups, alignment(config))


def alignment(config: ManagerConfig) -> int:
    """Return the number of tokens that hits are multiples of (KV-COORD-2, KV-INSIDE-1)."""
    if looks_inside(config):
        return config.hash_block_size_tokens or 1
    return config.scheduler_block_size_tokens or 1
