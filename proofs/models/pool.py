"""Every action keeps every invariant of the pool, for any number of blocks, claims and keys.

Statement: the start is a state in which each sentence of `_pool.invariants` holds, and from a
state in which all hold each action leads to such a state. Actions: those of KV-POOL-3 … KV-POOL-6,
KV-POOL-10, KV-POOL-11, KV-POOL-14. `allocate` and `set_aside` take any number of blocks at once.
Touch, release and evict are given for one block: a call for a list is some of these in a row. In
addition the order of the free queue and of copies changes only as the rules say (KV-POOL-5,
KV-POOL-6, KV-POOL-10, KV-POOL-13).

Assumed of callers: a list takes no place twice, and a hit carries the key of its place (KV-MGR-8).
Each action is shown to be possible, and a mistake in it to be found in a pool of a few blocks.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from functools import partial

import z3

from proofs._z3 import Ledger, Term, ask, forall
from proofs.models._pool.actions import ACTIONS, Step
from proofs.models._pool.invariants import INVARIANTS
from proofs.models._pool.mistakes import MISTAKES, Mistake
from proofs.models._pool.parts import start
from proofs.models._pool.state import State, World, any_state, any_world

ASSUMES = ("hits carry the keys of their places", "no block is twice among hits")
GUARANTEES = (
    "a block that is put into the queue is not in it",
    "no free block has a reference, and none is lost",
)

SIZES = (2, 4, 8)
"""Blocks of the pools in which a mistake is looked for, the smallest first."""


def order_kept(world: World, state: State, after: State) -> Term:
    """Blocks that stay in the free queue stay in their order."""

    def same(b: Term, c: Term) -> Term:
        stay = [each.waits(block) for each in (state, after) for block in (b, c)]
        before = state.pos(b) < state.pos(c)
        return z3.Implies(z3.And(*stay), before == (after.pos(b) < after.pos(c)))

    return forall([world.blocks, world.blocks], same)


def copies_kept(world: World, state: State, after: State) -> Term:
    """Copies that stay are answered in their order, and before new ones."""

    def same(b: Term, c: Term, k: Term) -> Term:
        both = z3.And(state.carries(b, k) > 0, *(after.carries(each, k) > 0 for each in (b, c)))
        kept = (state.stamp(b, k) < state.stamp(c, k)) == (after.stamp(b, k) < after.stamp(c, k))
        first = after.stamp(b, k) < after.stamp(c, k)
        return z3.Implies(both, z3.If(state.carries(c, k) > 0, kept, z3.Or(b == c, first)))

    return forall([world.blocks, world.blocks, world.keys], same)


def obligations(world: World, state: State, step: Step) -> Mapping[str, Callable[[], Term]]:
    """What must hold after a step, by name."""
    after = step.after
    made = {name: partial(invariant, world, after) for name, invariant in INVARIANTS.items()}
    made["order_kept"] = partial(order_kept, world, state, after)
    made["copies_kept"] = partial(copies_kept, world, state, after)
    for number, effect in enumerate(step.effects):
        made[f"effect {number}"] = partial(effect, after)
    return made


def known(world: World, state: State) -> list[Term]:
    """All invariants hold."""
    before = [invariant(world, state) for invariant in INVARIANTS.values()]
    if world.size is not None:
        before += [state.front == 0, state.back <= world.size]
    return [world.holds(), *before]


def prove_all(ledger: Ledger) -> None:
    """Every invariant at the start and after every action."""
    world, state = any_world(), any_state()
    for name, invariant in INVARIANTS.items():
        ledger.prove(f"start: {name}", [world.holds()], invariant(world, start(world)))
    before = known(world, state)
    for action, take in ACTIONS.items():
        step = take(world, state)
        for name, claim in obligations(world, state, step).items():
            ledger.prove(f"{action}: {name}", [*before, step.allowed], claim())


def find_mistakes(ledger: Ledger) -> None:
    """In a pool of few blocks each action is possible, and each mistake breaks what it must."""
    state, hidden = any_state(), list(MISTAKES)
    for size in SIZES:
        world = any_world(size)
        before = known(world, state)
        if size == SIZES[1]:
            for action, take in ACTIONS.items():
                ledger.possible(f"{action} is possible", *before, take(world, state).allowed)
        hidden = [each for each in hidden if not is_broken(world, state, before, each)]
    for mistake in MISTAKES:
        name = f"{mistake.action}, {mistake.sentence}: {mistake.breaks}"
        ledger.agree(name, mistake not in hidden)
    broken = {mistake.breaks for mistake in MISTAKES}
    ledger.agree("every invariant is broken by a mistake", broken >= set(INVARIANTS))


def is_broken(world: World, state: State, before: list[Term], mistake: Mistake) -> bool:
    """Whether a step with the mistake breaks its statement, and one without does not."""
    right = ACTIONS[mistake.action](world, state)
    answers = []
    for step in (right, mistake.damage(world, state, right)):
        claim = obligations(world, state, step)[mistake.breaks]()
        answers.append(ask([*before, step.allowed, z3.Not(claim)]))
    return answers == ["unsat", "sat"]


def main() -> int:
    """Ask everything; 0 if each answer is the expected one."""
    ledger = Ledger("pool")
    prove_all(ledger)
    find_mistakes(ledger)
    return ledger.finish()


if __name__ == "__main__":
    sys.exit(main())
