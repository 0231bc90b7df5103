"""One form for all states that differ only in how blocks and requests are called.

Blocks are numbered anew in the order in which they are met: in the lists of the requests, among the
popped ones, in the free queue. Every block is at one of these places (KV-POOL-15, KV-POOL-16; sinks
apart, which no configuration has), so the order of requests decides all new numbers. Of all orders
of the requests, the one with the least form counts. So two states have one form exactly when a
renaming of blocks and requests makes one of the other.

A manager treats both alike when it uses numbers and names as such and nothing more. The reference
does; of a subject it is an assumption, and `kvspec explore --whole` does without it.
"""

from __future__ import annotations

import itertools
import marshal
from hashlib import blake2b
from typing import Any

from kvspec.blocks import NULL_BLOCK
from kvspec.explore.state import FINGERPRINT_BYTES, MARSHAL_VERSION, State, seats_of
from kvspec.snapshot import RequestState

NOTHING = RequestState((), ())


def renamed_fingerprint(state: State, names: tuple[str, ...], *, prompt_matters: bool) -> bytes:
    """The fingerprint of a state's form; `names` are those of its requests."""
    seats = seats_of(state.world, prompt_matters=prompt_matters)
    lists = [state.snapshot.requests.get(name, NOTHING) for name in names]
    least = min(
        _form(state, [seats[n] for n in order], [lists[n] for n in order])
        for order in itertools.permutations(range(len(names)))
    )
    return blake2b(least, digest_size=FINGERPRINT_BYTES).digest()


def _form(state: State, seats: list[Any], requests: list[RequestState]) -> bytes:
    """The state with its requests in this order, its blocks numbered as they are met."""
    snapshot, popped = state.snapshot, state.world.popped
    met: dict[int, int] = {NULL_BLOCK: NULL_BLOCK}
    places = [blocks for request in requests for blocks in request.block_ids]
    for place in (*places, *popped, snapshot.free_queue):
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
    )
    return marshal.dumps(plain, MARSHAL_VERSION)


def marks_of(request: RequestState) -> tuple[bool | None, ...]:
    """Of each group, as plain values."""
    return tuple(None if mark is None else mark.has_allocated for mark in request.mamba)
