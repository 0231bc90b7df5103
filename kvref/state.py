"""Showing the state as a snapshot, and building a state from one."""

from __future__ import annotations

from collections.abc import Sequence

from kvref.block_pool import BlockPool
from kvref.groups.base import Group
from kvref.groups.mamba import MambaGroup
from kvref.groups.mamba_align import AlignedMambaGroup
from kvspec.snapshot import MambaState, RequestState, Snapshot


def take_snapshot(
    pool: BlockPool, groups: Sequence[Group], popped: Sequence[int], none_hash: bytes
) -> Snapshot:
    """The abstract state of a pool and its groups."""
    names = {name for group in groups for name, blocks in group.block_lists.items() if blocks}
    names |= {name for group in groups for name in group.num_cached}
    return Snapshot(
        num_blocks=pool.num_blocks,
        free_queue=tuple(pool.free_queue),
        ref_counts=tuple(pool.ref_counts),
        block_keys=tuple(tuple(keys) for keys in pool.keys),
        lookup_order={key: tuple(blocks) for key, blocks in pool.cached.items()},
        covered_tokens=tuple(
            covered if keys else 0
            for covered, keys in zip(pool.primary_num_tokens, pool.keys, strict=True)
        ),
        none_hash=none_hash,
        requests={
            name: RequestState(
                block_ids=tuple(tuple(group.blocks_of(name)) for group in groups),
                num_cached_blocks=tuple(group.num_cached.get(name) for group in groups),
                mamba=tuple(mamba_state(group, name) for group in groups),
            )
            for name in sorted(names)
        },
        popped_blocks=tuple(sorted(popped)),
        new_block_ids=tuple(tuple(group.new_block_ids) for group in groups),
        step_keys=tuple(
            frozenset(group.step_keys) if isinstance(group, MambaGroup) else frozenset()
            for group in groups
        ),
        reserved_blocks=tuple(pool.reserved),
    )


def mamba_state(group: Group, name: str) -> MambaState | None:
    """What an align-mode Mamba group remembers of the request."""
    if not isinstance(group, AlignedMambaGroup):
        return None
    return MambaState(name in group.allocated)


def restore_mamba_state(group: AlignedMambaGroup, name: str, state: MambaState) -> None:
    """The other way."""
    if state.has_allocated:
        group.allocated.add(name)


def restore_snapshot(
    snapshot: Snapshot, pool: BlockPool, groups: Sequence[Group], popped: list[int]
) -> None:
    """Put a fresh pool and its groups into the state of `snapshot`.

    Members with an entry per group may be left out of a snapshot, so those are as long or empty.
    """
    pool.free_queue = list(snapshot.free_queue)
    pool.ref_counts = list(snapshot.ref_counts)
    pool.keys = [list(keys) for keys in snapshot.block_keys]
    pool.cached = {key: list(blocks) for key, blocks in snapshot.lookup_order.items()}
    pool.primary_num_tokens = list(snapshot.covered_tokens)
    pool.reserved = list(snapshot.reserved_blocks)
    for name, state in snapshot.requests.items():
        for group, blocks, count in zip(
            groups, state.block_ids, state.num_cached_blocks, strict=True
        ):
            if blocks:
                group.block_lists[name] = list(blocks)
            if count is not None:
                group.num_cached[name] = count
        for group, mamba in zip(groups, state.mamba, strict=False):
            if isinstance(group, AlignedMambaGroup) and mamba is not None:
                restore_mamba_state(group, name, mamba)
    for group, blocks in zip(groups, snapshot.new_block_ids, strict=False):
        group.new_block_ids = list(blocks)
    for group, keys in zip(groups, snapshot.step_keys, strict=False):
        if isinstance(group, MambaGroup):
            group.step_keys = set(keys)
    popped.extend(snapshot.popped_blocks)
