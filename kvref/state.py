"""Show the state as a snapshot, and build a state from one."""

from __future__ import annotations

from collections.abc import Sequence

from kvref.block_pool import BlockPool
from kvref.groups.base import Group
from kvspec.snapshot import RequestState, Snapshot


def take_snapshot(
    pool: BlockPool, groups: Sequence[Group], popped: Sequence[int], none_hash: bytes
) -> Snapshot:
    """Return the abstract state of a pool and its groups."""
    names = {name for group in groups for name, blocks in group.block_lists.items() if blocks}
    names |= {name for group in groups for name in group.num_cached}
    return Snapshot(
        num_blocks=pool.num_blocks,
        free_queue=tuple(pool.free_queue),
        ref_counts=tuple(pool.ref_counts),
        block_keys=tuple(map(tuple, pool.keys)),
        lookup_order={key: tuple(blocks) for key, blocks in pool.cached.items()},
        covered_tokens=tuple(
            covered if keys else 0
            for covered, keys in zip(pool.primary_num_tokens, pool.keys, strict=True)
        ),
        none_hash=none_hash,
        requests={
            name: RequestState(
                block_ids=tuple(group.blocks_of(name) for group in groups),
                num_cached_blocks=tuple(group.num_cached.get(name) for group in groups),
                mamba=tuple(group.mamba_state(name) for group in groups),
            )
            for name in sorted(names)
        },
        popped_blocks=tuple(sorted(popped)),
        new_block_ids=tuple(tuple(group.new_block_ids) for group in groups),
        step_keys=tuple(group.keys_of_step() for group in groups),
        reserved_blocks=tuple(pool.reserved),
        pending_copies=tuple(tuple(group.pending_copies) for group in groups)
        if any(group.pending_copies for group in groups)
        else (),
        written_from=dict(pool.written_from),
        ranks=()
        if pool.order == "lru"
        else tuple(rank if keys else 0 for rank, keys in zip(pool.ranks, pool.keys, strict=True)),
    )


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
        for group in groups:
            group.restore_request(name, state)
    for group, blocks in zip(groups, snapshot.new_block_ids, strict=False):
        group.new_block_ids = list(blocks)
    for group, keys in zip(groups, snapshot.step_keys, strict=False):
        group.restore_step(keys)
    for group, pairs in zip(groups, snapshot.pending_copies, strict=False):
        group.pending_copies = list(pairs)
    pool.written_from = dict(snapshot.written_from)
    if snapshot.ranks:
        pool.ranks = list(snapshot.ranks)
    popped.extend(snapshot.popped_blocks)
