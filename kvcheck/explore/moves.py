"""Every possible move of a state. A move is a tuple: its name, then plain values.

A scheduler's move is one decision, such as admitting a request: a look-up and an allocation. Moves
that turn out impossible (more external tokens than there is room for) are found when they are made
(`kvcheck.explore.play`).
"""

from __future__ import annotations

from collections.abc import Iterator

from kvcheck.explore.batches import batches
from kvcheck.explore.bounds import Call, Configuration
from kvcheck.explore.illegal import ILLEGAL
from kvcheck.explore.state import Move, State
from kvcheck.play.scheduler import EMPTY, LOADING, PREEMPTED, RUNNING, Seat
from kvspec.snapshot import Snapshot


def moves(configuration: Configuration, state: State) -> Iterator[Move]:
    """Yield all moves, first those that change nothing, since the manager serves the next too."""
    calls = configuration.calls
    for number, seat in enumerate(state.world.seats):
        if Call.ASK in calls and seat.phase in (RUNNING, LOADING):
            yield "ask", number
        if Call.ILLEGAL in calls:
            yield from (("illegal", number, kind) for kind in ILLEGAL)
    for number, seat in enumerate(state.world.seats):
        yield from _of_request(configuration, number, seat)
    yield from batches(configuration, state)
    yield from _of_pool(configuration, state)


def _of_request(configuration: Configuration, number: int, seat: Seat) -> Iterator[Move]:
    """Yield the next moves of one request."""
    if seat.phase == EMPTY:
        for prompt in configuration.prompts:
            yield from _admissions(configuration, number, prompt, len(prompt))
    elif seat.phase == PREEMPTED:
        yield from _admissions(configuration, number, None, len(seat.tokens))
        yield "give_up", number
    elif seat.phase == LOADING:
        yield "finish_load", number
        yield from _ends(configuration, number)
    else:
        yield from _computations(configuration, number, seat)
        yield from _ends(configuration, number)
        yield from _registrations(configuration, number, seat)


def _admissions(
    configuration: Configuration, number: int, prompt: tuple[int, ...] | None, num_tokens: int
) -> Iterator[Move]:
    """Yield admissions; `left`: the number of tokens left for later steps."""
    for option, admission in enumerate(configuration.admissions):
        in_chunks = configuration.in_chunks and not admission.load_later
        for left in range(num_tokens if in_chunks else 1):
            yield "admit", number, prompt, option, left


def _computations(configuration: Configuration, number: int, seat: Seat) -> Iterator[Move]:
    pending = seat.num_pending
    if pending > 0:
        for option, computation in enumerate(configuration.computations):
            in_chunks = configuration.in_chunks and not computation.num_drafts
            for left in range(pending if in_chunks else 1):
                yield "compute", number, None, option, left
    elif len(seat.tokens) < configuration.config.max_model_len_tokens:
        for token in configuration.tokens:
            for option in range(len(configuration.computations)):
                yield "compute", number, token, option, 0


def _ends(configuration: Configuration, number: int) -> Iterator[Move]:
    yield "free", number
    if Call.PREEMPT in configuration.calls:
        yield "preempt", number
    if Call.POP in configuration.calls:
        yield "pop", number


def _registrations(configuration: Configuration, number: int, seat: Seat) -> Iterator[Move]:
    """Yield what a running request may register or release between two allocations."""
    if Call.SKIP in configuration.calls:
        yield "skip", number
    if Call.CACHE in configuration.calls:
        yield "cache", number
    if Call.PARTIAL in configuration.calls:
        for group in range(len(configuration.config.kv_cache.groups)):
            for num_tokens in range(1, seat.num_computed + 1):
                yield "partial", number, group, num_tokens


def _of_pool(configuration: Configuration, state: State) -> Iterator[Move]:
    calls, snapshot = configuration.calls, state.snapshot
    for number, blocks in enumerate(state.world.popped):
        yield "return", number, len(blocks)
        if len(blocks) > 1:
            yield "return", number, 1
    if Call.EVICT in calls:
        cached = cached_blocks(snapshot)
        yield from (("evict", (block,)) for block in cached)
        if len(cached) > 1:
            yield "evict", cached
    if Call.RESET in calls:
        yield ("reset",)
    if Call.STEP in calls:
        yield ("step",)


def cached_blocks(snapshot: Snapshot) -> tuple[int, ...]:
    """Return every block that a look-up could return."""
    return tuple(block for block, keys in enumerate(snapshot.block_keys) if keys)
