"""Mistakes in the operations of the free queue (KV-POOL-5, KV-POOL-6)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import z3

from kvfast._core import record
from proofs.code._queue.operations import OPERATIONS, Operation, block, place, within
from proofs.code._queue.ring import Queue
from proofs.code._symbolic import SymbolicPool, as_int


def named(name: str) -> Operation:
    """Return the operation of this name."""
    return next(operation for operation in OPERATIONS if operation.name == name)


def put_without_way_back(pool: SymbolicPool, seq: Queue) -> None:
    left, right = seq.at(place()), seq.at(place() + 1)
    pool.link(as_int(left), as_int(block()))
    index = record.INTS * as_int(block()) + record.NEXT
    pool.facts[index] = as_int(right - block() - 1)
    pool.num_free += 1


def unlink_forwards_only(pool: SymbolicPool, seq: Queue) -> None:
    left, right = seq.at(place() - 1), seq.at(place() + 1)
    index = record.INTS * as_int(left) + record.NEXT
    pool.facts[index] = as_int(right - left - 1)
    pool.num_free -= 1


def append_to_stale_last(pool: SymbolicPool, seq: Queue) -> None:
    pool.link(as_int(seq.at(seq.high - 2)), as_int(block()))
    pool.num_free += 1


def cut_one_block_later(pool: SymbolicPool, seq: Queue) -> None:
    pool.link(0, as_int(seq.at(place() + 2)))
    pool.num_free -= as_int(place() - seq.low)


def put_in_front_of_run(pool: SymbolicPool, seq: Queue) -> int:
    return pool.drop_ref(as_int(block()), 0)


def put_cached_in_front(pool: SymbolicPool, seq: Queue) -> int:
    pool.set_refs(as_int(block()), 0)
    pool.put(as_int(seq.at(place())), as_int(block()))
    return as_int(seq.at(place()))


def wrongly(
    rule: str, sentence: str, name: str, run: Callable[[SymbolicPool, Queue], object]
) -> Operation:
    """Return the operation with a mistake and the rule that it breaks."""
    return replace(named(name), name=f"{rule}: {name}: {sentence}", run=run)


def not_closed(pool: SymbolicPool, seq: Queue) -> None:
    """Leave the run open."""


MISTAKES: tuple[Operation, ...] = (
    wrongly("KV-POOL-6", "the block behind it keeps its way back", "put", put_without_way_back),
    wrongly("KV-POOL-5", "the block behind it keeps its way back", "unlink", unlink_forwards_only),
    wrongly(
        "KV-POOL-6", "`last` is not read again", "release, a cached block", append_to_stale_last
    ),
    wrongly("KV-POOL-6", "it is missing", "release and set_queue, the end", not_closed),
    wrongly("KV-POOL-3", "a block is passed over", "allocate, the end", cut_one_block_later),
    wrongly(
        "KV-POOL-6", "the run in front is turned around", "drop_ref, unhashed", put_in_front_of_run
    ),
    wrongly("KV-POOL-6", "it goes to the front", "drop_ref, cached", put_cached_in_front),
    replace(
        named("put"),
        name="put: the block is in the queue already",
        allowed=lambda seq: z3.And(within(seq, 0), seq.has(block())),
    ),
)
