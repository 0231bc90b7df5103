"""Attention groups as a search sees them: any number, each with any set of hits (KV-COORD-4).

`hit(a, n)`: group a may start a request at n tokens. `behind(a, n)`: it has the block behind these
n tokens as well, which is what a look-up with a drop asks for. Both hold for n = 0, and only of
lengths that end where the blocks of all groups do.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import z3

from proofs._z3 import Range, Term, forall, function

Predicate = Callable[..., Term]


@dataclass(frozen=True)
class Groups:
    """Facts that no look-up changes. `size`: groups of a written-out search, of 0 … 3 tokens."""

    size: int | None
    num: Term
    limit: Term  # L of KV-COORD-5
    is_full: Predicate
    is_eagle: Predicate
    is_mamba: Predicate
    block_size: Callable[..., Term]
    rest: Callable[..., Term]  # of a length divided by a block size
    is_aligned: Predicate
    hit: Predicate
    behind: Predicate

    @property
    def groups(self) -> Range:
        return Range(0, self.num, None if self.size is None else range(self.size))

    @property
    def lengths(self) -> Range:
        return Range(0, None, None if self.size is None else range(4))

    def drops(self, a: Term) -> Term:
        """State that the group drops a block until it is marked (KV-COORD-7, KV-COORD-8)."""
        return z3.And(self.is_eagle(a), z3.Not(self.is_mamba(a)))

    def good(self, a: Term, n: Term) -> Term:
        """State that the group can return n tokens, and has the block behind if it drops."""
        room = z3.Or(n == 0, n + self.block_size(a) <= self.limit)
        dropped = z3.And(self.behind(a, n), room)
        return z3.And(self.hit(a, n), z3.Implies(self.drops(a), dropped))

    def is_common(self, n: Term) -> Term:
        """State that n is good for all groups."""
        return z3.And(n >= 0, n <= self.limit, forall([self.groups], lambda a: self.good(a, n)))

    def holds(self) -> list[Term]:
        """Return the assumptions on the order of groups, on sizes, and on sets of hits."""
        each, pairs = [self.groups], [self.groups, self.lengths]
        sizes = forall(each, lambda a: self.block_size(a) >= 1, about=self.block_size)
        whole = forall(
            pairs,
            lambda a, n: z3.Implies(self.is_aligned(n), self.rest(n, self.block_size(a)) == 0),
            about=lambda a, n: self.rest(n, self.block_size(a)),
        )
        order = forall(
            [self.groups, self.groups],
            lambda a, b: z3.Implies(z3.And(self.is_full(b), a < b), self.is_full(a)),
        )
        kinds = forall(
            each, lambda a: z3.Not(z3.And(self.is_full(a), self.is_mamba(a))), about=self.is_mamba
        )
        aligned = forall(
            pairs, lambda a, n: z3.Implies(self.hit(a, n), self.is_aligned(n)), about=self.hit
        )
        more = forall(
            pairs, lambda a, n: z3.Implies(self.behind(a, n), self.hit(a, n)), about=self.behind
        )
        nothing = forall(
            each, lambda a: z3.And(self.hit(a, 0), self.behind(a, 0)), about=self.block_size
        )
        shorter = forall([self.groups, self.lengths, self.lengths], self._is_downward_closed)
        known = [self.num >= 1, self.limit >= 0, self.is_aligned(z3.IntVal(0))]
        if self.size is not None:
            known += [self.num == self.size, self.limit <= 3]
        return [*known, sizes, whole, order, kinds, aligned, more, nothing, shorter]

    def _is_downward_closed(self, a: Term, n: Term, m: Term) -> Term:
        """State that in full attention every shorter prefix of a hit is a hit."""
        shorter = z3.And(self.is_full(a), self.is_aligned(m), m <= n)
        hits = z3.Implies(self.hit(a, n), self.hit(a, m))
        return z3.Implies(shorter, z3.And(hits, z3.Implies(self.behind(a, n), self.behind(a, m))))

    def answers(self, a: Term, within: Term, answer: Term, *, drop: bool) -> Term:
        """State the promise of the group's chapter for a look-up within this many tokens."""
        size = self.block_size(a)
        if drop:
            found = z3.And(self.behind(a, answer), z3.Or(answer == 0, answer + size <= within))
            longest = forall(
                [self.lengths],
                lambda n: z3.Implies(z3.And(self.behind(a, n), n + size <= within), n <= answer),
                about=lambda n: self.behind(a, n),
            )
        else:
            found = z3.And(self.hit(a, answer), answer <= within)
            longest = forall(
                [self.lengths],
                lambda n: z3.Implies(z3.And(self.hit(a, n), n <= within), n <= answer),
                about=lambda n: self.hit(a, n),
            )
        return z3.And(answer >= 0, found, longest)

    def one_drops(self) -> Term:
        """State that full attention aside at most one group is eagle: see `Search.marks`."""
        return forall(
            [self.groups, self.groups],
            lambda a, b: z3.Implies(
                z3.And(
                    self.is_eagle(a),
                    self.is_eagle(b),
                    z3.Not(self.is_full(a)),
                    z3.Not(self.is_full(b)),
                ),
                a == b,
            ),
        )


def any_groups(size: int | None = None) -> Groups:
    """Return groups of which nothing is known."""
    return Groups(
        size=size,
        num=z3.Int("num_groups"),
        limit=z3.Int("limit"),
        is_full=predicate("is_full"),
        is_eagle=predicate("is_eagle"),
        is_mamba=predicate("is_mamba"),
        block_size=function("block_size"),
        rest=function("rest", 2),
        is_aligned=predicate("is_aligned"),
        hit=predicate("hit", 2),
        behind=predicate("behind", 2),
    )


def predicate(name: str, arity: int = 1) -> Predicate:
    """Return an unknown predicate of ints."""
    made: Predicate = z3.Function(name, *[z3.IntSort()] * arity, z3.BoolSort())
    return made
