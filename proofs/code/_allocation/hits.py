"""Hits: which are copied and touched, and what counting and touching one of them do."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import z3

from kvfast._core.allocator import Allocator
from kvfast._core.pool import BlockPool
from proofs._z3 import Term, larger
from proofs.code._allocation.run import Numbers, SymbolicAllocator
from proofs.code._paths import Way, merged_each


def copied(made: SymbolicAllocator) -> Term:
    """Null is before the hits, which are copied up to the last, each to its place, and touched."""
    written = made.entries.written
    nulls = [each for each in written if each.hit is None and isinstance(each.rounds.first, int)]
    hits = [each for each in written if each.hit is not None]
    if not (len(nulls) == len(hits) == len(made.counting.touched) == 1):
        return z3.BoolVal(False)
    null, hit, (first, end) = nulls[0], hits[0], made.counting.touched[0]
    same = (null.place == null.rounds.index, hit.place == hit.rounds.index, hit.place == hit.hit)
    start = hit.rounds.first
    here = z3.And(null.rounds.end == start, first == start)
    last = larger(start, Numbers(Way()).hits)
    return z3.And(*same, here, hit.rounds.end == last, end == last)


def one_hit(way: Way) -> dict[str, object]:
    """What counting one hit and then touching it do: null, free or in use."""
    pool: Any = object.__new__(BlockPool)
    pool.facts = References(way)
    pool.residency = None
    pool.num_unlinked = 0

    def unlink(block: object) -> None:
        pool.num_unlinked += 1

    pool.unlink = unlink
    hit = way.number(z3.Int("hit"))
    made: Any = object.__new__(Allocator)
    made.pool = pool
    made.lookup = SimpleNamespace(hit_blocks=[1], hits=[hit], stride=0)
    counted = made.num_revived(0, 0)
    if hit != 0:  # `take_hits_of` touches no null
        pool.touch(SimpleNamespace(arena=[hit]), 0, 1)
    return {"counted": counted, "unlinked": pool.num_unlinked, "refs": pool.facts.refs}


class References:
    """Facts of blocks, of which only the references of one are asked for."""

    def __init__(self, way: Way) -> None:
        self.refs: object = way.number(z3.Int("refs"))

    def __getitem__(self, index: object) -> object:
        return self.refs

    def __setitem__(self, index: object, refs: object) -> None:
        self.refs = refs


def one_hit_is_right() -> tuple[Term, Term]:
    """A hit is counted if it is free; touching takes that out of the queue, and is a reference."""
    refs, is_hit = z3.Int("refs"), z3.Int("hit") != 0
    found = merged_each(one_hit)
    free = z3.If(z3.And(is_hit, refs == 0), 1, 0)
    right = z3.And(
        found["counted"] == free,
        found["unlinked"] == free,
        found["refs"] == refs + z3.If(is_hit, 1, 0),
    )
    return z3.And(refs >= 0, z3.Int("hit") >= 0), right
