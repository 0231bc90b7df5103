"""Every action of a group keeps every invariant of the block lists, for any number of them.

Statement: empty lists are a state in which each sentence of `_lists.state` holds, and from a state
in which all hold each action of a group leads to such a state: KV-GRP-2, KV-GRP-5 … KV-GRP-7,
KV-GRP-11, KV-PART-1, KV-MGR-12, KV-MGR-13, and what the pool does to keys (KV-POOL-4, KV-POOL-10,
KV-POOL-11). A caching call never meets a block that has the key of a full block (KV-POOL-18).

Assumed: blocks of the free queue are in no list, which is KV-POOL-15 and KV-POOL-16 (`pool.py`);
hits carry the key of their place (KV-MGR-8). Lists of mode align, where blocks move, are left out.
Each action is shown to be possible with three lists, and mistakes in it are found there.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass, replace

import z3

from proofs._z3 import Ledger, Term
from proofs.models._lists.actions import ACTIONS, END, NAME, START, Step
from proofs.models._lists.state import INVARIANTS, Lists, any_lists

ASSUMES = ("no free block has a reference, and none is lost", "hits carry the keys of their places")
GUARANTEES = ("no block has two places in a list",)


@dataclass(frozen=True)
class Mistake:
    """What is wrong, in which action, and what then no longer holds."""

    sentence: str
    action: str
    breaks: str
    damage: Callable[[Lists, Step], Step]


def leaving(*members: str) -> Callable[[Lists, Step], Step]:
    """The action leaves these members as they were."""

    def damage(state: Lists, step: Step) -> Step:
        same = {name: getattr(state, name) for name in members}
        return replace(step, after=replace(step.after, **same))

    return damage


def allowing(allowed: Callable[[Lists], Term]) -> Callable[[Lists, Step], Step]:
    """The action is allowed where it should not be."""
    return lambda state, step: replace(step, allowed=allowed(state))


def short(state: Lists) -> Term:
    """The list, and an end within it."""
    return z3.And(state.lists.has(NAME), END >= 0, state.length(NAME) >= END, START == 0)


def any_hit(state: Lists) -> Term:
    """Hits whose keys nobody looked at."""
    hits = [z3.Function("hit", z3.IntSort(), z3.IntSort())(z3.IntVal(i)) for i in range(3)]
    known = [z3.And(state.blocks.has(b), b != 0) for b in hits]
    return z3.And(state.lists.has(NAME), state.length(NAME) == 0, START == 0, END == 2, *known)


def outside(state: Lists) -> Term:
    """A hit that is no block of the pool."""
    hit = z3.Function("hit", z3.IntSort(), z3.IntSort())
    empty = z3.And(state.lists.has(NAME), state.length(NAME) == 0, START == 0, END == 1)
    return z3.And(empty, hit(0) >= state.num_blocks)


def null_entry(state: Lists) -> Term:
    """An entry that is null."""
    inside = z3.And(START >= 0, state.length(NAME) > START)
    return z3.And(state.lists.has(NAME), inside, state.at(NAME, START) == 0)


def any_fresh(state: Lists) -> Term:
    """New blocks that may be anybody's."""
    fresh, order = (z3.Function(name, z3.IntSort(), z3.IntSort()) for name in ("fresh", "order"))
    one = z3.And(fresh(0) > 0, state.blocks.has(fresh(0)), order(fresh(0)) == 0)
    apart = z3.Not(state.aside(fresh(0)))
    return z3.And(state.lists.has(NAME), state.length(NAME) + 1 == END, END <= 3, one, apart)


def null_at_the_end(state: Lists, step: Step) -> Step:
    """The last entry goes, too."""

    def at(n: Term, i: Term) -> Term:
        last = z3.And(n == NAME, i == state.length(n) - 1)
        return z3.If(last, 0, step.after.at(n, i))

    return replace(step, after=replace(step.after, at=at))


def key_of_the_next(state: Lists, step: Step) -> Step:
    """Keys are those of the next place."""
    index = step.after.key_index
    changed = replace(step.after, key_index=lambda b: index(b) + 1)
    return replace(step, after=changed)


def cached_from_the_start(state: Lists, step: Step) -> Step:
    """The count is not looked at."""
    again = replace(state, count=lambda n: z3.IntVal(0))
    return replace(step, effect=ACTIONS["cache"](again).effect)


MISTAKES: tuple[Mistake, ...] = (
    Mistake("nulls of hits are not counted", "take_hits", "nulls_come_first", leaving("nulls")),
    Mistake("hits are not counted", "take_hits", "unregistered_behind_the_count", leaving("count")),
    Mistake("hits are not looked at", "take_hits", "keys_of_place", allowing(any_hit)),
    Mistake("nor for what they are", "take_hits", "aside_is_apart", allowing(any_hit)),
    Mistake("hits of another pool", "take_hits", "blocks_in_pool", allowing(outside)),
    Mistake("null gets a key", "cache_partial", "null_has_no_key", allowing(null_entry)),
    Mistake("new blocks of others", "extend", "one_place", allowing(any_fresh)),
    Mistake(
        "new blocks of others, uncounted", "extend", "alone_behind_the_count", allowing(any_fresh)
    ),
    Mistake("new blocks keep their keys", "extend", "keys_of_place", leaving("keyed", "full")),
    Mistake("the way back is lost", "extend", "once_in_a_list", leaving("pos")),
    Mistake("the last entry is removed", "remove_skipped", "nulls_come_first", null_at_the_end),
    Mistake(
        "full attention skips", "remove_skipped", "nothing_skipped_for_nothing", allowing(short)
    ),
    Mistake("keys of the next place", "cache", "keys_of_place", key_of_the_next),
    Mistake("the count stays", "cache", "unregistered_behind_the_count", leaving("count")),
    Mistake("a full key is none", "cache", "full_is_keyed", leaving("keyed")),
    Mistake("cached again", "cache", "effect", cached_from_the_start),
    Mistake("the count of the dead stays", "drop", "counts_fit", leaving("count")),
    Mistake("the nulls of the dead stay", "drop", "lengths", leaving("nulls")),
)


def claims(step: Step) -> dict[str, Term]:
    """What must hold after a step."""
    found = {name: invariant(step.after) for name, invariant in INVARIANTS.items()}
    return {**found, "effect": step.effect}


def known(state: Lists) -> list[Term]:
    """All invariants hold."""
    return [*state.world(), *(invariant(state) for invariant in INVARIANTS.values())]


def prove_all(ledger: Ledger) -> None:
    """Every invariant of empty lists and after every action."""
    state = any_lists()
    nothing = replace(
        state,
        length=lambda n: z3.IntVal(0),
        nulls=lambda n: z3.IntVal(0),
        count=lambda n: z3.IntVal(0),
        keyed=lambda b: z3.BoolVal(False),
        full=lambda b: z3.BoolVal(False),
    )
    for name, invariant in INVARIANTS.items():
        ledger.prove(f"start: {name}", state.world(), invariant(nothing))
    before = known(state)
    for action, take in ACTIONS.items():
        step = take(state)
        for name, claim in claims(step).items():
            ledger.prove(f"{action}: {name}", [*before, step.allowed], claim)


def find_mistakes(ledger: Ledger) -> None:
    """Among three lists each action is possible, and each mistake breaks what it must."""
    state = any_lists(is_few=True)
    before = known(state)
    for action, take in ACTIONS.items():
        step = take(state)
        ledger.possible(f"{action} is possible", *before, step.allowed, state.length(0) > 1)
    for mistake in MISTAKES:
        wrong = mistake.damage(state, ACTIONS[mistake.action](state))
        claim = claims(wrong)[mistake.breaks]
        ledger.refute(f"mistake: {mistake.sentence}", [*before, wrong.allowed], claim)
    broken = {mistake.breaks for mistake in MISTAKES}
    ledger.agree("every invariant is broken by a mistake", broken >= set(INVARIANTS))


def main() -> int:
    """Ask everything; 0 if each answer is the expected one."""
    ledger = Ledger("lists")
    prove_all(ledger)
    find_mistakes(ledger)
    return ledger.finish()


if __name__ == "__main__":
    sys.exit(main())
