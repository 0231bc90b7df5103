"""Definition: the ring of kvfast is a sequence of blocks (KV-POOL-2)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import z3

from kvfast._core import record
from proofs._z3 import Range, Term, forall, function
from proofs.code._symbolic import Facts, Number, SymbolicPool, as_int, value


@dataclass(frozen=True)
class Queue:
    """Blocks at the positions low + 1 … high - 1, and null at low and high."""

    at: Callable[[Term], Term]
    pos: Callable[[Term], Term]
    low: Term
    high: Term
    num_blocks: Term
    size: int | None = None

    def positions(self, first: int, last: int) -> Range:
        """Return the positions low + first … high - 1 + last."""
        values = None if self.size is None else range(-3, self.size + 4)
        return Range(self.low + first, self.high + last, values)

    def has(self, block: Term) -> Term:
        """State that a block is in the queue."""
        place = self.pos(block)
        return z3.And(self.low < place, place < self.high, self.at(place) == block)

    def inserted(self, block: Term, place: Term) -> Queue:
        """Return the queue with a block inserted behind the one at a position."""
        return replace(
            self,
            at=lambda p: z3.If(
                p <= place, self.at(p), z3.If(p == place + 1, block, self.at(p - 1))
            ),
            pos=lambda b: z3.If(
                b == block, place + 1, z3.If(self.pos(b) > place, self.pos(b) + 1, self.pos(b))
            ),
            high=self.high + 1,
        )

    def appended(self, block: Term) -> Queue:
        """Return the queue with a block at the end."""
        return self.inserted(block, self.high - 1)

    def removed(self, place: Term) -> Queue:
        """Return the queue without the block at a position."""
        return replace(
            self,
            at=lambda p: z3.If(p < place, self.at(p), self.at(p + 1)),
            pos=lambda b: z3.If(self.pos(b) > place, self.pos(b) - 1, self.pos(b)),
            high=self.high - 1,
        )

    def without_first(self, count: Term) -> Queue:
        """Return the queue without its first `count` blocks."""
        low = self.low + count
        return replace(self, at=lambda p: z3.If(p <= low, 0, self.at(p)), low=low)


def any_queue(size: int | None = None) -> Queue:
    """Return an unknown sequence; `size` is the pool's number of blocks, if written out."""
    return Queue(
        at=function("at"),
        pos=function("pos"),
        low=z3.Int("low"),
        high=z3.Int("high"),
        num_blocks=z3.Int("num_blocks"),
        size=size,
    )


def any_pool(*assumptions: Term, unhashed_to_front: bool = True) -> SymbolicPool:
    """Return a pool of which only these facts are known."""
    fields = {
        record.NEXT: function("next"),
        record.PREV: function("prev"),
        record.REFS: function("refs"),
        record.DUP_NEXT: function("dup_next"),
    }
    return SymbolicPool(
        Facts(fields, assumptions),
        Number(z3.Int("num_free"), assumptions),
        unhashed_to_front=unhashed_to_front,
    )


def after(pool: SymbolicPool, block: Term) -> Term:
    """Return the successor of a block, as the code reads it."""
    return value(pool.after(as_int(block)))


def before(pool: SymbolicPool, block: Term) -> Term:
    """Return the predecessor of a block, as the code reads it."""
    return value(pool.before(as_int(block)))


def field_of(pool: SymbolicPool, field: int, block: Term) -> Term:
    """Return a field of a block's record."""
    return value(pool.facts[record.INTS * as_int(block) + field])


def is_sequence(seq: Queue) -> Term:
    """State that blocks of the pool occur at most once, between null at both ends."""
    blocks = forall(
        [seq.positions(1, 0)],
        lambda p: z3.And(seq.at(p) >= 1, seq.at(p) < seq.num_blocks, seq.pos(seq.at(p)) == p),
        about=lambda p: seq.at(p),
    )
    return z3.And(seq.low < seq.high, seq.at(seq.low) == 0, seq.at(seq.high) == 0, blocks)


def is_queue(pool: SymbolicPool, seq: Queue) -> Term:
    """State that the ring of the pool is the sequence."""
    return z3.And(is_open(pool, seq), after(pool, seq.at(seq.high - 1)) == 0, closed(pool, seq))


def closed(pool: SymbolicPool, seq: Queue) -> Term:
    """State that the head's predecessor is the last block."""
    return before(pool, z3.IntVal(0)) == seq.at(seq.high - 1)


def is_open(pool: SymbolicPool, seq: Queue) -> Term:
    """State that the ring is the sequence, but for links between last block and head."""
    behind = forall(
        [seq.positions(0, -1)],
        lambda p: after(pool, seq.at(p)) == seq.at(p + 1),
        about=lambda p: field_of(pool, record.NEXT, seq.at(p)),
    )
    ahead = forall(
        [seq.positions(1, 0)],
        lambda p: before(pool, seq.at(p)) == seq.at(p - 1),
        about=lambda p: field_of(pool, record.PREV, seq.at(p)),
    )
    length = value(pool.num_free) == seq.high - seq.low - 1
    return z3.And(is_sequence(seq), behind, ahead, length)


def world(seq: Queue) -> Term:
    """State that the null block exists; a written-out ring begins at position 0."""
    if seq.size is None:
        return seq.num_blocks >= 1
    return z3.And(seq.num_blocks == seq.size + 1, seq.low == 0, seq.high <= seq.size + 1)


def counted(pool: SymbolicPool, seq: Queue) -> Term:
    """State that the queue holds exactly the blocks without a reference (KV-POOL-15)."""
    values = None if seq.size is None else range(seq.size + 1)
    return forall(
        [Range(1, seq.num_blocks, values)],
        lambda b: seq.has(b) == (value(pool.refs(as_int(b))) == 0),
    )


def outside(seq: Queue, block: Term) -> Term:
    """State that a block of the pool is not in the queue."""
    return z3.And(block >= 1, block < seq.num_blocks, z3.Not(seq.has(block)))
