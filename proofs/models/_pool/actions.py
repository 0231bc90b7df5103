"""The actions of a pool as steps from one state to the next (KV-POOL-*)."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

import z3

from proofs._z3 import Range, Term, forall, function
from proofs.models._pool.parts import (
    fresh_place,
    if_queue,
    queued_at_back,
    queued_in_front,
    unqueued,
    with_claim,
    with_key,
    without_claim,
    without_keys,
)
from proofs.models._pool.state import (
    LISTED,
    POPPED,
    SET_ASIDE,
    State,
    World,
    in_list,
    same_place,
)


@dataclass(frozen=True)
class Step:
    """What allows a step, the state after it, and what the rules say of that besides."""

    allowed: Term
    after: State
    effects: tuple[Callable[[State], Term], ...] = ()


Action = Callable[[World, State], Step]


def allocating(world: World, state: State, kind: int) -> Step:
    """Take any number of blocks from the front, each for a new claim (KV-POOL-3, KV-POOL-4).

    `place(i)` is the claim that gets the block number i, and `order` the way back.
    """
    count = z3.Int("count")
    place, order = function("place"), function("order")

    def new(c: Term) -> Term:
        return z3.And(order(c) >= 0, order(c) < count, place(order(c)) == c)

    def taken(b: Term) -> Term:
        return z3.And(state.waits(b), state.pos(b) < state.front + count)

    numbers = Range(0, count, world.numbers.values)
    matched = forall(
        [numbers],
        lambda i: z3.And(
            order(place(i)) == i, world.claims.has(place(i)), state.held(place(i)) == 0
        ),
    )
    apart = forall(
        [world.claims, world.claims],
        lambda c, d: z3.Implies(
            z3.And(new(c), c != d, z3.Or(new(d), in_list(state, d))),
            z3.Not(same_place(world, c, d)),
        ),
    )
    cleared = without_keys(state, taken)
    after = replace(
        cleared,
        refs=lambda b: z3.If(taken(b), 1, state.refs(b)),
        front=state.front + count,
        held=lambda c: z3.If(new(c), state.at(state.front + order(c)), state.held(c)),
        kind=lambda c: z3.If(new(c), kind, state.kind(c)),
        number=lambda c: z3.If(new(c), 0, state.number(c)),
        nth=lambda b, j: z3.If(
            z3.And(taken(b), j == 0), place(state.pos(b) - state.front), state.nth(b, j)
        ),
    )
    enough = z3.And(count >= 0, count <= state.back - state.front)

    def unhashed(end: State) -> Term:
        return forall(
            [world.blocks, world.keys],
            lambda b, k: z3.Or(z3.Not(taken(b)), end.carries(b, k) == 0),
        )

    return Step(z3.And(enough, matched, apart), after, (unhashed,))


def allocate(world: World, state: State) -> Step:
    """For places of lists."""
    return allocating(world, state, LISTED)


def set_aside(world: World, state: State) -> Step:
    """For good (KV-FULL-8)."""
    return allocating(world, state, SET_ASIDE)


def touch(world: World, state: State) -> Step:
    """A hit: a block takes a claim whose place its key names, and leaves the queue (KV-POOL-5)."""
    block, claim, key = z3.Ints("block claim key")
    hit = z3.And(
        world.keys.has(key),
        state.carries(block, key) > 0,
        world.key_group(key) == world.group(claim),
        world.key_index(key) == world.index(claim),
    )
    allowed = z3.And(world.blocks.has(block), block != 0, fresh_place(world, state, claim), hit)
    revived = state.refs(block) == 0
    queue = if_queue(revived, unqueued(state, block), state)
    return Step(allowed, with_claim(queue, claim, block))


def release(world: World, state: State) -> Step:
    """A claim ends; without references a block returns to the queue (KV-POOL-6).

    `run` blocks were put in front by the same call. `to_front` is the policy of unhashed blocks.
    """
    claim, key, run = z3.Ints("claim key run")
    cached, to_front = z3.Bools("cached to_front")
    block = state.held(claim)
    known = z3.If(
        cached,
        z3.And(world.keys.has(key), state.carries(block, key) > 0),
        forall([world.keys], lambda k: state.carries(block, k) == 0),
    )
    allowed = z3.And(world.claims.has(claim), block != 0, state.kind(claim) != SET_ASIDE, known)
    in_run = z3.And(run >= 0, run <= state.back - state.front)
    rest = without_claim(state, claim)
    freed = state.refs(block) == 1
    in_front = z3.And(to_front, z3.Not(cached))
    queue = if_queue(in_front, queued_in_front(rest, block, run), queued_at_back(rest, block))
    after = if_queue(freed, queue, rest)

    def in_its_place(end: State) -> Term:
        def as_told(b: Term) -> Term:
            behind = z3.And(in_front, state.pos(b) >= state.front + run)
            others = z3.And(freed, state.waits(b), b != block)
            return z3.Implies(others, behind == (end.pos(block) < end.pos(b)))

        return forall([world.blocks], as_told)

    return Step(z3.And(allowed, in_run), after, (in_its_place,))


def pop(world: World, state: State) -> Step:
    """A request is forgotten, its references wait for their return (KV-MGR-13)."""
    request = z3.Int("popped_request")

    def popped(c: Term) -> Term:
        return z3.And(state.kind(c) == LISTED, world.request(c) == request)

    after = replace(state, kind=lambda c: z3.If(popped(c), POPPED, state.kind(c)))
    return Step(z3.BoolVal(True), after)


def may_carry(world: World, state: State, block: Term, key: Term) -> Term:
    """A listed block may get the keys of its place, of an existing group, with caching on."""
    claim = z3.Int("claim")
    listed = z3.And(world.claims.has(claim), in_list(state, claim), state.held(claim) == block)
    place = z3.And(
        world.key_group(key) == world.group(claim), world.key_index(key) == world.index(claim)
    )
    group = z3.And(world.key_group(key) >= 0, world.key_group(key) < world.num_groups)
    return z3.And(world.keys.has(key), world.caching, listed, place, group)


def longer(world: World, state: State, block: Term, key: Term) -> Term:
    """Whether every key of the block is of a shorter prefix, or there is none (KV-POOL-18)."""
    none = forall([world.keys], lambda k: state.carries(block, k) == 0)
    return z3.Or(none, state.covered(block) < world.key_tokens(key))


def register(world: World, state: State) -> Step:
    """A full block gets its key; keys of shorter prefixes go first (KV-POOL-14, KV-POOL-18)."""
    block, key = z3.Ints("block key")
    cleared = without_keys(state, lambda b: b == block)
    after = replace(
        with_key(cleared, block, key),
        covered=lambda b: z3.If(b == block, world.key_tokens(key), state.covered(b)),
    )
    allowed = z3.And(may_carry(world, state, block, key), longer(world, state, block, key))

    def alone(end: State) -> Term:
        return forall([world.keys], lambda k: (end.carries(block, k) == 1) == (k == key))

    return Step(allowed, after, (alone,))


def register_partial(world: World, state: State) -> Step:
    """A further key, of a prefix that is no longer than the primary one (KV-PART-2).

    A key of a longer prefix replaces all, as in `register` (KV-PART-3).
    """
    block, key = z3.Ints("block key")
    fits = z3.And(world.key_tokens(key) <= state.covered(block), state.carries(block, key) == 0)
    return Step(z3.And(may_carry(world, state, block, key), fits), with_key(state, block, key))


def evict(world: World, state: State) -> Step:
    """A block loses its keys wherever it is (KV-POOL-10)."""
    block = z3.Int("block")
    return Step(world.blocks.has(block), without_keys(state, lambda b: b == block))


def reset(world: World, state: State) -> Step:
    """With no block in use all keys go (KV-POOL-11)."""
    idle = forall([world.claims], lambda c: z3.Or(state.held(c) == 0, state.kind(c) == SET_ASIDE))
    return Step(idle, without_keys(state, lambda b: z3.BoolVal(True)))


ACTIONS: Mapping[str, Action] = {
    each.__name__: each
    for each in (
        allocate,
        set_aside,
        touch,
        release,
        pop,
        register,
        register_partial,
        evict,
        reset,
    )
}
