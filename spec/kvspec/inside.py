"""Hits that end inside a block: when they occur, and what a manager then also returns
(KV-INSIDE-*).

They are a feature, `Feature.HITS_INSIDE_BLOCKS`, and a choice (KV-POL-24).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

from kvspec.config import ManagerConfig
from kvspec.interface import KVCacheManager
from kvspec.specs import LayerSpec


@dataclass(frozen=True)
class BlockCopies:
    """Copies to make before the forward pass of the step (KV-INSIDE-3, KV-INSIDE-4).

    `pairs`: (source, destination) block ids. `retained`: one extra reference for each time a block
    is named; when the step is over, return them through `free_blocks` in this order.
    """

    pairs: tuple[tuple[int, int], ...] = ()
    retained: tuple[int, ...] = ()


@runtime_checkable
class CopyingManager(KVCacheManager, Protocol):
    """A manager with Feature.HITS_INSIDE_BLOCKS.

    A look-up's hit may then be no multiple of a group's block size; the last entry of that group's
    list is the block that the hit ends in.
    """

    def take_block_copies(self) -> BlockCopies:
        """Return the copies that allocations since the last call need, in the order of the groups.

        Call it after the allocations of a step, before its forward pass.
        """


def hash_block_size(config: ManagerConfig) -> int:
    """Return the tokens per hash, for several groups without context parallelism (KV-CFG-5)."""
    sizes = [spec.block_size for spec in config.managed_specs if spec.prefix_cacheable]
    return config.hash_block_size_tokens or math.gcd(*sizes)


def hits_end_inside(config: ManagerConfig) -> bool:
    """Return whether hits may end inside a block (KV-INSIDE-1)."""
    if not config.policy.hits_inside_blocks or not config.enable_caching:
        return False
    specs = config.managed_specs
    if len(specs) < 2 or config.dcp_world_size * config.pcp_world_size > 1:
        return False
    h = hash_block_size(config)
    is_finer = any(spec.is_aligned and h < spec.block_size for spec in specs)
    return is_finer and all(
        spec.block_size == h or not spec.prefix_cacheable or spec.is_full_attention or spec.is_state
        for spec in specs
    )


def leaves_states_inside(config: ManagerConfig) -> bool:
    """Return whether chunks leave states inside blocks where hits do not end (KV-INSIDE-19)."""
    if not config.policy.hits_inside_blocks or not config.enable_caching:
        return False
    specs = [spec for spec in config.managed_specs if spec.prefix_cacheable]
    if len(specs) < 2 or config.dcp_world_size * config.pcp_world_size > 1:
        return False
    has_checkpoints = any(spec.has_checkpoints for spec in specs)
    return has_checkpoints and all(spec.block_size == hash_block_size(config) for spec in specs)


def looks_inside(config: ManagerConfig) -> bool:
    """Return whether hits end inside blocks or states are left there."""
    return hits_end_inside(config) or leaves_states_inside(config)


def last_boundary(num_tokens: int, config: ManagerConfig) -> int:
    """Return the last place where a request with these tokens can continue (KV-INSIDE-11)."""
    h = hash_block_size(config)
    if hits_drop(config):
        return max(num_tokens // h * h - h, 0)
    return max(num_tokens - max(1, config.hash_lookahead_tokens), 0) // h * h


def hits_drop(config: ManagerConfig) -> bool:
    """Return whether some group drops the end of its hits (KV-CFG-8, KV-POL-16, KV-HASH-14)."""
    is_flagged = any(group.is_eagle_group for group in config.kv_cache.groups)
    counts = config.use_eagle or (is_flagged and config.policy.eagle_flag_counts_alone)
    return counts and config.hash_lookahead_tokens == 0


@dataclass(frozen=True)
class Chunk:
    """Tokens `start` … `end - 1` of one step, of an align group with blocks of `size` tokens."""

    start: int
    end: int
    size: int

    @property
    def checkpoint_entry(self) -> int:
        """List entry that keeps a state inside the chunk."""
        return -(-self.end // self.size) - 2

    def checkpoint(self, spec: LayerSpec, config: ManagerConfig) -> int:
        """Return the tokens before the state left inside the chunk; 0 for none (KV-INSIDE-5)."""
        step, h = spec.checkpoint_step_tokens, hash_block_size(config)
        position = last_boundary(self.end, config)
        if step == 0 or self.start % h:
            return 0
        is_behind = self.start + h <= position
        is_beyond = self.checkpoint_entry > (self.start - 1) // self.size
        is_there = is_behind and is_beyond and (position - self.start) % step == 0
        return position if is_there else 0
