"""Checks of the arguments of a host tier, each read only once: it may differ the next time."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from kvspec.blocks import KVCacheBlocks
from kvspec.config import ManagerConfig
from kvspec.domains import int_at_least, is_int
from kvspec.errors import InvalidArgumentError, UnsupportedError
from kvspec.offload import OffloadConfig
from kvspec.request import Request


def plain(value: Any) -> Any:
    """Return the int stored in an object of a subclass, and anything else unchanged."""
    is_odd = issubclass(type(value), int) and type(value) not in (int, bool)
    return int.__int__(value) if is_odd else value


def host_chunks(config: ManagerConfig, num_blocks: int, name: str) -> OffloadConfig:
    """Return the chunks of a host tier, a block each; raise if it can't be made (KV-TIER-8)."""
    num_blocks = plain(num_blocks)
    int_at_least("num_blocks", num_blocks, 1, error=InvalidArgumentError)
    for spec in config.managed_specs:
        is_read = spec.reads_whole_prefix or spec.window_tokens or spec.is_state
        if not is_read or not spec.prefix_cacheable or spec.extra_retained_tokens:
            raise UnsupportedError(f"a host tier for {spec.kind} groups", name)
    if config.dcp_world_size * config.pcp_world_size > 1:
        raise UnsupportedError("a host tier under context parallelism", name)
    if not config.enable_caching:
        raise UnsupportedError("a host tier without prefix caching", name)
    return OffloadConfig(num_blocks - 1)


def local_tokens(request: Request, num_local_tokens: int, config: ManagerConfig) -> int:
    """Return the hit on the device as a plain int (KV-TIER-4)."""
    check_request(request)
    local, alignment = plain(num_local_tokens), config.scheduler_block_size_tokens or 1
    if not is_int(local) or not 0 <= local <= request.num_tokens or local % alignment:
        allowed = f"a multiple of {alignment} in the text"
        raise InvalidArgumentError("num_local_tokens", local, allowed)
    return int(local)


def listed_entries(
    group: int, first: int, blocks: Sequence[int], config: ManagerConfig
) -> tuple[int, int, list[int]]:
    """Return the arguments of `computed`, copied and checked alone (KV-TIER-1)."""
    group, first = plain(group), plain(first)
    if not is_int(group) or not 0 <= group < len(config.kv_cache.groups):
        raise InvalidArgumentError("group", group, "the number of a group")
    int_at_least("first", first, 0, error=InvalidArgumentError)
    return group, first, block_list(blocks, config.kv_cache.num_blocks)


def check_request(request: Request) -> None:
    """Raise InvalidArgumentError for an object without the members of a request (KV-TIER-8)."""
    if not isinstance(request, Request):
        raise InvalidArgumentError("request", request, "made by make_request")


def check_blocks(blocks: KVCacheBlocks) -> None:
    """Raise InvalidArgumentError unless there is a list per group (KV-TIER-8)."""
    is_listed = isinstance(blocks, KVCacheBlocks) and isinstance(blocks.groups, Sequence)
    if not is_listed or isinstance(blocks.groups, memoryview):
        raise InvalidArgumentError("blocks", blocks, "KVCacheBlocks")
    for group, ids in enumerate(blocks.groups):
        if not issubclass(type(ids), Sequence) or type(ids) is memoryview:
            raise InvalidArgumentError("blocks", f"groups[{group}]", "a sequence of block ids")


def block_list(blocks: Sequence[int], num_blocks: int) -> list[int]:
    """Copy these ids, each an int in 0 … `num_blocks` - 1 (KV-TIER-8)."""
    if not issubclass(type(blocks), Sequence) or type(blocks) is memoryview:
        raise InvalidArgumentError("blocks", blocks, "a sequence of block ids")
    listed = list[int]()
    for block in map(plain, blocks):  # up to the first that is none: a range may be long
        if type(block) is not int or not 0 <= block < num_blocks:
            raise InvalidArgumentError("blocks", block, f"ids in 0 … {num_blocks - 1}")
        listed.append(block)
    return listed
