"""Make a move: convert a scheduler's decision to operations, and return its world afterwards."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias

from kvcheck.explore.batches import play_batch, play_wrong_batch, return_copies
from kvcheck.explore.bounds import Configuration
from kvcheck.explore.state import Do, Move, State, World
from kvcheck.play.scheduler import EMPTY, LOADING, RUNNING, Seat
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


def play(configuration: Configuration, state: State, move: Move, do: Do) -> World | None:
    """Return the world after the move; None where the move is not possible."""
    return PLAYS[move[0]](configuration, state, move, do)


def _admit(configuration: Configuration, state: State, move: Move, do: Do) -> World | None:
    _, number, prompt, option, left = move
    admission, name = configuration.admissions[option], configuration.name_of(number)
    seat = state.world.seats[number]
    if prompt is not None:
        seat = Seat.of(prompt)
        do("new_request", name, {"prompt_token_ids": list(prompt)})
    hit_tokens, hit = 0, None
    if admission.own_hits:
        longest = {"max_cache_hit_length": len(seat.tokens) - 1}
        found = do("find_longest_cache_hit_per_group", name, longest)
        hit_tokens, hit = max(found["hit_lengths"]), found["blocks"]
    elif admission.look_up:
        found = do("get_computed_blocks", name, {"num_preemptions": int(prompt is None)})
        hit_tokens, hit = found["num_computed_tokens"], found["blocks"]
    external = admission.external_tokens
    new = 0 if admission.load_later else len(seat.tokens) - hit_tokens - external - left
    if new < 0 or new + external == 0 or hit_tokens + external + new > len(seat.tokens):
        return None
    granted = do(
        "allocate_slots",
        name,
        seat.asks(
            new,
            num_new_computed_tokens=hit_tokens,
            new_computed_blocks=hit if hit_tokens else None,
            num_external_computed_tokens=external,
            delay_cache_blocks=admission.load_later or admission.delayed,
            num_lookahead_tokens=admission.lookahead_tokens,
            full_sequence_must_fit=admission.must_fit,
            reserved_blocks=admission.reserved_blocks,
            has_scheduled_reqs=admission.others_scheduled,
        ),
    )
    if granted is None:
        return state.world
    later = admission.load_later
    seat = seat.granted(new, num_hit=hit_tokens, num_external=external, later=later)
    return state.world.with_seat(number, seat)


def _compute(configuration: Configuration, state: State, move: Move, do: Do) -> World | None:
    _, number, token, option, left = move
    computation, name = configuration.computations[option], configuration.name_of(number)
    seat = state.world.seats[number]
    if token is not None:
        do("append_tokens", name, {"token_ids": [token]})
        seat = seat.appended([token])
    if len(seat.tokens) + computation.num_drafts > configuration.config.max_model_len_tokens:
        return None
    new = seat.num_pending - left
    granted = do(
        "allocate_slots",
        name,
        seat.asks(
            new + computation.num_drafts,
            num_lookahead_tokens=computation.lookahead_tokens,
            delay_cache_blocks=computation.delayed,
        ),
    )
    if granted is None:
        return state.world.with_seat(number, seat)
    accepted = configuration.tokens[:1] * computation.num_accepted
    if accepted:
        do("append_tokens", name, {"token_ids": list(accepted)})
    return state.world.with_seat(number, seat.appended(accepted).granted(new + len(accepted)))


@dataclass(frozen=True)
class Simple:
    """A move of one call about a request: its operation, its arguments, and the seat after it."""

    operation: str
    arguments: Callable[[Seat], Arguments] = lambda seat: {}
    after: Callable[[Seat], Seat] = lambda seat: seat

    def __call__(self, configuration: Configuration, state: State, move: Move, do: Do) -> World:
        number, seat = move[1], state.world.seats[move[1]]
        do(self.operation, configuration.name_of(number), self.arguments(seat))
        return state.world.with_seat(number, self.after(seat))


def _pop(configuration: Configuration, state: State, move: Move, do: Do) -> World | None:
    if len(state.world.popped) == configuration.max_popped:
        return None
    blocks = tuple(do("pop_blocks_for_free", configuration.name_of(move[1])))
    world = state.world.with_seat(move[1], Seat())
    return World(world.seats, (*world.popped, blocks)) if blocks else world


def _return(configuration: Configuration, state: State, move: Move, do: Do) -> World:
    """Return the last popped blocks, in reverse order."""
    _, number, count = move
    popped = state.world.popped
    blocks, kept = popped[number][-count:], popped[number][:-count]
    do("free_blocks", None, {"block_ids": list(blocks[::-1])})
    rest = (*popped[:number], *((kept,) if kept else ()), *popped[number + 1 :])
    return World(state.world.seats, rest)


def _partial(configuration: Configuration, state: State, move: Move, do: Do) -> World | None:
    _, number, group, num_tokens = move
    config = configuration.config
    size = config.managed_specs[group].block_size
    hash_size = config.hash_block_size_tokens or size
    name = configuration.name_of(number)
    lists = state.snapshot.requests[name].block_ids[group]
    if num_tokens % hash_size or num_tokens % size == 0 or num_tokens > len(lists) * size:
        return None
    do("cache_partial_block", name, {"group": group, "num_tokens": num_tokens})
    return state.world


def _evict(configuration: Configuration, state: State, move: Move, do: Do) -> World:
    do("evict_blocks", None, {"block_ids": list(move[1])})
    return state.world


def _ask(configuration: Configuration, state: State, move: Move, do: Do) -> World:
    """Make every call that changes nothing (KV-MGR-2)."""
    name, seat = configuration.name_of(move[1]), state.world.seats[move[1]]
    config = configuration.config
    do("get_block_ids", name)
    do("get_num_common_prefix_blocks", name)
    tokens = config.max_model_len_tokens
    need = {
        "num_tokens": tokens,
        "total_computed_tokens": seat.num_computed,
        "num_tokens_main_model": tokens,
    }
    do("get_num_blocks_to_allocate", name, need)
    do("get_num_blocks_to_allocate", name, {**need, "apply_admission_cap": True})
    if config.enable_caching and len(config.kv_cache.groups) > 1:
        asked = {"max_cache_hit_length": len(seat.tokens)}
        do("find_longest_cache_hit_per_group", name, asked)
    return state.world


def _illegal(configuration: Configuration, state: State, move: Move, do: Do) -> World | None:
    _, number, kind = move
    call, seat = ILLEGAL[kind], state.world.seats[number]
    if call.on_request and seat.phase == EMPTY:
        return None
    arguments = call.arguments(configuration.config, state, number)
    if arguments is None:
        return None
    name = configuration.name_of(number) if call.on_request else None
    do(call.operation, name, arguments, illegal=call.rule)
    return state.world


def _step(configuration: Configuration, state: State, move: Move, do: Do) -> World:
    """Begin a step; until then the copies of the one before keep their references."""
    return_copies(configuration, do)
    do("new_step_starts")
    return state.world


def _plain(operation: str) -> Callable[[Configuration, State, Move, Do], World]:
    def plain(configuration: Configuration, state: State, move: Move, do: Do) -> World:
        do(operation)
        return state.world

    return plain


_FREE = Simple("free", after=lambda seat: Seat())

PLAYS: Mapping[str, Callable[[Configuration, State, Move, Do], World | None]] = {
    "admit": _admit,
    "compute": _compute,
    "finish_load": Simple(
        "cache_blocks", lambda seat: {"num_computed_tokens": seat.num_loading}, Seat.loaded
    ),
    "free": _FREE,
    "give_up": _FREE,  # a preempted request, which holds nothing (KV-ERR-4)
    "preempt": Simple("free", after=Seat.preempted),
    "pop": _pop,
    "return": _return,
    "skip": Simple(
        "remove_skipped_blocks", lambda seat: {"total_computed_tokens": seat.num_computed}
    ),
    "cache": Simple("cache_blocks", lambda seat: {"num_computed_tokens": seat.num_computed}),
    "partial": _partial,
    "evict": _evict,
    "reset": _plain("reset_prefix_cache"),
    "step": _step,
    "batch": play_batch,
    "ask": _ask,
    "illegal": _illegal,
    "wrong_batch": play_wrong_batch,
}
