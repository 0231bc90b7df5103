"""Blocks and tensors: how the groups share the memory of a worker (KV-PLAN-12 … KV-PLAN-15)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from kvref.planning.pages import page_size_bytes
from kvspec.config import KVCacheConfig, KVCacheGroup, KVCacheTensor
from kvspec.planning import PlanningConfig


def config_from_groups(
    groups: Sequence[KVCacheGroup], config: PlanningConfig, available_memory_bytes: int
) -> KVCacheConfig:
    """Lay out one worker: as many blocks as the memory holds, and their tensors."""
    groups = tuple(groups)
    slots = tensor_slots(groups)
    if not slots:
        return KVCacheConfig(1, groups)  # nothing to store: only the null block
    num_blocks = num_blocks_for(groups, config, available_memory_bytes)
    if len(groups) > 1 and (config.packed_layout or len({page for page, _ in slots}) > 1):
        return KVCacheConfig(num_blocks, groups, _packed(slots, num_blocks))
    tensors = tuple(KVCacheTensor(page * num_blocks, names) for page, names in slots)
    return KVCacheConfig(num_blocks, groups, tensors)


def num_blocks_for(
    groups: Sequence[KVCacheGroup], config: PlanningConfig, available_memory_bytes: int
) -> int:
    """Return the number of blocks that fit into the memory, or were asked for (KV-PLAN-12)."""
    if config.num_blocks_override is not None:
        return config.num_blocks_override
    return max(available_memory_bytes, 0) // bytes_per_block(groups)


def bytes_per_block(groups: Sequence[KVCacheGroup]) -> int:
    """Return the bytes of one block in all tensors together (KV-PLAN-12); 0 without layers."""
    return sum(page for page, _ in tensor_slots(groups))


def tensor_slots(groups: Sequence[KVCacheGroup]) -> tuple[tuple[int, tuple[str, ...]], ...]:
    """Return each tensor's page size in bytes and the layers that share it (KV-PLAN-13).

    With one group every layer has its own tensor. With several, tensor i is shared by layer i of
    each group: a block belongs to one group at a time, so they never use it at once.
    """
    if len(groups) == 1:
        (group,) = groups
        return tuple((layer_page(group, name), (name,)) for name in group.layer_names)
    sharing: dict[tuple[int, int], list[str]] = {}
    for group in groups:
        mine = [layer_page(group, name) for name in group.layer_names]
        for i, name in enumerate(group.layer_names):
            index = mine[:i].count(mine[i])  # the layers before it with this page size
            sharing.setdefault((mine[i], index), []).append(name)
    pages = dict.fromkeys(page for page, _ in sharing)  # in order of first appearance
    return tuple(
        (page, tuple(names))
        for size in pages
        for (page, _), names in sharing.items()
        if page == size
    )


def layer_page(group: KVCacheGroup, name: str) -> int:
    """Return the bytes of one page of one layer of the group."""
    if group.spec.layers:
        return page_size_bytes(dict(group.spec.layers)[name])
    return page_size_bytes(group.spec)


def _packed(
    slots: Sequence[tuple[int, tuple[str, ...]]], num_blocks: int
) -> tuple[KVCacheTensor, ...]:
    """Place all tensors as views of one allocation, block after block (KV-PLAN-14)."""
    stride = sum(page for page, _ in slots)
    tensors, offset = [], 0
    for page, names in slots:
        tensors.append(KVCacheTensor(stride * num_blocks, names, offset, stride))
        offset += page
    return tuple(tensors)


def shrunk_to(cache: KVCacheConfig, num_blocks: int) -> KVCacheConfig:
    """Return the layout with fewer blocks and proportionally smaller tensors (KV-PLAN-15)."""
    if not cache.tensors or cache.num_blocks == num_blocks:
        return replace(cache, num_blocks=num_blocks)
    tensors = tuple(
        replace(tensor, size_bytes=tensor.size_bytes // cache.num_blocks * num_blocks)
        for tensor in cache.tensors
    )
    return replace(cache, num_blocks=num_blocks, tensors=tensors)
