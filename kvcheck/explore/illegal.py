"""Calls that no caller may make: each must raise a typed error and change nothing (KV-ERR-2)."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias

from kvcheck.explore.state import State
from kvcheck.play.scheduler import LOADING, RUNNING
from kvspec.config import ManagerConfig

Arguments: TypeAlias = dict[str, Any]


@dataclass(frozen=True)
class IllegalCall:
    """`arguments` returns None where the call would be legal, or is made for another request."""

    rule: str
    operation: str
    arguments: Callable[[ManagerConfig, State, int], Arguments | None]
    on_request: bool = True


def _nothing_asked(config: ManagerConfig, state: State, number: int) -> Arguments | None:
    seat = state.world.seats[number]
    return seat.asks(0) if seat.phase == RUNNING else None


def _beyond_slots(config: ManagerConfig, state: State, number: int) -> Arguments | None:
    """Return more computed tokens than any list has slots, lookahead included."""
    seat = state.world.seats[number]
    if seat.phase != RUNNING:
        return None
    sizes = [spec.block_size for spec in config.managed_specs]
    slots = config.max_model_len_tokens + state.snapshot.num_blocks * max(sizes)
    return seat._replace(num_computed=slots).asks(1)


def _hit_while_running(config: ManagerConfig, state: State, number: int) -> Arguments | None:
    """Return a hit for a request that holds blocks, which may take none: its own first block."""
    seat = state.world.seats[number]
    if seat.phase != RUNNING or len(config.kv_cache.groups) != 1:
        return None
    size = config.managed_specs[0].block_size
    return seat.asks(1, num_new_computed_tokens=size, new_computed_blocks=[[1]])


def _stale_hit(config: ManagerConfig, state: State, number: int) -> Arguments | None:
    """Return a block that was evicted since the look-up. A preempted request has a second token."""
    seat = state.world.seats[number]
    if seat.phase in (RUNNING, LOADING) or len(config.kv_cache.groups) != 1 or not seat.tokens:
        return None
    size, snapshot = config.managed_specs[0].block_size, state.snapshot
    stale = [block for block in snapshot.free_queue if not snapshot.block_keys[block]]
    if not stale or len(seat.tokens) <= size:
        return None
    hit: Arguments = {"num_new_computed_tokens": size, "new_computed_blocks": [stale[:1]]}
    return seat.asks(1, **hit)


def _too_much_to_cache(config: ManagerConfig, state: State, number: int) -> Arguments | None:
    seat = state.world.seats[number]
    if seat.phase not in (RUNNING, LOADING):
        return None
    return {"num_computed_tokens": len(seat.tokens) + 1}


def _not_popped(config: ManagerConfig, state: State, number: int) -> Arguments | None:
    """Return blocks that were not popped; only once, for the first request."""
    if number > 0:
        return None
    popped = state.snapshot.popped_blocks
    blocks = [block for block in range(1, state.snapshot.num_blocks) if block not in popped]
    return {"block_ids": [*dict.fromkeys(popped), *blocks[:1]]} if blocks else None


def _evict_outside(config: ManagerConfig, state: State, number: int) -> Arguments | None:
    """Return a cached block and one outside; evicting the first before the error is a fault."""
    if number > 0:
        return None
    cached = [block for block, keys in enumerate(state.snapshot.block_keys) if keys]
    return {"block_ids": [*cached[:1], state.snapshot.num_blocks]}


ILLEGAL: Mapping[str, IllegalCall] = {
    "no tokens": IllegalCall("KV-MGR-3", "allocate_slots", _nothing_asked),
    "computed without slots": IllegalCall("KV-REQ-3", "allocate_slots", _beyond_slots),
    "hit while running": IllegalCall("KV-GRP-9", "allocate_slots", _hit_while_running),
    "stale hit": IllegalCall("KV-MGR-8", "allocate_slots", _stale_hit),
    "cache too much": IllegalCall("KV-MGR-11", "cache_blocks", _too_much_to_cache),
    "free what was not popped": IllegalCall("KV-POOL-9", "free_blocks", _not_popped, False),
    "evict outside": IllegalCall("KV-ERR-3", "evict_blocks", _evict_outside, False),
}
