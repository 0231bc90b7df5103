"""Whole calls of `release`, `allocate` and `set_queue` for short lists (KV-POOL-3, KV-POOL-6)."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from types import SimpleNamespace
from typing import Any, cast
from unittest.mock import patch

import z3

from kvfast._core import objects, probing, record
from proofs._z3 import Term
from proofs.code._queue.operations import Operation, list_of, queue_and_counts
from proofs.code._queue.ring import Queue, after, any_pool, field_of, is_queue, outside
from proofs.code._symbolic import Facts, Number, SymbolicPool, value

KINDS: Mapping[str, Callable[[Term, Term], Term]] = {
    "a cached block": lambda refs, key: z3.And(refs == 1, key != 0),
    "an unhashed block": lambda refs, key: z3.And(refs == 1, key == 0),
    "a cached block that others hold": lambda refs, key: z3.And(refs > 1, key != 0),
    "an unhashed block that others hold": lambda refs, key: z3.And(refs > 1, key == 0),
}
"""The states of a block, by its references and the next one with its key (0: it has none)."""


def releasing(kinds: Sequence[str]) -> Operation:
    """Build a release of blocks of these kinds, in this order; lists are released last first."""
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


class Homes(Facts):
    """Facts of blocks whose keys all have one home."""

    def __getitem__(self, index: Number | int) -> Any:
        return 0 if self.place(index)[1] == record.HOME else super().__getitem__(index)


def allocating(keyed: Sequence[bool]) -> Operation:
    """Build an allocation, in runs of two, of blocks with or without a key."""
    count = len(keyed)

    def allowed(seq: Queue) -> Term:
        pool, block, known = any_pool(), z3.IntVal(0), []
        for has_key in keyed:  # named as the code reaches them
            block = after(pool, block)
            key = field_of(pool, record.DUP_NEXT, block)
            known.append(key > 0 if has_key else key == 0)
        return z3.And(seq.low + count < seq.high, *known)

    def run(pool: SymbolicPool, seq: Queue) -> Any:
        evicted: list[int] = []
        facts: Any = Homes(cast(Any, pool.facts).fields, pool.assumptions)
        known: Any = pool
        known.facts = facts
        known.keys = SimpleNamespace(fetch_slots=lambda home: None)
        known.evict = lambda tables, start, end: evicted.extend(range(start, end))
        tables: Any = SimpleNamespace(start=[5], length=[2], arena=[0] * (7 + count))
        with (
            patch.object(objects, "ints_of", lambda values: values),
            patch.object(probing, "RUN_BLOCKS", 2),
        ):
            pool.allocate(tables, 0, count)
        return tables, evicted

    def end(pool: SymbolicPool, seq: Queue, answer: Any) -> Term:
        tables, evicted = answer
        taken = (value(block) for block in tables.arena[7:])
        lost = set(evicted) >= {7 + i for i, has_key in enumerate(keyed) if has_key}
        return z3.And(
            z3.BoolVal(lost and tables.length == [2 + count]),
            *(block == seq.at(seq.low + 1 + i) for i, block in enumerate(taken)),
            queue_and_counts(pool, seq.without_first(z3.IntVal(count))),
        )

    return Operation(f"allocate {list(keyed)}", queue_and_counts, allowed, run, end)


def setting(count: int) -> Operation:
    """Build `set_queue` to `count` blocks, whatever the queue was."""
    blocks = [z3.Int(f"block_{i}") for i in range(count)]

    def at(p: Term) -> Term:
        term: Term = z3.IntVal(0)
        for i, block in enumerate(blocks):
            term = z3.If(p == i + 1, block, term)
        return term

    def pos(b: Term) -> Term:
        term: Term = z3.IntVal(0)
        for i, block in enumerate(blocks):
            term = z3.If(b == block, i + 1, term)
        return term

    def allowed(seq: Queue) -> Term:
        inside = [z3.And(block >= 1, block < seq.num_blocks) for block in blocks]
        return z3.And(z3.Distinct(z3.IntVal(0), *blocks), *inside)

    def run(pool: SymbolicPool, seq: Queue) -> None:
        pool.set_queue([cast(int, Number(block, pool.assumptions)) for block in blocks])

    def end(pool: SymbolicPool, seq: Queue, answer: object) -> Term:
        low, high = z3.IntVal(0), z3.IntVal(count + 1)
        return is_queue(pool, replace(seq, at=at, pos=pos, low=low, high=high))

    return Operation(f"set_queue to {count}", lambda pool, seq: z3.BoolVal(True), allowed, run, end)
