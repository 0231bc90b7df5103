"""Illegal operations, as programs make them (KV-ERR-2)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from kvcheck.play.shadow.content_check import first_token_read
from kvspec.blocks import NULL_BLOCK
from kvspec.interface import Feature

if TYPE_CHECKING:
    from kvcheck.play.runner import Runner, Tracked


@dataclass(frozen=True)
class IllegalOperation:
    """An illegal operation; `arguments` returns None where it would be legal.

    `feature`: what a subject must have to be asked, where the operation alone does not say.
    """

    name: str
    rule: str
    operation: str
    arguments: Callable[[Runner, Tracked], dict[str, Any] | None]
    on_request: bool = True
    feature: Feature | None = None


def _hit_of(runner: Runner, request: Tracked, block: int) -> dict[str, Any] | None:
    """Return a made-up hit of one block in a single group."""
    if len(runner.config.kv_cache.groups) != 1:
        return None
    size = runner.config.scheduler_block_size_tokens or 1
    return request.seat.asks(1, num_new_computed_tokens=size, new_computed_blocks=[[block]])


def _uncached_hit(runner: Runner, request: Tracked) -> dict[str, Any] | None:
    snapshot = runner.view.snapshot
    free = [block for block in snapshot.free_queue if not snapshot.block_keys[block]]
    if not free or request.seat.holds_blocks:
        return None
    return _hit_of(runner, request, free[0])


def _null_hit(runner: Runner, request: Tracked) -> dict[str, Any] | None:
    """Return a hit of null, unless no token of the block is read again, as with a window of 1."""
    size = runner.config.scheduler_block_size_tokens or 1
    if any(first_token_read(spec, size) >= size for spec in runner.config.managed_specs):
        return None
    return _hit_of(runner, request, NULL_BLOCK)


def _hit_tokens_alone(runner: Runner, request: Tracked) -> dict[str, Any]:
    size = runner.config.scheduler_block_size_tokens or 1
    return request.seat.asks(1, num_new_computed_tokens=size)


def _short_list(runner: Runner, request: Tracked) -> dict[str, Any] | None:
    """Return own hits of unequal length without a load of what the shorter ones lack."""
    config, player = runner.config, runner.subject.player
    if request.seat.holds_blocks or not config.enable_caching or len(config.kv_cache.groups) < 2:
        return None
    own = player.manager.find_longest_cache_hit_per_group(
        player.requests[request.name], len(request.seat.tokens) - 1
    )
    specs = zip(own.hit_lengths_tokens, config.managed_specs, strict=True)
    lengths = [length for length, spec in specs if spec.prefix_cacheable]
    longest = max(lengths)
    if longest == min(lengths):
        return None
    hits = own.blocks.to_lists()
    return request.seat.asks(1, num_new_computed_tokens=longest, new_computed_blocks=hits)


def _not_popped(runner: Runner, request: Tracked) -> dict[str, Any] | None:
    snapshot = runner.view.snapshot
    blocks = [b for b in range(1, snapshot.num_blocks) if b not in snapshot.popped_blocks]
    return {"block_ids": blocks[:1]} if blocks else None


def _cached_and_outside(runner: Runner, request: Tracked) -> dict[str, Any]:
    """Return a cached block and one outside; evicting the first before the error is a fault."""
    keys = runner.view.snapshot.block_keys
    cached = [block for block, held in enumerate(keys) if held]
    return {"block_ids": [*cached[:1], runner.config.kv_cache.num_blocks]}


def _too_much_to_cache(runner: Runner, request: Tracked) -> dict[str, Any] | None:
    if not any(runner.subject.blocks(request)):  # then nothing happens, even with too many
        return None
    if runner.config.policy.caching_beyond_tokens == "cut":  # legal then (KV-POL-22)
        return None
    return {"num_computed_tokens": len(request.seat.tokens) + 1}


ILLEGAL_OPERATIONS: tuple[IllegalOperation, ...] = (
    IllegalOperation("no tokens at all", "KV-MGR-3", "allocate_slots", lambda u, r: r.seat.asks(0)),
    IllegalOperation("negative tokens", "KV-ERR-2", "allocate_slots", lambda u, r: r.seat.asks(-1)),
    IllegalOperation(
        "negative lookahead",
        "KV-ERR-2",
        "allocate_slots",
        lambda u, r: r.seat.asks(1, num_lookahead_tokens=-1),
        feature=Feature.DRAFTING,
    ),
    IllegalOperation("a hit that is not cached", "KV-MGR-8", "allocate_slots", _uncached_hit),
    IllegalOperation("null as a hit", "KV-MGR-8", "allocate_slots", _null_hit),
    IllegalOperation(
        "a hit outside the pool",
        "KV-ERR-3",
        "allocate_slots",
        lambda u, r: _hit_of(u, r, u.config.kv_cache.num_blocks),
    ),
    IllegalOperation(
        "evict block -1", "KV-ERR-3", "evict_blocks", lambda u, r: {"block_ids": [-1]}, False
    ),
    IllegalOperation(
        "evict outside the pool", "KV-ERR-3", "evict_blocks", _cached_and_outside, False
    ),
    IllegalOperation(
        "free outside the pool",
        "KV-ERR-3",
        "free_blocks",
        lambda u, r: {"block_ids": [u.config.kv_cache.num_blocks]},
        False,
    ),
    IllegalOperation("free what was not popped", "KV-POOL-9", "free_blocks", _not_popped, False),
    IllegalOperation("cache more than there is", "KV-MGR-11", "cache_blocks", _too_much_to_cache),
    IllegalOperation(
        "negative reserve",
        "KV-ERR-2",
        "allocate_slots",
        lambda u, r: r.seat.asks(1, reserved_blocks=-1),
        feature=Feature.ADMISSION,
    ),
    IllegalOperation("hit tokens without blocks", "KV-MGR-8", "allocate_slots", _hit_tokens_alone),
    IllegalOperation(
        "skip below zero",
        "KV-ERR-2",
        "remove_skipped_blocks",
        lambda u, r: {"total_computed_tokens": -1},
    ),
    IllegalOperation(
        "a short list without a load",
        "KV-MGR-22",
        "allocate_slots",
        _short_list,
        feature=Feature.UNEQUAL_HITS,
    ),
)
"""The illegal calls of programs, by number."""
