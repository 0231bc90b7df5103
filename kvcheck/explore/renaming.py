"""One form for all states that differ only in the names of blocks and requests.

Blocks are renumbered in the order in which they are met: in the lists of the requests, among the
popped ones, among those to be copied, in the free queue. Every block is at one of these places
(KV-POOL-15, KV-POOL-16; sinks apart, which no configuration has), so the order of requests decides
all new numbers. They are sorted by their scheduler's data; where that leaves several
orders, the one with the least form counts. So two states have one form exactly when a renaming of
blocks and requests turns one into the other.

A manager treats both alike when it uses numbers and names as such and nothing more. The reference
does; of a subject it is an assumption, and `kvspec explore --whole` does without it.
"""

from __future__ import annotations

import itertools
import marshal
from collections.abc import Iterator, Mapping, Sequence
from hashlib import blake2b
from typing import Any, NamedTuple

from kvcheck.explore.state import FINGERPRINT_BYTES, MARSHAL_VERSION, State, seats_of
from kvspec.blocks import NULL_BLOCK
from kvspec.snapshot import RequestState

NOTHING = RequestState((), ())


class Naming(NamedTuple):
    """A state's form, and the names in it.

    `seats`: seat n of the form is that of request `seats[n]`. `blocks`: block -> its number there.
    """

    form: bytes
    seats: tuple[int, ...]
    blocks: Mapping[int, int]

    @property
    def fingerprint(self) -> bytes:
        return blake2b(self.form, digest_size=FINGERPRINT_BYTES).digest()


def renamed_fingerprint(state: State, names: tuple[str, ...], *, prompt_matters: bool) -> bytes:
    return naming(state, names, prompt_matters=prompt_matters).fingerprint


def naming(state: State, names: tuple[str, ...], *, prompt_matters: bool) -> Naming:
    """Return the form of a state, with the first order of its requests that gives it."""
    seats = seats_of(state.world, prompt_matters=prompt_matters)
    lists = [state.snapshot.requests.get(name, NOTHING) for name in names]
    return min(
        (
            _named(state, order, [seats[n] for n in order], [lists[n] for n in order])
            for order in _sorting(seats)
        ),
        key=lambda each: each.form,
    )


def _sorting(seats: Sequence[Any]) -> Iterator[tuple[int, ...]]:
    """Yield the orders that sort the seats: several where some are equal."""
    for order in itertools.permutations(range(len(seats))):
        if all(seats[one] <= seats[other] for one, other in itertools.pairwise(order)):
            yield order


def _named(
    state: State, order: tuple[int, ...], seats: list[Any], requests: list[RequestState]
) -> Naming:
    """Return the state with its requests in this order, its blocks numbered as they are met."""
    snapshot, popped = state.snapshot, state.world.popped
    met: dict[int, int] = {NULL_BLOCK: NULL_BLOCK}
    places = [blocks for request in requests for blocks in request.block_ids]
    copied = [pair for pairs in snapshot.pending_copies for pair in pairs]
    for place in (*places, *popped, *copied, snapshot.free_queue):
        for block in place:
            met.setdefault(block, len(met))
    keys = [snapshot.block_keys[block] for block in met]
    copies = [
        (key, [met[block] for block in blocks])
        for key, blocks in sorted(snapshot.lookup_order.items())
        if len(blocks) > 1
    ]
    plain = (
        seats,
        [[met[block] for block in place] for place in places],
        [(request.num_cached_blocks, marks_of(request)) for request in requests],
        [[met[block] for block in place] for place in popped],
        [met[block] for block in snapshot.free_queue],
        keys,
        copies,
        [sorted(step_keys) for step_keys in snapshot.step_keys],
        [[(met[a], met[b]) for a, b in pairs] for pairs in snapshot.pending_copies],
        sorted((met[block], tokens) for block, tokens in snapshot.written_from.items()),
        [snapshot.ranks[block] for block in met] if snapshot.ranks else [],
    )
    return Naming(marshal.dumps(plain, MARSHAL_VERSION), order, met)


def marks_of(request: RequestState) -> tuple[bool | None, ...]:
    return tuple(None if mark is None else mark.has_allocated for mark in request.mamba)
