"""Calls that no caller may make. Each must raise a typed error and change nothing (KV-ERR-2)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from kvspec.blocks import KVCacheBlocks
from kvspec.interface import KVCacheManager
from kvspec.request import Request


@dataclass(frozen=True)
class Situation:
    """What an illegal call can get its hands on: a request, and whether it holds blocks."""

    manager: KVCacheManager
    request: Request
    holds_blocks: bool
    block_size: int


@dataclass(frozen=True)
class IllegalCall:
    """A named illegal call; `applies` says whether it is illegal in a situation."""

    name: str
    rule: str
    call: Callable[[Situation], object]
    applies: Callable[[Situation], bool] = lambda situation: True

    def __repr__(self) -> str:
        return self.name


def _one_block(situation: Situation, block: int) -> KVCacheBlocks:
    return KVCacheBlocks(((block,),))


ILLEGAL_CALLS: tuple[IllegalCall, ...] = (
    IllegalCall("no_tokens_at_all", "KV-MGR-3", lambda s: s.manager.allocate_slots(s.request, 0)),
    IllegalCall("negative_tokens", "KV-MGR-3", lambda s: s.manager.allocate_slots(s.request, -1)),
    IllegalCall(
        "negative_lookahead",
        "KV-ERR-2",
        lambda s: s.manager.allocate_slots(s.request, 1, num_lookahead_tokens=-1),
    ),
    IllegalCall(
        "negative_reserve",
        "KV-ERR-2",
        lambda s: s.manager.allocate_slots(s.request, 1, reserved_blocks=-1),
    ),
    IllegalCall(
        "hit_tokens_without_blocks",
        "KV-MGR-8",
        lambda s: s.manager.allocate_slots(s.request, 1, num_new_computed_tokens=s.block_size),
    ),
    IllegalCall(
        "hit_on_an_uncached_block",
        "KV-MGR-8",
        lambda s: s.manager.allocate_slots(
            s.request,
            1,
            num_new_computed_tokens=s.block_size,
            new_computed_blocks=_one_block(s, s.manager.snapshot().free_queue[0]),
        ),
        lambda s: (
            not s.holds_blocks
            and bool(s.manager.snapshot().free_queue)
            and not s.manager.snapshot().block_keys[s.manager.snapshot().free_queue[0]]
        ),
    ),
    IllegalCall(
        "null_as_a_hit",
        "KV-MGR-8",
        lambda s: s.manager.allocate_slots(
            s.request,
            1,
            num_new_computed_tokens=s.block_size,
            new_computed_blocks=_one_block(s, 0),
        ),
    ),
    IllegalCall(
        "hit_outside_the_pool",
        "KV-ERR-3",
        lambda s: s.manager.allocate_slots(
            s.request,
            1,
            num_new_computed_tokens=s.block_size,
            new_computed_blocks=_one_block(s, s.manager.config.kv_cache.num_blocks),
        ),
    ),
    IllegalCall("evict_below_zero", "KV-ERR-3", lambda s: s.manager.evict_blocks([-1])),
    IllegalCall(
        "evict_outside_the_pool",
        "KV-ERR-3",
        lambda s: s.manager.evict_blocks([0, s.manager.config.kv_cache.num_blocks]),
    ),
    IllegalCall(
        "free_a_block_that_was_not_popped",
        "KV-POOL-9",
        lambda s: s.manager.free_blocks(_not_popped(s)),
        lambda s: bool(_not_popped(s)),
    ),
    IllegalCall(
        "free_outside_the_pool",
        "KV-ERR-3",
        lambda s: s.manager.free_blocks([s.manager.config.kv_cache.num_blocks]),
    ),
    IllegalCall(
        "cache_more_than_there_is",
        "KV-MGR-11",
        lambda s: s.manager.cache_blocks(s.request, s.request.num_tokens + 1),
        lambda s: s.holds_blocks,
    ),
    IllegalCall(
        "skip_below_zero", "KV-ERR-2", lambda s: s.manager.remove_skipped_blocks(s.request, -1)
    ),
)


def _not_popped(situation: Situation) -> list[int]:
    """One block that nobody popped, if there is one."""
    snapshot = situation.manager.snapshot()
    return [b for b in range(1, snapshot.num_blocks) if b not in snapshot.popped_blocks][:1]
