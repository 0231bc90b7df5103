"""Counting one hit and then touching it, in either twin."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import z3

from kvfast._core.allocator import Allocator
from kvfast._core.pool import BlockPool
from kvref import block_pool
from kvref.groups.base import Group
from proofs.code._paths import Way


class OneNumber:
    """Facts of blocks, of which only the references of one are asked for."""

    def __init__(self, way: Way) -> None:
        self.refs: object = way.number(z3.Int("refs"))

    def __getitem__(self, index: object) -> object:
        return self.refs

    def __setitem__(self, index: object, refs: object) -> None:
        self.refs = refs


def one_hit_of_kvfast(way: Way) -> dict[str, object]:
    """Count and touch one hit; return its count, removals from the queue, and references."""
    pool: Any = object.__new__(BlockPool)
    pool.facts = OneNumber(way)
    pool.residency = None
    unlinked: list[object] = []
    pool.unlink = unlinked.append
    hit = way.number(z3.Int("hit"))
    made: Any = object.__new__(Allocator)
    made.pool = pool
    made.lookup = SimpleNamespace(hit_blocks=[1], hits=[hit], stride=0)
    counted = made.num_revived(0, 0)
    pool.touch(SimpleNamespace(arena=[hit]), 0, 1)
    return {"counted": counted, "unlinked": len(unlinked), "refs": pool.facts.refs}


def one_hit_of_kvref(way: Way) -> dict[str, object]:
    """Do the same in kvref; the queue holds the hit if it is free."""
    pool: Any = object.__new__(block_pool.BlockPool)
    pool.ref_counts = OneNumber(way)
    pool.residency = None
    hit = way.number(z3.Int("hit"))
    pool.free_queue = [hit]
    group: Any = object.__new__(Group)
    group.pool = pool
    counted = group.num_revived([hit])
    pool.touch([hit])
    left = 1 - len(pool.free_queue)
    return {"counted": counted, "unlinked": left, "refs": pool.ref_counts.refs}
