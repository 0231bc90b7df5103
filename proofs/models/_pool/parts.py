"""Parts of the actions of a pool: keys, claims, and the order of the queue (KV-POOL-*)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import z3

from proofs._z3 import Term, forall
from proofs.models._pool.state import LISTED, State, World, any_state, in_list, same_place


def start(world: World) -> State:
    """The pool as it is made: the queue 1, 2, … (KV-POOL-2), no claims, no keys."""

    def nothing(*_: Term) -> Term:
        return z3.IntVal(0)

    return replace(
        any_state(),
        refs=nothing,
        at=lambda p: p + 1,
        pos=lambda b: b - 1,
        front=z3.IntVal(0),
        back=world.num_blocks - 1,
        carries=nothing,
        listed=nothing,
        held=nothing,
    )


def without_keys(state: State, dropped: Callable[[Term], Term]) -> State:
    """Drop all keys of the blocks for which `dropped` holds."""
    return replace(
        state,
        carries=lambda b, k: z3.If(dropped(b), 0, state.carries(b, k)),
        listed=lambda b, k: z3.If(dropped(b), 0, state.listed(b, k)),
    )


def with_key(state: State, block: Term, key: Term) -> State:
    """Add a key to a block, behind all copies."""

    def hit(b: Term, k: Term) -> Term:
        return z3.And(b == block, k == key)

    return replace(
        state,
        carries=lambda b, k: state.carries(b, k) + z3.If(hit(b, k), 1, 0),
        listed=lambda b, k: state.listed(b, k) + z3.If(hit(b, k), 1, 0),
        stamp=lambda b, k: z3.If(hit(b, k), state.clock, state.stamp(b, k)),
        clock=state.clock + 1,
    )


def with_claim(state: State, claim: Term, block: Term) -> State:
    """A place of a list takes a block: one reference more."""
    refs = state.refs(block)
    return replace(
        state,
        refs=lambda b: z3.If(b == block, refs + 1, state.refs(b)),
        held=lambda c: z3.If(c == claim, block, state.held(c)),
        kind=lambda c: z3.If(c == claim, LISTED, state.kind(c)),
        number=lambda c: z3.If(c == claim, refs, state.number(c)),
        nth=lambda b, j: z3.If(z3.And(b == block, j == refs), claim, state.nth(b, j)),
    )


def without_claim(state: State, claim: Term) -> State:
    """A claim ends: one reference less; the claim with the last number takes over its number."""
    block, number = state.held(claim), state.number(claim)
    last = state.nth(block, state.refs(block) - 1)
    return replace(
        state,
        refs=lambda b: z3.If(b == block, state.refs(b) - 1, state.refs(b)),
        held=lambda c: z3.If(c == claim, 0, state.held(c)),
        number=lambda c: z3.If(c == last, number, state.number(c)),
        nth=lambda b, j: z3.If(z3.And(b == block, j == number), last, state.nth(b, j)),
    )


def unqueued(state: State, block: Term) -> State:
    """Take a block out of the queue wherever it stands; those behind it move up."""
    hole = state.pos(block)
    return replace(
        state,
        at=lambda p: z3.If(p < hole, state.at(p), state.at(p + 1)),
        pos=lambda b: z3.If(state.pos(b) > hole, state.pos(b) - 1, state.pos(b)),
        back=state.back - 1,
    )


def queued_at_back(state: State, block: Term) -> State:
    """Put a block at the end of the queue."""
    return replace(
        state,
        at=lambda p: z3.If(p == state.back, block, state.at(p)),
        pos=lambda b: z3.If(b == block, state.back, state.pos(b)),
        back=state.back + 1,
    )


def queued_in_front(state: State, block: Term, run: Term) -> State:
    """Put a block behind the first `run` of the queue, which move one forward."""
    place = state.front + run - 1
    return replace(
        state,
        at=lambda p: z3.If(p < place, state.at(p + 1), z3.If(p == place, block, state.at(p))),
        pos=lambda b: z3.If(
            b == block, place, z3.If(state.pos(b) <= place, state.pos(b) - 1, state.pos(b))
        ),
        front=state.front - 1,
    )


def fresh_place(world: World, state: State, claim: Term) -> Term:
    """Whether a claim is one that holds nothing, and its place in a list is empty."""
    empty = forall(
        [world.claims],
        lambda c: z3.Not(z3.And(in_list(state, c), same_place(world, c, claim))),
    )
    return z3.And(world.claims.has(claim), state.held(claim) == 0, empty)


def if_queue(condition: Term, one: State, other: State) -> State:
    """`other`, with the queue of `one` if the condition holds."""
    return replace(
        other,
        at=lambda p: z3.If(condition, one.at(p), other.at(p)),
        pos=lambda b: z3.If(condition, one.pos(b), other.pos(b)),
        front=z3.If(condition, one.front, other.front),
        back=z3.If(condition, one.back, other.back),
    )
