"""A state of the graph: the manager's snapshot, and its scheduler's data.

Two states are equal exactly when their fingerprints are (128 bits, so that a collision among 10^7
states has a chance below 10^-24). Nothing that decides a later result is left out of a fingerprint:
queues are drained after every call, so they are empty in every state.
"""

from __future__ import annotations

import marshal
from collections.abc import Mapping
from hashlib import blake2b
from typing import Any, NamedTuple, Protocol, TypeAlias

from kvcheck.play.scheduler import Seat
from kvspec.snapshot import RequestState, Snapshot

FINGERPRINT_BYTES = 16

MARSHAL_VERSION = 2
"""Later versions write an object used twice as a reference: equal values, different bytes."""

BATCHED_STEP = "batched_step"
"""A whole engine step as an operation: the fields of a `StepPlan`, requests by their names."""


class World(NamedTuple):
    """The scheduler's side: its requests, and for each deferred free the blocks still popped."""

    seats: tuple[Seat, ...]
    popped: tuple[tuple[int, ...], ...] = ()

    def with_seat(self, number: int, seat: Seat) -> World:
        seats = (*self.seats[:number], seat, *self.seats[number + 1 :])
        return World(seats, self.popped)


def start(num_requests: int) -> World:
    return World((Seat(),) * num_requests)


class State(NamedTuple):
    snapshot: Snapshot
    world: World


Move: TypeAlias = tuple[Any, ...]
"""One edge: the name of a scheduler's decision, then plain values (`kvcheck.explore.edges`)."""


class Do(Protocol):
    """Performs one operation of a record, checks it and returns its result (None for an error)."""

    def __call__(
        self,
        name: str,
        request_id: str | None = None,
        arguments: Mapping[str, Any] | None = None,
        *,
        illegal: str | None = None,
    ) -> Any:
        """Perform it; `illegal`: the rule by which it must end with an error."""


def fingerprint(manager: bytes, world: World, *, prompt_matters: bool) -> bytes:
    plain = (seats_of(world, prompt_matters=prompt_matters), world.popped)
    return blake2b(
        marshal.dumps(plain, MARSHAL_VERSION), digest_size=FINGERPRINT_BYTES, key=manager
    ).digest()


def seats_of(world: World, *, prompt_matters: bool) -> tuple[tuple[Any, ...], ...]:
    """Return the requests as plain values.

    Where no rule reads the length of a prompt (it decides what retention keeps), generated tokens
    are like those of a prompt.
    """
    if prompt_matters:
        return tuple(map(tuple, world.seats))
    return tuple((*seat[:2], *seat[3:]) for seat in world.seats)


def manager_bytes(snapshot: Snapshot) -> bytes:
    """Return a fingerprint of a whole snapshot, so that equal ones need to be checked once."""
    plain = (
        snapshot.num_blocks,
        snapshot.free_queue,
        snapshot.ref_counts,
        snapshot.block_keys,
        sorted(snapshot.lookup_order.items()),
        snapshot.covered_tokens,
        snapshot.none_hash,
        [(name, _plain(state)) for name, state in sorted(snapshot.requests.items())],
        snapshot.popped_blocks,
        snapshot.new_block_ids,
        [sorted(keys) for keys in snapshot.step_keys],
        snapshot.reserved_blocks,
        snapshot.pending_copies,
        sorted(snapshot.written_from.items()),
        snapshot.ranks,
    )
    data = marshal.dumps(plain, MARSHAL_VERSION)
    return blake2b(data, digest_size=FINGERPRINT_BYTES).digest()


def _plain(state: RequestState) -> tuple[object, ...]:
    marks = tuple(None if mark is None else mark.has_allocated for mark in state.mamba)
    return state.block_ids, state.num_cached_blocks, marks
