"""Block lists as functions of ints, and what must hold of them (KV-GRP-*, KV-POOL-17, KV-POOL-18).

A list belongs to one request and one group. Entry i of a list holds a block, or null, 0; `pos` is
the way back. `keyed`: the block carries some key, all of one group and index (`keys_of_one_place`);
`full`: it carries the key of a full block.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import z3

from proofs._z3 import Range, Term, forall, function

FEW_LISTS, FEW_BLOCKS, FEW_ENTRIES = 3, 4, 3

Function = Callable[..., Term]


@dataclass(frozen=True)
class Lists:
    """The lists of all requests, and the keys of blocks. `is_few`: written out for a few."""

    is_few: bool
    num_lists: Term
    num_blocks: Term
    request: Function  # of a list
    group: Function
    skips: Function  # of a list: whether its group ever skips
    aside: Function  # of a block
    length: Function
    nulls: Function
    count: Function  # the cached count
    at: Function  # list, index -> block
    pos: Function  # list, block -> index
    keyed: Function
    full: Function
    key_group: Function
    key_index: Function

    @property
    def lists(self) -> Range:
        return Range(0, self.num_lists, range(FEW_LISTS) if self.is_few else None)

    @property
    def blocks(self) -> Range:
        return Range(0, self.num_blocks, range(FEW_BLOCKS) if self.is_few else None)

    @property
    def entries(self) -> Range:
        return Range(0, None, range(FEW_ENTRIES) if self.is_few else None)

    def has(self, name: Term, i: Term) -> Term:
        """Whether a list has a block at an index."""
        return z3.And(i >= 0, i < self.length(name), self.at(name, i) != 0)

    def lists_block(self, name: Term, b: Term) -> Term:
        """Whether a block is in a list."""
        place = self.pos(name, b)
        return z3.And(self.has(name, place), self.at(name, place) == b)

    def world(self) -> list[Term]:
        """What no action changes: a request has one list in a group."""
        one = forall(
            [self.lists, self.lists],
            lambda m, n: z3.Implies(
                z3.And(self.request(m) == self.request(n), self.group(m) == self.group(n)), m == n
            ),
        )
        known = [self.num_lists >= 1, self.num_blocks >= 1, one]
        if self.is_few:
            known += [self.num_lists == FEW_LISTS, self.num_blocks == FEW_BLOCKS]
            known += [self.length(z3.IntVal(n)) <= FEW_ENTRIES for n in range(FEW_LISTS)]
        return known


def any_lists(*, is_few: bool = False) -> Lists:
    """Lists of which nothing is known."""

    def truth(name: str) -> Function:
        made: Function = z3.Function(name, z3.IntSort(), z3.BoolSort())
        return made

    one = ("request", "group", "length", "nulls", "count", "key_group", "key_index")
    members = {name: function(name) for name in one}
    members |= {name: function(name, 2) for name in ("at", "pos")}
    members |= {name: truth(name) for name in ("skips", "aside", "keyed", "full")}
    return Lists(is_few, z3.Int("num_lists"), z3.Int("num_blocks"), **members)


def of_entries(state: Lists, body: Function) -> Term:
    """Of every block in every list."""
    return forall(
        [state.lists, state.entries],
        lambda n, i: z3.Implies(state.has(n, i), body(n, i)),
        about=state.at,
    )


def of_pairs(state: Lists, body: Function) -> Term:
    """Of every two places that hold one block."""

    def pair(n: Term, i: Term, m: Term, j: Term) -> Term:
        both = z3.And(state.has(n, i), state.has(m, j), state.at(n, i) == state.at(m, j))
        return z3.Implies(both, body(n, i, m, j))

    return forall([state.lists, state.entries, state.lists, state.entries], pair)


def lengths(state: Lists) -> Term:
    """Leading nulls are part of a list."""
    return forall(
        [state.lists],
        lambda n: z3.And(state.nulls(n) >= 0, state.nulls(n) <= state.length(n)),
        about=state.length,
    )


def nulls_come_first(state: Lists) -> Term:
    """Null stands before all blocks (KV-GRP-2)."""

    def in_front(n: Term, i: Term) -> Term:
        return z3.Implies(i < state.length(n), (state.at(n, i) == 0) == (i < state.nulls(n)))

    return forall([state.lists, state.entries], in_front, about=state.at)


def nothing_skipped_for_nothing(state: Lists) -> Term:
    """A group that skips nothing has no null (KV-FULL-1)."""
    none = forall([state.lists], lambda n: z3.Or(state.skips(n), state.nulls(n) == 0))
    return none


def blocks_in_pool(state: Lists) -> Term:
    """Every entry names a block of the pool (KV-CFG-2)."""
    return of_entries(state, lambda n, i: state.blocks.has(state.at(n, i)))


def counts_fit(state: Lists) -> Term:
    """What was handed to the cache are leading blocks (KV-GRP-1)."""
    return forall(
        [state.lists],
        lambda n: z3.And(state.count(n) >= 0, state.count(n) <= state.length(n)),
        about=state.count,
    )


def once_in_a_list(state: Lists) -> Term:
    """A block has one index in a list, `pos`."""
    return of_entries(state, lambda n, i: state.pos(n, state.at(n, i)) == i)


def one_place(state: Lists) -> Term:
    """A block is in one group, at one index everywhere, once per request (KV-POOL-17)."""

    def same(n: Term, i: Term, m: Term, j: Term) -> Term:
        place = z3.And(state.group(n) == state.group(m), i == j)
        return z3.And(place, z3.Implies(state.request(n) == state.request(m), n == m))

    return of_pairs(state, same)


def keys_of_place(state: Lists) -> Term:
    """A listed block has keys of its place only (KV-HASH-6, KV-POOL-17)."""

    def fits(n: Term, i: Term) -> Term:
        b = state.at(n, i)
        place = z3.And(state.key_group(b) == state.group(n), state.key_index(b) == i)
        return z3.Implies(state.keyed(b), place)

    return of_entries(state, fits)


def full_is_keyed(state: Lists) -> Term:
    """The key of a full block is a key."""
    return forall(
        [state.blocks], lambda b: z3.Implies(state.full(b), state.keyed(b)), about=state.full
    )


def unregistered_behind_the_count(state: Lists) -> Term:
    """What was not handed to the cache has no key of a full block (KV-POOL-18)."""
    return of_entries(
        state, lambda n, i: z3.Or(i < state.count(n), z3.Not(state.full(state.at(n, i))))
    )


def alone_behind_the_count(state: Lists) -> Term:
    """And no other list has it, since nobody could hit it."""
    return of_pairs(state, lambda n, i, m, j: z3.Or(i < state.count(n), n == m))


def aside_is_apart(state: Lists) -> Term:
    """A block set aside is in no list and has no key (KV-FULL-8)."""
    listed = of_entries(state, lambda n, i: z3.Not(state.aside(state.at(n, i))))
    keyed = forall(
        [state.blocks], lambda b: z3.Not(z3.And(state.aside(b), state.keyed(b))), about=state.keyed
    )
    return z3.And(listed, keyed)


def null_has_no_key(state: Lists) -> Term:
    """Null is never cached (KV-POOL-1)."""
    return z3.Not(state.keyed(z3.IntVal(0)))


INVARIANTS: Mapping[str, Callable[[Lists], Term]] = {
    each.__name__: each
    for each in (
        lengths,
        nulls_come_first,
        nothing_skipped_for_nothing,
        blocks_in_pool,
        counts_fit,
        once_in_a_list,
        one_place,
        keys_of_place,
        full_is_keyed,
        unregistered_behind_the_count,
        alone_behind_the_count,
        aside_is_apart,
        null_has_no_key,
    )
}
