"""Whole calls of `release` for short lists (KV-POOL-6)."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import z3

from kvfast._core import record
from proofs._z3 import Term
from proofs.code._queue.operations import Operation, list_of, queue_and_counts
from proofs.code._queue.ring import Queue, any_pool, field_of, outside
from proofs.code._symbolic import SymbolicPool

KINDS: Mapping[str, Callable[[Term, Term], Term]] = {
    "a cached block": lambda refs, key: z3.And(refs == 1, key != 0),
    "an unhashed block": lambda refs, key: z3.And(refs == 1, key == 0),
    "a cached block that others hold": lambda refs, key: z3.And(refs > 1, key != 0),
    "an unhashed block that others hold": lambda refs, key: z3.And(refs > 1, key == 0),
}
"""What a block may be, by its references and the next one with its key (0: it has none)."""


def releasing(kinds: Sequence[str]) -> Operation:
    """A release call for blocks of these kinds, in this order; the list has the last one first."""
    blocks = [z3.Int(f"block_{i}") for i in range(len(kinds))]

    def allowed(seq: Queue) -> Term:
        pool = any_pool()
        known = [
            KINDS[kind](field_of(pool, record.REFS, block), field_of(pool, record.DUP_NEXT, block))
            for kind, block in zip(kinds, blocks, strict=True)
        ]
        return z3.And(z3.Distinct(*blocks), *known, *(outside(seq, block) for block in blocks))

    def run(pool: SymbolicPool, seq: Queue) -> None:
        pool.release(list_of(pool, *reversed(blocks)), 0, len(blocks))

    def end(pool: SymbolicPool, seq: Queue, answer: object) -> Term:
        run_in_front = 0
        for kind, block in zip(kinds, blocks, strict=True):
            if kind == "a cached block":
                seq = seq.appended(block)
            elif kind == "an unhashed block":
                seq = seq.inserted(block, seq.low + run_in_front)
                run_in_front += 1
        return queue_and_counts(pool, seq)

    return Operation(f"release of {kinds}", queue_and_counts, allowed, run, end)
