"""What groups do with lists, as steps from one state to the next (KV-GRP-*)."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

import z3

from proofs._z3 import Range, Term, forall, function, larger
from proofs.models._lists.state import FEW_ENTRIES, Lists, of_entries


@dataclass(frozen=True)
class Step:
    """What allows a step, the state after it, and what the rules say of it besides."""

    allowed: Term
    after: Lists
    effect: Term


Action = Callable[[Lists], Step]

NAME, END, START = z3.Ints("name end start")
"""The list, and where an action ends or begins in it."""
TRUE, FALSE = z3.BoolVal(True), z3.BoolVal(False)


def take_hits(state: Lists) -> Step:
    """An empty list becomes `START` nulls and hits up to `END`, all of them counted (KV-GRP-5).

    Each hit carries the key of its place (KV-MGR-8).
    """
    hit = function("hit")
    entries = Range(0, END, range(FEW_ENTRIES) if state.is_few else None)

    def fits(i: Term) -> Term:
        b = hit(i)
        place = z3.And(state.key_group(b) == state.group(NAME), state.key_index(b) == i)
        return z3.Implies(i >= START, z3.And(state.blocks.has(b), b != 0, state.full(b), place))

    allowed = z3.And(
        state.lists.has(NAME),
        state.length(NAME) == 0,
        START >= 0,
        START <= END,
        z3.Or(state.skips(NAME), START == 0),
        forall([entries], fits, about=hit),
    )
    if state.is_few:
        allowed = z3.And(allowed, END <= FEW_ENTRIES)
    after = with_list(
        state,
        length=END,
        nulls=START,
        count=END,
        at=lambda i: z3.If(i < START, 0, hit(i)),
        pos=lambda b: state.key_index(b),
    )
    return Step(allowed, after, TRUE)


def with_list(
    state: Lists,
    *,
    length: Term,
    nulls: Term,
    count: Term,
    at: Callable[[Term], Term],
    pos: Callable[[Term], Term],
) -> Lists:
    """The list that an action is about, changed."""
    return replace(
        state,
        length=lambda n: z3.If(n == NAME, length, state.length(n)),
        nulls=lambda n: z3.If(n == NAME, nulls, state.nulls(n)),
        count=lambda n: z3.If(n == NAME, count, state.count(n)),
        at=lambda n, i: z3.If(n == NAME, at(i), state.at(n, i)),
        pos=lambda n, b: z3.If(n == NAME, pos(b), state.pos(n, b)),
    )


def without_keys(state: Lists, dropped: Callable[[Term], Term]) -> Lists:
    """Keys go where `dropped` holds."""
    return replace(
        state,
        keyed=lambda b: z3.And(state.keyed(b), z3.Not(dropped(b))),
        full=lambda b: z3.And(state.full(b), z3.Not(dropped(b))),
    )


def extend(state: Lists) -> Step:
    """Blocks out of the free queue are appended up to `END`, without keys (KV-GRP-6, KV-GRP-7).

    Of the queue it is known that its blocks are in no list (`pool.py`), and not set aside.
    """
    fresh, order = function("fresh"), function("order")
    length = state.length(NAME)
    new = Range(0, END - length, range(FEW_ENTRIES) if state.is_few else None)

    def is_new(b: Term) -> Term:
        return z3.And(order(b) >= 0, order(b) < END - length, fresh(order(b)) == b)

    def fits(k: Term) -> Term:
        b = fresh(k)
        apart = z3.And(state.blocks.has(b), b != 0, z3.Not(state.aside(b)), order(b) == k)
        return apart

    unlisted = of_entries(state, lambda n, i: z3.Not(is_new(state.at(n, i))))
    allowed = z3.And(state.lists.has(NAME), length <= END, forall([new], fits, about=fresh))
    if state.is_few:
        allowed = z3.And(allowed, END <= FEW_ENTRIES)
    after = with_list(
        without_keys(state, is_new),
        length=END,
        nulls=state.nulls(NAME),
        count=state.count(NAME),
        at=lambda i: z3.If(i < length, state.at(NAME, i), fresh(i - length)),
        pos=lambda b: z3.If(is_new(b), order(b) + length, state.pos(NAME, b)),
    )
    return Step(z3.And(allowed, unlisted), after, TRUE)


def remove_skipped(state: Lists) -> Step:
    """Entries before `END` turn null (KV-GRP-2)."""
    allowed = z3.And(state.lists.has(NAME), END >= 0, state.length(NAME) >= END, state.skips(NAME))
    after = with_list(
        state,
        length=state.length(NAME),
        nulls=larger(state.nulls(NAME), END),
        count=state.count(NAME),
        at=lambda i: z3.If(i < END, 0, state.at(NAME, i)),
        pos=lambda b: state.pos(NAME, b),
    )
    return Step(allowed, after, TRUE)


def cache(state: Lists) -> Step:
    """Blocks from the count up to `END` get their keys, where they are worth it (KV-GRP-11).

    None of them has the key of a full block (KV-POOL-18).
    """
    worth = z3.Function("worth", z3.IntSort(), z3.BoolSort())
    first = state.count(NAME)

    def is_given(b: Term) -> Term:
        place = state.pos(NAME, b)
        return z3.And(state.lists_block(NAME, b), first <= place, place < END, worth(place))

    allowed = z3.And(state.lists.has(NAME), first <= END, state.length(NAME) >= END)
    after = replace(
        state,
        count=lambda n: z3.If(n == NAME, END, state.count(n)),
        keyed=lambda b: z3.Or(state.keyed(b), is_given(b)),
        full=lambda b: z3.Or(state.full(b), is_given(b)),
        key_group=lambda b: z3.If(is_given(b), state.group(NAME), state.key_group(b)),
        key_index=lambda b: z3.If(is_given(b), state.pos(NAME, b), state.key_index(b)),
    )
    once = forall([state.blocks], lambda b: z3.Not(z3.And(is_given(b), state.full(b))))
    return Step(allowed, after, once)


def cache_partial(state: Lists) -> Step:
    """The block at `START` gets a key that ends inside it (KV-PART-1)."""
    b = state.at(NAME, START)
    allowed = z3.And(state.lists.has(NAME), state.has(NAME, START))
    after = replace(
        state,
        keyed=lambda c: z3.Or(state.keyed(c), c == b),
        key_group=lambda c: z3.If(c == b, state.group(NAME), state.key_group(c)),
        key_index=lambda c: z3.If(c == b, START, state.key_index(c)),
    )
    return Step(allowed, after, TRUE)


def drop(state: Lists) -> Step:
    """A request is freed, or popped (KV-MGR-12, KV-MGR-13)."""
    zero = z3.IntVal(0)
    after = with_list(
        state, length=zero, nulls=zero, count=zero, at=lambda i: zero, pos=lambda b: zero
    )
    return Step(state.lists.has(NAME), after, TRUE)


def evict(state: Lists) -> Step:
    """A block loses its keys (KV-POOL-4, KV-POOL-10)."""
    block = z3.Int("block")
    return Step(state.blocks.has(block), without_keys(state, lambda b: b == block), TRUE)


def reset(state: Lists) -> Step:
    """All keys go (KV-POOL-11)."""
    return Step(TRUE, without_keys(state, lambda b: TRUE), TRUE)


ACTIONS: Mapping[str, Action] = {
    each.__name__: each
    for each in (take_hits, extend, remove_skipped, cache, cache_partial, drop, evict, reset)
}
