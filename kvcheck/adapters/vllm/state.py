"""The abstract state, read from vLLM's block pool and its managers of one group each."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from kvcheck.adapters.vllm.library import Library
from kvspec.snapshot import MambaState, RequestState, Snapshot


def take_snapshot(
    library: Library, manager: Any, popped: Sequence[int], none_hash: bytes
) -> Snapshot:
    pool, groups = manager.block_pool, manager.coordinator.single_type_managers
    blocks = pool.blocks
    names = {name for group in groups for name, held in group.req_to_blocks.items() if held}
    names |= {name for group in groups for name in group.num_cached_block}
    return Snapshot(
        num_blocks=len(blocks),
        free_queue=block_ids(pool.free_block_queue.get_all_free_blocks()),
        # The null block's count is not maintained.
        ref_counts=tuple(0 if block.is_null else int(block.ref_cnt) for block in blocks),
        block_keys=tuple(_keys(pool, block) for block in blocks),
        lookup_order={
            bytes(key): _carriers(found)
            for key, found in pool.cached_block_hash_to_block._cache.items()
        },
        covered_tokens=tuple(int(block.block_hash_num_tokens or 0) for block in blocks),
        none_hash=none_hash,
        requests={name: _request_state(library, groups, name) for name in sorted(names)},
        popped_blocks=tuple(sorted(popped)),
        new_block_ids=tuple(tuple(map(int, group.new_block_ids)) for group in groups),
        step_keys=tuple(
            frozenset(map(bytes, getattr(group, "cached_blocks_this_step", ()))) for group in groups
        ),
        pending_copies=_pending_copies(groups),
    )


def _pending_copies(groups: Sequence[Any]) -> tuple[tuple[tuple[int, int], ...], ...]:
    """Return source and destination of pending copies; 0.24 has none."""
    waiting = [getattr(group, "_pending_cow_copies", ()) for group in groups]
    if not any(waiting):
        return ()
    return tuple(
        tuple((int(source.block_id), int(target.block_id)) for source, target in pairs)
        for pairs in waiting
    )


def block_ids(blocks: Iterable[Any]) -> tuple[int, ...]:
    return tuple(int(block.block_id) for block in blocks)


def _keys(pool: Any, block: Any) -> tuple[bytes, ...]:
    """Return the primary key, then the further ones, which vLLM keeps without order."""
    if block.block_hash is None:
        return ()
    further = pool.cached_block_hashes_by_block.get(block.block_id, ())
    return (bytes(block.block_hash), *sorted(map(bytes, further)))


def _carriers(found: Any) -> tuple[int, ...]:
    """Return one block, or those of a mapping in order of insertion."""
    return block_ids(found.values() if isinstance(found, dict) else (found,))


def _request_state(library: Library, groups: Sequence[Any], name: str) -> RequestState:
    return RequestState(
        block_ids=tuple(block_ids(group.req_to_blocks.get(name, ())) for group in groups),
        num_cached_blocks=tuple(group.num_cached_block.get(name) for group in groups),
        mamba=tuple(_mamba_state(library, group, name) for group in groups),
    )


def _mamba_state(library: Library, group: Any, name: str) -> MambaState | None:
    if not isinstance(group, library.groups.MambaManager) or group.mamba_cache_mode != "align":
        return None
    return MambaState(name in group._allocated_block_reqs)
