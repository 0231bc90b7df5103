"""Mistakes in the actions of a pool, each with the statement that it breaks (KV-POOL-*)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import z3

from proofs._z3 import Term
from proofs.models._pool.actions import Step, may_carry
from proofs.models._pool.parts import fresh_place, if_queue, queued_at_back, queued_in_front
from proofs.models._pool.state import State, World, in_list

Damage = Callable[[World, State, Step], Step]


@dataclass(frozen=True)
class Mistake:
    """What is wrong, in which action, and what then no longer holds."""

    sentence: str
    action: str
    breaks: str
    damage: Damage


def leaving(**members: Callable[[State], Term]) -> Damage:
    """The action sets some members otherwise, as functions of the state before."""

    def damage(world: World, state: State, step: Step) -> Step:
        new = {name: member(state) for name, member in members.items()}
        return replace(step, after=replace(step.after, **new))

    return damage


def allowing(allowed: Callable[[World, State], Term]) -> Damage:
    """The action is allowed where it should not be."""
    return lambda world, state, step: replace(step, allowed=allowed(world, state))


def take_one_more(world: World, state: State, step: Step) -> Step:
    return replace(step, after=replace(step.after, front=step.after.front + 1))


def take_too_many(world: World, state: State, step: Step) -> Step:
    return replace(step, after=replace(step.after, front=step.after.back + 1))


def leave_in_queue(world: World, state: State, step: Step) -> Step:
    return replace(step, after=if_queue(z3.BoolVal(True), state, step.after))


def released(state: State) -> Term:
    return state.held(z3.Int("claim"))


def to_front_though_cached(world: World, state: State, step: Step) -> Step:
    block = released(state)
    queue = queued_in_front(state, block, z3.Int("run"))
    return replace(step, after=if_queue(state.refs(block) == 1, queue, step.after))


def to_queue_though_held(world: World, state: State, step: Step) -> Step:
    queue = queued_at_back(state, released(state))
    return replace(step, after=if_queue(z3.BoolVal(True), queue, step.after))


def queue_twice(world: World, state: State, step: Step) -> Step:
    block = released(state)
    again = queued_at_back(step.after, block)
    return replace(step, after=if_queue(state.refs(block) == 1, again, step.after))


def count_down_twice(world: World, state: State, step: Step) -> Step:
    block, refs = released(state), step.after.refs
    fewer = replace(step.after, refs=lambda b: refs(b) - z3.If(b == block, 1, 0))
    return replace(step, after=fewer)


def forget_popped(world: World, state: State, step: Step) -> Step:
    request = z3.Int("popped_request")

    def held(c: Term) -> Term:
        gone = z3.And(in_list(state, c), world.request(c) == request)
        return z3.If(gone, 0, state.held(c))

    return replace(step, after=replace(step.after, held=held))


def release_null(world: World, state: State) -> Term:
    return z3.And(world.claims.has(z3.Int("claim")), released(state) == 0, state.refs(0) == 0)


def touch_anything(world: World, state: State) -> Term:
    block = z3.Int("block")
    return z3.And(world.blocks.has(block), block != 0, fresh_place(world, state, z3.Int("claim")))


def touch_for_taken_place(world: World, state: State) -> Term:
    block, claim, key = z3.Ints("block claim key")
    hit = z3.And(world.keys.has(key), state.carries(block, key) > 0)
    place = z3.And(
        world.key_group(key) == world.group(claim), world.key_index(key) == world.index(claim)
    )
    free = z3.And(world.claims.has(claim), state.held(claim) == 0)
    return z3.And(world.blocks.has(block), hit, place, free)


def register_anywhere(world: World, state: State) -> Term:
    block, key = z3.Ints("block key")
    return z3.And(world.blocks.has(block), block != 0, world.keys.has(key), state.refs(block) > 0)


def register_again(world: World, state: State) -> Term:
    block, key = z3.Ints("block key")
    known = state.carries(block, key) > 0
    shorter = world.key_tokens(key) <= state.covered(block)
    return z3.And(may_carry(world, state, block, key), known, shorter)


MISTAKES: tuple[Mistake, ...] = (
    Mistake(
        "a taken block keeps its keys",
        "allocate",
        "effect 0",
        leaving(carries=lambda s: s.carries, listed=lambda s: s.listed),
    ),
    Mistake(
        "a block set aside keeps its keys",
        "set_aside",
        "set_aside_alone",
        leaving(carries=lambda s: s.carries, listed=lambda s: s.listed),
    ),
    Mistake("a block is lost", "allocate", "free_means_unreferenced", take_one_more),
    Mistake("the queue ends before its start", "allocate", "right_shape", take_too_many),
    Mistake("a hit stays in the queue", "touch", "free_means_unreferenced", leave_in_queue),
    Mistake(
        "a hit is not counted",
        "touch",
        "references_accounted_for",
        leaving(refs=lambda s: s.refs),
    ),
    Mistake("a hit without a key", "touch", "one_place", allowing(touch_anything)),
    Mistake("two hits for a place", "touch", "places_taken_once", allowing(touch_for_taken_place)),
    Mistake("cached blocks go to the front", "release", "effect 0", to_front_though_cached),
    Mistake(
        "a block goes to the queue though others hold it",
        "release",
        "free_means_unreferenced",
        to_queue_though_held,
    ),
    Mistake("a block is queued twice", "release", "queue_without_duplicates", queue_twice),
    Mistake("two references less", "release", "references_not_negative", count_down_twice),
    Mistake("null is released", "release", "null_block_apart", allowing(release_null)),
    Mistake(
        "a reference stays", "release", "references_accounted_for", leaving(refs=lambda s: s.refs)
    ),
    Mistake("popped references are lost", "pop", "references_accounted_for", forget_popped),
    Mistake(
        "a key of a shorter prefix stays",
        "register",
        "effect 0",
        leaving(carries=lambda s: lambda b, k: s.carries(b, k) + _added(b, k)),
    ),
    *(
        Mistake("any block gets any key", "register", breaks, allowing(register_anywhere))
        for breaks in ("keys_well_formed", "nothing_cached_without_caching", "cached_where_listed")
    ),
    Mistake(
        "any block gets another key",
        "register_partial",
        "keys_of_one_place",
        allowing(register_anywhere),
    ),
    Mistake(
        "what the primary key covers is not noted",
        "register",
        "keys_covered",
        leaving(covered=lambda s: s.covered),
    ),
    Mistake("a key is added again", "register_partial", "keys_once", allowing(register_again)),
    Mistake(
        "a copy is answered before older ones",
        "register_partial",
        "copies_kept",
        leaving(stamp=lambda s: lambda b, k: z3.If(_added(b, k) == 1, -1, s.stamp(b, k))),
    ),
    Mistake(
        "two copies are as old as each other",
        "register",
        "copies_in_order",
        leaving(clock=lambda s: s.clock),
    ),
    Mistake(
        "look-ups still know the block",
        "evict",
        "keys_and_lookups_agree",
        leaving(listed=lambda s: s.listed),
    ),
    Mistake(
        "the queue is sorted",
        "reset",
        "order_kept",
        leaving(at=lambda s: lambda p: p + 1, pos=lambda s: lambda b: b - 1),
    ),
)


def _added(b: Term, k: Term) -> Term:
    return z3.If(z3.And(b == z3.Int("block"), k == z3.Int("key")), 1, 0)
