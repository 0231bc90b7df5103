"""kvref's need and allocation of one group, run on unknown numbers.

A list is its length, the number of nulls that it begins with, and its first hit. A loop that
appends is run as one round that counts for all: an entry appended once counts as often as the
loop's bounds say.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from typing import Any
from unittest.mock import patch

import z3

from kvref.groups import base, cross_attention, mamba, mamba_align
from proofs._z3 import Term, larger
from proofs.code._allocation.run import HELD, HITS, revived
from proofs.code._groups import group_of
from proofs.code._paths import Repeated, Unknown, Way, picking_in_one_way, term_of

MODULES = (base, cross_attention, mamba, mamba_align)


def term(number: object) -> Term:
    """Return a number as a term, ints included."""
    return z3.IntVal(0) + term_of(number)


@dataclass
class List:
    """`length` entries: `nulls` nulls, followed by hits from `first` on."""

    way: Way
    length: Term
    first: Term = 0
    nulls: Term = 0
    times: Term = 1

    def __getitem__(self, part: Any) -> Any:
        if not isinstance(part, slice):
            return 1
        start = term(part.start)
        return List(self.way, larger(self.length - start, 0), self.first + start)

    def __setitem__(self, place: object, block: int) -> None:
        """Do nothing: the proof does not look at which entry moves."""

    def __radd__(self, nulls: Repeated) -> List:
        return List(self.way, nulls.times + self.length, self.first, nulls.times)

    def append(self, block: object) -> None:
        """Append as many entries as the surrounding loop has rounds."""
        self.length, self.times = z3.simplify(self.length + self.times), z3.IntVal(1)

    def extend(self, blocks: List) -> None:
        """Append the other list."""
        self.length = self.length + blocks.length


class Length(Unknown):
    """The length of a list; appending while it is too short appends all missing entries."""

    def __init__(self, blocks: List) -> None:
        super().__init__(blocks.length, blocks.way)
        self.blocks = blocks

    def __lt__(self, wanted: Any) -> bool:
        return self.appends(super().__lt__(wanted), term(wanted))

    def __le__(self, wanted: Any) -> bool:
        return self.appends(super().__le__(wanted), term(wanted) + 1)

    def appends(self, too_short: bool, wanted: Term) -> bool:
        """Let the next append add every missing entry at once."""
        if too_short:
            self.blocks.times = z3.simplify(wanted - self.term)
        return too_short


class Lists(dict[str, Any]):
    """The block lists, of one request."""

    def __init__(self, blocks: List) -> None:
        super().__init__(r=blocks)

    def setdefault(self, request: str, nothing: Any = None) -> Any:
        return self[request]


class Reference:
    """A group of kvref, whose pool counts."""

    def __init__(self, way: Way, kind: str, *, has_entry: bool, was_allocated: bool) -> None:
        self.way, self.taken, self.counts = way, z3.IntVal(0), list[Term]()
        self.touched: list[List] = []
        self.group = group_of(way, kind)
        self.group.pool = self
        self.group.block_lists = Lists(List(way, HELD))
        self.group.blocks_of = self.group.block_lists.__getitem__
        self.group.num_cached = {"r": 0} if has_entry else {}
        self.group.allocated = {"r"} if was_allocated else set()
        self.group.num_revived = lambda hits: way.number(revived(term(hits.first)))
        self.group.is_hit_too_new = lambda hits: False
        self.group.new_block_ids = []
        self.hits = List(way, HITS)

    def use(self, hits: List, priority: int) -> None:
        """Do nothing: with LRU there are no ranks."""

    def touch(self, hits: List) -> None:
        """Touch the free ones among the hits, beginning with the first given."""
        self.touched.append(hits)
        self.taken = self.taken + revived(term(hits.first))

    def allocate(self, count: object) -> List:
        """Return new blocks, and count them."""
        self.counts.append(term(count))
        self.taken = self.taken + term(count)
        return List(self.way, term(count))

    def need(self, asked: Sequence[Any], *, capped: bool) -> Term:
        """Return the number of blocks that the code asks for."""
        demand = replace(base.Demand(*asked), apply_admission_cap=capped)
        self.group.max_admission_blocks = lambda: self.way.number(z3.Int("cap")) if capped else None
        with self.code():
            return term(self.group.num_blocks_needed("r", self.hits, demand))

    def take(self, asked: Sequence[Any], *, with_hits: bool) -> None:
        """Take hits, external blocks and new ones, in the coordinator's order (KV-MGR-7)."""
        demand = base.Demand(*asked)
        with self.code():
            if with_hits:
                self.group.take_hits("r", self.hits, demand)
                if demand.num_external_tokens > 0:
                    self.group.allocate_external("r", demand)
            self.begun = self.list_length
            self.group.allocate_new("r", demand)

    @contextmanager
    def code(self) -> Iterator[None]:
        """Patch kvref for lists of unknown length, with one round per unknown loop."""

        def rounds(first: Any, end: Any) -> Iterator[Any]:
            blocks = self.group.block_lists["r"]
            blocks.times = larger(term(end) - term(first), 0)
            yield self.way.number(term(first))
            blocks.times = z3.IntVal(1)

        names = {"list": lambda blocks: blocks, "range": rounds, "len": self.length_of}
        with ExitStack() as stack:
            stack.enter_context(picking_in_one_way(*MODULES))
            for module in MODULES:
                for name, other in names.items():
                    stack.enter_context(patch.object(module, name, other, create=True))
            yield

    @staticmethod
    def length_of(blocks: Any) -> Any:
        """Replace `len`, also for a list of unknown length."""
        return Length(blocks) if isinstance(blocks, List) else len(blocks)

    @property
    def list_length(self) -> Term:
        """Length of the request's block list, in entries."""
        return term(self.group.block_lists["r"].length)

    def copies(self, skipped: Term) -> Term:
        """State that null precedes the hits, all others are touched, and all count as cached."""
        if len(self.touched) != 1:
            return z3.BoolVal(False)
        first, nulls = self.touched[0].first, self.group.block_lists["r"].nulls
        cached = term(self.group.num_cached["r"]) == larger(skipped, HITS)
        return z3.And(term(first) == skipped, term(nulls) == skipped, cached)
