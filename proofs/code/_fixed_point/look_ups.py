"""The look-ups of the types promise what a search takes for granted (`Groups.answers`).

Lengths are in blocks, `cached(i)` whether block i is cached in every member of the attention group.
`down(n)` is the last length up to n that ends on a multiple of the alignment; with `each` every
length does. Rules: KV-FULL-2 … KV-FULL-4, KV-SW-4, KV-SW-5, KV-CHUNK-2, KV-MAMBA-3. The run of
a window has any number of blocks here; `windows.py` proves that it has cdiv(W - 1, B).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial

import z3

from proofs._z3 import Range, Term, forall, function, larger
from proofs.code._fixed_point.groups import predicate

FEW = 5
"""Blocks of a written-out look-up."""


@dataclass(frozen=True)
class Cache:
    """What is cached, and where hits may end; `size`: blocks, if written out."""

    size: int | None = None
    limit: Term = field(default_factory=lambda: z3.Int("limit"))
    cached: Callable[..., Term] = field(default_factory=lambda: predicate("cached"))
    is_aligned: Callable[..., Term] = field(default_factory=lambda: predicate("is_aligned"))
    down: Callable[..., Term] = field(default_factory=lambda: function("down"))

    @property
    def lengths(self) -> Range:
        return Range(0, None, None if self.size is None else range(self.size + 2))

    def all_cached(self, first: Term, end: Term) -> Term:
        """Blocks first … end - 1 are cached."""
        inside = forall(
            [self.lengths],
            lambda i: z3.Implies(z3.And(first <= i, i < end), self.cached(i)),
            about=self.cached,
        )
        return inside

    def rounds(self) -> Term:
        """`down` is the last aligned length; what ends nowhere is aligned."""
        below = forall(
            [self.lengths],
            lambda n: z3.And(self.down(n) >= 0, self.down(n) <= n, self.is_aligned(self.down(n))),
            about=self.down,
        )
        last = forall(
            [self.lengths, self.lengths],
            lambda m, n: z3.Implies(z3.And(self.is_aligned(m), m <= n), m <= self.down(n)),
        )
        small = z3.BoolVal(True) if self.size is None else self.limit <= self.size
        return z3.And(self.limit >= 0, self.is_aligned(z3.IntVal(0)), below, last, small)

    def run(self, first: Term, end: Term) -> Term:
        """`end` is where the run of cached blocks from `first` on ends, within the limit."""
        stops = z3.Or(end == self.limit, z3.Not(self.cached(end)))
        return z3.And(first <= end, end <= self.limit, self.all_cached(first, end), stops)


@dataclass(frozen=True)
class Kind:
    """A look-up: what its answer is by its rules, and which lengths are hits."""

    name: str
    known: Callable[[Cache, Term], Term]
    hit: Callable[[Cache, Term], Term]
    drop: int = 0

    def is_hit(self, cache: Cache, answer: Term) -> Term:
        """The answer is a hit, within the limit even with the block that is dropped."""
        room = z3.Or(answer == 0, answer + self.drop <= cache.limit)
        return z3.And(answer >= 0, room, self.hit(cache, answer))

    def is_longest(self, cache: Cache, answer: Term) -> Term:
        """No other hit is longer."""
        return forall(
            [cache.lengths],
            lambda n: z3.Implies(
                z3.And(self.hit(cache, n), n + self.drop <= cache.limit), n <= answer
            ),
        )


# Full attention: a run from block 0.


def full_answer(cache: Cache, answer: Term, *, drop: int) -> Term:
    """KV-FULL-2 … KV-FULL-4."""
    end = z3.Int("end")
    return z3.And(cache.run(z3.IntVal(0), end), answer == cache.down(larger(end - drop, 0)))


def full_hit(cache: Cache, n: Term, *, drop: int) -> Term:
    """Everything before it is cached, with a drop also the block behind."""
    run = cache.all_cached(z3.IntVal(0), n + drop)
    return z3.And(cache.is_aligned(n), z3.Or(n == 0, run) if drop else run)


# Windows: the rightmost run that fills one, or a short one from block 0.


def reach() -> Term:
    """Return the blocks before a boundary that a window reads, any number of them."""
    return z3.Int("reach")


def window_answer(cache: Cache, answer: Term, *, drop: int) -> Term:
    """KV-SW-4 and KV-SW-5."""
    need, end, short = larger(reach() + drop, 1), z3.Int("end"), z3.Int("short")

    def fills(e: Term) -> Term:
        ends = z3.And(need <= e, e <= cache.limit, cache.is_aligned(e - drop))
        return z3.And(ends, cache.all_cached(e - need, e))

    later = forall([cache.lengths], lambda e: z3.Implies(e > end, z3.Not(fills(e))))
    none = forall([cache.lengths], lambda e: z3.Not(fills(e)))
    cut = z3.If(short == 0, 0, cache.down(short - drop) + drop)
    again = cache.down(cut)
    left = cache.down(larger(again - drop, 0))
    run = z3.And(cache.run(z3.IntVal(0), short), none, answer == left)
    return z3.And(reach() >= 0, z3.Or(z3.And(fills(end), later, answer == end - drop), run))


def window_hit(cache: Cache, n: Term, *, drop: int) -> Term:
    """All that the window reads before it is cached, with a drop also the block behind."""
    need = reach() if drop else larger(reach(), 1)
    run = cache.all_cached(larger(n - need, 0), n + drop)
    return z3.And(cache.is_aligned(n), z3.Or(n == 0, run) if drop else run)


# Chunks: what is before the chunk counts as computed.


def chunk_of() -> Callable[..., Term]:
    """The first block of the chunk in which a length ends."""
    return function("chunk_start")


def chunk_answer(cache: Cache, answer: Term) -> Term:
    """KV-CHUNK-2; the block size is the alignment (KV-CHUNK-3)."""
    start = chunk_of()
    same = forall(
        [cache.lengths, cache.lengths],
        lambda m, n: z3.And(
            start(n) >= 0,
            start(n) <= n,
            z3.Implies(z3.And(start(n) <= m, m <= n), start(m) == start(n)),
        ),
    )
    return z3.And(same, cache.run(start(cache.limit), answer))


def chunk_hit(cache: Cache, n: Term) -> Term:
    """What its chunk has before it is cached."""
    return cache.all_cached(chunk_of()(n), n)


# States.


def state_answer(cache: Cache, answer: Term) -> Term:
    """KV-MAMBA-3."""

    def stands(e: Term) -> Term:
        return z3.And(e >= 1, e <= cache.limit, cache.is_aligned(e), cache.cached(e - 1))

    later = forall([cache.lengths], lambda e: z3.Implies(e > answer, z3.Not(stands(e))))
    return z3.And(later, z3.Or(stands(answer), answer == 0))


def state_hit(cache: Cache, n: Term) -> Term:
    """The state behind it is cached."""
    return z3.And(cache.is_aligned(n), z3.Or(n == 0, cache.cached(n - 1)))


def kinds() -> Iterator[Kind]:
    """Every look-up that answers its longest hit."""
    yield Kind("full", partial(full_answer, drop=0), partial(full_hit, drop=0))
    yield Kind("full with a drop", partial(full_answer, drop=1), partial(full_hit, drop=1), 1)
    yield Kind("window", partial(window_answer, drop=0), partial(window_hit, drop=0))
    yield dropping_window()
    yield Kind("chunk", chunk_answer, chunk_hit)
    yield Kind("state", state_answer, state_hit)


def dropping_window() -> Kind:
    """Of an eagle group: its answer is the longest only where every block ends an alignment."""
    known, hit = partial(window_answer, drop=1), partial(window_hit, drop=1)
    return Kind("window with a drop", known, hit, 1)
