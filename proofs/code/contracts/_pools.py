"""Any state of a pool of three blocks, built in kvref and in kvfast.

A table lists which blocks are free, and which keys were registered, each in which order;
reference counts are any ints. Three keys of one request represent
all hashes: their slots are side by side in kvfast's table, and one of them wraps around.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import product
from typing import TypeVar, cast

from kvfast._core.columns import ring_of
from kvfast._core.event_log import EventLog as FastLog
from kvfast._core.pool import BlockPool as FastPool
from kvfast._core.request import FastRequest
from kvfast._core.tables import Tables
from kvref.block_pool import BlockPool as ReferencePool
from kvref.events import EventLog as ReferenceLog
from kvref.hashing import make_key
from kvspec.events import BlockRemoved

T = TypeVar("T")

BLOCKS = (1, 2, 3)
NUM_BLOCKS = 4
"""With the null block."""

QUEUES: tuple[tuple[int, ...], ...] = ((), (2,), (3, 1), (1, 2, 3))

Registered = tuple[tuple[int, int], ...]
"""(block, number of its key) in the order of registration."""

REGISTERED: tuple[Registered, ...] = tuple(
    tuple(zip(BLOCKS[:length], (0, *numbers), strict=True)) if length else ()
    for length in range(4)
    for numbers in product((0, 1), repeat=max(length - 1, 0))
)
"""All, up to the names of keys."""

MOST = (1 << 31) - 2
"""Numbers below it, and some more of them, fit in kvfast's 32 bits."""

WORDS = (5 << 24, 7 << 24, 11 << 24)
"""The hashes of the request, each of one word of 64 bits."""

HASHES = tuple(word.to_bytes(8, "little") for word in WORDS)
KEYS = tuple(make_key(block_hash, 0) for block_hash in HASHES)


class Hashed:
    """The part of a request that kvfast's map reads: its hashes."""

    def __init__(self, words: Sequence[int]) -> None:
        self.digest_words = list(words)
        self.num_hashes = len(words)


def hashed(words: Sequence[int] = WORDS) -> FastRequest:
    """Return a request with these hashes, of one word each."""
    return cast(FastRequest, Hashed(words))


def chosen(table: Sequence[T], number: int) -> T:
    """Return entry `number` of a table, with as few branches as possible."""
    low, high = 0, len(table)
    while high - low > 1:
        middle = (low + high) // 2
        if number < middle:
            high = middle
        else:
            low = middle
    return table[low]


def counts(queue: Sequence[int], refs: Sequence[int]) -> list[int]:
    """Return reference counts by block: `refs` for those in use."""
    return [0] + [0 if block in queue else refs[block - 1] for block in BLOCKS]


def reference_pool(
    queue: Sequence[int], refs: Sequence[int], registered: Registered = (), *, to_front: bool = True
) -> ReferencePool:
    """Build kvref's pool."""
    pool = ReferencePool(
        NUM_BLOCKS,
        events=ReferenceLog(enabled=True, int_hashes=False),
        unhashed_freed_to="front" if to_front else "back",
    )
    pool.free_queue = list(queue)
    pool.ref_counts = counts(queue, refs)
    for block, number in registered:
        pool.keys[block] = [KEYS[number]]
        pool.primary_num_tokens[block] = 1
        pool.cached.setdefault(KEYS[number], []).append(block)
    return pool


def fast_pool(
    queue: Sequence[int], refs: Sequence[int], registered: Registered = (), *, to_front: bool = True
) -> FastPool:
    """Build kvfast's; a hash covers one token."""
    pool = FastPool(
        NUM_BLOCKS,
        1,
        events=FastLog(),
        residency=None,
        unhashed_to_front=to_front,
        removed_per_copy=True,
    )
    pool.set_queue(queue)
    for block, count in enumerate(counts(queue, refs)):
        pool.set_refs(block, count)
    request = hashed()
    for block, number in registered:
        pool.keys.add(block, request, number, 0)
        pool.set_covered(block, 1)
    return pool


def tables_of(blocks: Sequence[int], *, room: int = 4) -> Tables:
    """Build tables with one list, which holds these blocks."""
    tables = Tables(1)
    tables.make_room(tables.take_row(), 0, room)
    for block in blocks:
        tables.append(0, block)
    return tables


State = tuple[tuple[int, ...], ...]


def reference_state(pool: ReferencePool) -> State:
    """Return size of the queue, queue, references, blocks by key, keys by block, and removals."""
    removed = [each.block_hashes[0] for each in pool.events.queue if isinstance(each, BlockRemoved)]
    return (
        (len(pool.free_queue), *pool.free_queue),
        tuple(pool.ref_counts),
        *(tuple(pool.cached.get(key, ())) for key in KEYS),
        *(tuple([KEYS.index(key) for key in pool.keys[block]]) for block in BLOCKS),
        tuple([HASHES.index(cast(bytes, each)) for each in removed]),
    )


def fast_state(pool: FastPool) -> State:
    """Return the same of kvfast."""
    request = hashed()
    heads = [pool.keys.find(request, number, 0) for number in range(len(KEYS))]
    facts = [] if pool.events is None else pool.events.facts
    return (
        (pool.num_free, *pool.queue()),
        tuple([pool.refs(block) for block in range(NUM_BLOCKS)]),
        *(
            tuple([pool.block_of(entry) for entry in ring_of(pool.keys, head)] if head else ())
            for head in heads
        ),
        *(
            tuple([HASHES.index(pool.keys.hash_of(entry)) for entry in pool.entries_of(block)])
            for block in BLOCKS
        ),
        tuple([HASHES.index(each[0]) for each in facts if each is not None and len(each) == 2]),
    )


def are_used(refs: Sequence[int]) -> bool:
    """Check that every count is legal for a block in use; free blocks ignore theirs."""
    return all(1 <= count < MOST for count in refs)
