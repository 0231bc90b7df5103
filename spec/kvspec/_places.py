"""Predicates of `kvspec.invariants` about the places of blocks in lists, and their keys.

Without them the others would not be inductive: a legal call could lead from a state in which all
others hold to one in which they do not (proofs/code).
"""

from __future__ import annotations

from kvspec.blocks import NULL_BLOCK
from kvspec.config import ManagerConfig
from kvspec.snapshot import Snapshot

GROUP_SIZE_BYTES = 4


def group_of_key(key: bytes) -> int:
    """Return the group index at the end of a cache key (KV-HASH-6)."""
    return int.from_bytes(key[-GROUP_SIZE_BYTES:], "big")


def nulls_come_first(config: ManagerConfig, snapshot: Snapshot) -> str | None:
    """Check that lists start with their nulls.

    Only mode align pads with null after a block (KV-MAMBA-9), and full attention has none. R-SWA
    has null only after its prompt (KV-RSWA-1).
    """
    for name, state in snapshot.requests.items():
        for group, blocks in enumerate(state.block_ids):
            num_nulls = blocks.count(NULL_BLOCK)
            if not num_nulls:
                continue
            spec = config.managed_specs[group]
            if spec.rswa_window and blocks[0] != NULL_BLOCK:
                continue
            if spec.is_full_attention or spec.keeps_all_blocks:
                return f"group {group} skips nothing, but has null for request {name!r}: {blocks}"
            is_padded = spec.is_aligned
            if any(blocks[:num_nulls]) and not is_padded:
                return f"group {group} has null behind a block for request {name!r}: {blocks}"
    return None


def _is_checkpointed(config: ManagerConfig, group: int) -> bool:
    """Return whether a block of the group may hold a state of the block after its own."""
    spec = config.managed_specs[group]
    return spec.has_checkpoints


def keys_of_one_place(config: ManagerConfig, snapshot: Snapshot) -> str | None:
    """Check that a block's keys name one group, and a listed block's primary key ends inside it."""
    for block, keys in enumerate(snapshot.block_keys):
        if len(keys) < 2:
            continue
        groups = {group_of_key(key) for key in keys}
        if len(groups) > 1:
            return f"block {block} carries keys of the groups {sorted(groups)}"
    for name, state in snapshot.requests.items():
        for group, blocks in enumerate(state.block_ids):
            span, ahead = _span_tokens(config, group), _is_checkpointed(config, group)
            for index, block in enumerate(blocks):
                covered = snapshot.covered_tokens[block]
                # A state may be of the next block (KV-INSIDE-5).
                if covered and not index <= (covered - 1) // span <= index + ahead:
                    return (
                        f"block {block} is index {index} of request {name!r} in group {group},"
                        f" but its primary key covers {covered} tokens"
                    )
    return None


def keys_are_covered(config: ManagerConfig, snapshot: Snapshot) -> str | None:
    """Check that each key ends at its own hash, no later than the primary one."""
    hashed = config.hash_block_size_tokens or 1
    for block, keys in enumerate(snapshot.block_keys):
        covered = snapshot.covered_tokens[block]
        if not keys:
            if covered:
                return f"block {block} carries no key that could cover {covered} tokens"
            continue
        if covered < 1 or covered % hashed:
            return f"the primary key of block {block} covers {covered} tokens: no hash ends there"
        group, num_keys = group_of_key(keys[0]), len(set(keys))
        if num_keys > 1 and group < len(config.kv_cache.groups):
            num_ends = (covered - 1) % _span_tokens(config, group) // hashed + 1
            if num_keys > num_ends:
                return (
                    f"block {block} carries {num_keys} keys, but only {num_ends} hashes"
                    f" end in the {covered} tokens of its primary one"
                )
    return None


def blocks_set_aside_are_alone(config: ManagerConfig, snapshot: Snapshot) -> str | None:
    """Check that reserved blocks are in no list, await no return and have no key (KV-FULL-8)."""
    for block in snapshot.reserved_blocks:
        if snapshot.ref_counts[block] != 1:
            return f"block {block} is set aside, but has {snapshot.ref_counts[block]} references"
        if snapshot.block_keys[block]:
            return f"block {block} is set aside, but cached"
    return None


def _span_tokens(config: ManagerConfig, group: int) -> int:
    """Return the number of tokens that a block of the group covers (KV-FULL-5)."""
    size = config.managed_specs[group].block_size
    return size * config.dcp_world_size * config.pcp_world_size
