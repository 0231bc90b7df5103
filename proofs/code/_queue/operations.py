"""The operations of the free queue."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from types import SimpleNamespace
from typing import cast

import z3

from kvfast._core import record
from kvfast._core.tables import Tables
from proofs._z3 import Term
from proofs.code._queue.ring import Queue, any_pool, counted, field_of, is_queue, outside
from proofs.code._symbolic import Number, SymbolicPool, as_int, value


@dataclass(frozen=True)
class Operation:
    """An operation: the state before it, its condition, the code, and the state after it."""

    name: str
    start: Callable[[SymbolicPool, Queue], Term]
    allowed: Callable[[Queue], Term]
    run: Callable[[SymbolicPool, Queue], object]
    end: Callable[[SymbolicPool, Queue, object], Term]
    unhashed_to_front: bool = True


def block() -> Term:
    """Return the block that an operation takes."""
    return z3.Int("block")


def place() -> Term:
    """Return a position in the queue."""
    return z3.Int("place")


def within(seq: Queue, first: int) -> Term:
    """State that the position is a block's, or with first = 0 that of null in front."""
    return z3.And(seq.low + first <= place(), place() < seq.high)


def queue_and_counts(pool: SymbolicPool, seq: Queue) -> Term:
    """State that the ring is the sequence, whose blocks alone have no reference."""
    return z3.And(is_queue(pool, seq), counted(pool, seq))


def run_put(pool: SymbolicPool, seq: Queue) -> None:
    pool.put(as_int(seq.at(place())), as_int(block()))


def run_unlink(pool: SymbolicPool, seq: Queue) -> None:
    pool.unlink(as_int(seq.at(place())))


def run_take(pool: SymbolicPool, seq: Queue) -> int:
    return pool.take()


def taking(has_key: bool) -> Operation:
    """Build `take` of a block with a key, or without one."""

    def allowed(seq: Queue) -> Term:
        return z3.And(seq.low + 1 < seq.high, first_has_key(has_key))

    name = f"take, a block {'with' if has_key else 'without'} a key"
    return Operation(name, queue_and_counts, allowed, run_take, first_taken)


def first_has_key(has_key: bool) -> Term:
    """State that the block in front has a key, or that it has none."""
    first = field_of(any_pool(), record.NEXT, z3.IntVal(0)) + 1
    dup_next = field_of(any_pool(), record.DUP_NEXT, first)
    return dup_next > 0 if has_key else dup_next == 0


def first_taken(pool: SymbolicPool, seq: Queue, answer: object) -> Term:
    first = seq.at(seq.low + 1)
    return z3.And(value(answer) == first, queue_and_counts(pool, seq.without_first(1)))


def run_drop_ref(pool: SymbolicPool, seq: Queue) -> int:
    return pool.drop_ref(as_int(block()), as_int(seq.at(place())))


def run_touch(pool: SymbolicPool, seq: Queue) -> None:
    pool.touch(list_of(pool, block()), 0, 1)


def list_of(pool: SymbolicPool, *blocks: Term) -> Tables:
    """Return tables whose arena begins with these blocks."""
    arena = [Number(each, pool.assumptions) for each in blocks]
    return cast(Tables, SimpleNamespace(arena=arena))


def facts(field: int) -> Term:
    """Return a field of the block before the operation."""
    return field_of(any_pool(), field, block())


def dropping(
    name: str,
    condition: Callable[[], Term],
    then: Callable[[Queue], Queue],
    *,
    left: Callable[[Queue], Term],
    unhashed_to_front: bool = True,
) -> Operation:
    """Build a case of `drop_ref`; place() is where the run put in front ends."""

    def end(pool: SymbolicPool, seq: Queue, answer: object) -> Term:
        return z3.And(queue_and_counts(pool, then(seq)), value(answer) == left(seq))

    return Operation(
        f"drop_ref, {name}",
        queue_and_counts,
        lambda seq: z3.And(outside(seq, block()), within(seq, 0), condition()),
        run_drop_ref,
        end,
        unhashed_to_front,
    )


def run_end(seq: Queue) -> Term:
    return seq.at(place())


def leaves(
    then: Callable[[Queue], Queue], what: Callable[[SymbolicPool, Queue], Term]
) -> Callable[[SymbolicPool, Queue, object], Term]:
    """Claim that `what` holds of the sequence that `then` makes."""
    return lambda pool, seq, answer: what(pool, then(seq))


def same(seq: Queue) -> Queue:
    return seq


def refs_are(count: int) -> Term:
    return facts(record.REFS) == count


def cached() -> Term:
    return facts(record.DUP_NEXT) != 0


OPERATIONS: tuple[Operation, ...] = (
    Operation(
        "put",
        is_queue,
        lambda seq: z3.And(within(seq, 0), outside(seq, block())),
        run_put,
        leaves(lambda seq: seq.inserted(block(), place()), is_queue),
    ),
    Operation(
        "unlink",
        is_queue,
        lambda seq: within(seq, 1),
        run_unlink,
        leaves(lambda seq: seq.removed(place()), is_queue),
    ),
    *(taking(has_key) for has_key in (False, True)),
    Operation(
        "touch, a free block",
        queue_and_counts,
        lambda seq: z3.And(within(seq, 1), block() == seq.at(place()), block() > 0, refs_are(0)),
        run_touch,
        leaves(lambda seq: seq.removed(place()), queue_and_counts),
    ),
    Operation(
        "touch, a block in use",
        queue_and_counts,
        lambda seq: z3.And(outside(seq, block()), facts(record.REFS) > 0),
        run_touch,
        leaves(same, queue_and_counts),
    ),
    dropping("others hold it", lambda: facts(record.REFS) > 1, same, left=run_end),
    dropping(
        "unhashed",
        lambda: z3.And(refs_are(1), z3.Not(cached())),
        lambda seq: seq.inserted(block(), place()),
        left=lambda seq: block(),
    ),
    dropping(
        "cached",
        lambda: z3.And(refs_are(1), cached()),
        lambda seq: seq.appended(block()),
        left=run_end,
    ),
    dropping(
        "unhashed, to the back",
        lambda: refs_are(1),
        lambda seq: seq.appended(block()),
        left=run_end,
        unhashed_to_front=False,
    ),
)
