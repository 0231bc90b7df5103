"""Checks of the arguments of a host tier, each read only once: it may differ the next time."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from kvspec.blocks import KVCacheBlocks
from kvspec.errors import InvalidArgumentError
from kvspec.request import Request


def plain(value: Any) -> Any:
    """Return the int stored in an object of a subclass, and anything else unchanged."""
    is_odd = issubclass(type(value), int) and type(value) not in (int, bool)
    return int.__int__(value) if is_odd else value


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
