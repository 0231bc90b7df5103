"""What must hold of every state of a pool: what `kvspec.invariants` says of one (KV-POOL-*).

`keys_of_one_place`, `keys_covered` and `set_aside_alone` are there since actions would not keep the
others without them; `places_taken_once` is true of a snapshot by its form.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import z3

from proofs._z3 import Term, forall
from proofs.models._pool.state import SET_ASIDE, State, World, in_list, same_place


def right_shape(world: World, state: State) -> Term:
    """Every block id lies in the pool (KV-CFG-2)."""
    queue = forall([world.positions(state)], lambda p: world.blocks.has(state.at(p)))
    claims = forall([world.claims], lambda c: world.blocks.has(state.held(c)))
    return z3.And(state.front <= state.back, queue, claims)


def null_block_apart(world: World, state: State) -> Term:
    """Never free, never counted, never cached (KV-POOL-1)."""
    queue = forall([world.positions(state)], lambda p: state.at(p) != 0)
    keys = forall([world.keys], lambda k: state.carries(0, k) == 0)
    return z3.And(state.refs(0) == 0, queue, keys)


def queue_without_duplicates(world: World, state: State) -> Term:
    """A block has one position (KV-POOL-15)."""
    return forall([world.positions(state)], lambda p: state.pos(state.at(p)) == p)


def free_means_unreferenced(world: World, state: State) -> Term:
    """A block but null is in the queue exactly when nobody references it (KV-POOL-15)."""
    return forall([world.blocks], lambda b: z3.Or(b == 0, state.waits(b) == (state.refs(b) == 0)))


def references_not_negative(world: World, state: State) -> Term:
    """No count falls below 0 (KV-POOL-16)."""
    return forall([world.blocks], lambda b: state.refs(b) >= 0)


def references_accounted_for(world: World, state: State) -> Term:
    """The references of a block are its claims (KV-POOL-16): numbers and claims match."""

    def has_number(c: Term) -> Term:
        block, number = state.held(c), state.number(c)
        ranks = z3.And(number >= 0, number < state.refs(block), state.nth(block, number) == c)
        return z3.Or(block == 0, ranks)

    def has_claim(b: Term, j: Term) -> Term:
        claim = state.nth(b, j)
        known = z3.And(world.claims.has(claim), state.number(claim) == j)
        return z3.Implies(j < state.refs(b), z3.And(known, state.held(claim) == b))

    return z3.And(
        forall([world.claims], has_number), forall([world.blocks, world.numbers], has_claim)
    )


def keys_and_lookups_agree(world: World, state: State) -> Term:
    """A look-up knows exactly the blocks that carry the key (KV-POOL-13)."""
    return forall(
        [world.blocks, world.keys], lambda b, k: state.carries(b, k) == state.listed(b, k)
    )


def keys_once(world: World, state: State) -> Term:
    """No block carries a key twice (KV-POOL-14)."""
    return forall(
        [world.blocks, world.keys],
        lambda b, k: z3.And(state.carries(b, k) >= 0, state.carries(b, k) <= 1),
    )


def copies_in_order(world: World, state: State) -> Term:
    """Of two copies of a key one was added first, and new ones come last (KV-POOL-13)."""
    return z3.And(
        forall(
            [world.blocks, world.blocks, world.keys],
            lambda b, c, k: z3.Implies(
                z3.And(b != c, state.carries(b, k) > 0, state.carries(c, k) > 0),
                state.stamp(b, k) != state.stamp(c, k),
            ),
        ),
        forall(
            [world.blocks, world.keys],
            lambda b, k: z3.Or(state.carries(b, k) == 0, state.stamp(b, k) < state.clock),
        ),
    )


def keys_well_formed(world: World, state: State) -> Term:
    """A key names an existing group (KV-HASH-6)."""
    return forall(
        [world.blocks, world.keys],
        lambda b, k: z3.Or(
            state.carries(b, k) == 0,
            z3.And(world.key_group(k) >= 0, world.key_group(k) < world.num_groups),
        ),
    )


def nothing_cached_without_caching(world: World, state: State) -> Term:
    """With caching off no block carries a key (KV-COORD-1)."""
    return forall(
        [world.blocks, world.keys], lambda b, k: z3.Or(world.caching, state.carries(b, k) == 0)
    )


def one_place(world: World, state: State) -> Term:
    """A block is at one index of one group, once per request (KV-POOL-17)."""

    def alike(c: Term, d: Term) -> Term:
        both = z3.And(in_list(state, c), in_list(state, d), state.held(c) == state.held(d), c != d)
        same = z3.And(world.group(c) == world.group(d), world.index(c) == world.index(d))
        return z3.Implies(both, z3.And(same, world.request(c) != world.request(d)))

    return forall([world.claims, world.claims], alike)


def places_taken_once(world: World, state: State) -> Term:
    """A place of a list holds one block (KV-GRP-1)."""
    return forall(
        [world.claims, world.claims],
        lambda c, d: z3.Implies(
            z3.And(in_list(state, c), in_list(state, d), c != d),
            z3.Not(same_place(world, c, d)),
        ),
    )


def cached_where_listed(world: World, state: State) -> Term:
    """A listed block carries keys of its place only (KV-HASH-6, KV-POOL-17)."""
    return forall(
        [world.claims, world.keys],
        lambda c, k: z3.Implies(
            z3.And(in_list(state, c), state.carries(state.held(c), k) > 0),
            z3.And(world.group(c) == world.key_group(k), world.index(c) == world.key_index(k)),
        ),
    )


def keys_of_one_place(world: World, state: State) -> Term:
    """All keys of a block name one index of one group (KV-POOL-17)."""

    def same(b: Term, k: Term, m: Term) -> Term:
        both = z3.And(state.carries(b, k) > 0, state.carries(b, m) > 0)
        group = world.key_group(k) == world.key_group(m)
        return z3.Implies(both, z3.And(group, world.key_index(k) == world.key_index(m)))

    return forall([world.blocks, world.keys, world.keys], same)


def keys_covered(world: World, state: State) -> Term:
    """The primary key covers at least as many tokens as every other (KV-POOL-18, KV-PART-3)."""
    return forall(
        [world.blocks, world.keys],
        lambda b, k: z3.Or(state.carries(b, k) == 0, world.key_tokens(k) <= state.covered(b)),
    )


def set_aside_alone(world: World, state: State) -> Term:
    """A block set aside has one reference and no key (KV-FULL-8)."""

    def alone(c: Term, k: Term) -> Term:
        block = state.held(c)
        apart = z3.And(state.refs(block) == 1, state.carries(block, k) == 0)
        return z3.Or(state.kind(c) != SET_ASIDE, block == 0, apart)

    return forall([world.claims, world.keys], alone)


INVARIANTS: Mapping[str, Callable[[World, State], Term]] = {
    each.__name__: each
    for each in (
        right_shape,
        null_block_apart,
        queue_without_duplicates,
        free_means_unreferenced,
        references_not_negative,
        references_accounted_for,
        keys_and_lookups_agree,
        keys_once,
        copies_in_order,
        keys_well_formed,
        nothing_cached_without_caching,
        one_place,
        places_taken_once,
        cached_where_listed,
        keys_of_one_place,
        keys_covered,
        set_aside_alone,
    )
}
