"""The hit of a hybrid is the longest common one, for any number of groups and any lengths.

Statement (KV-COORD-5 … KV-COORD-8, KV-COORD-10 … KV-COORD-12): the search ends; the length that it
returns is a hit of every attention group, and no greater length is one; every list has that
length once full attention's are cut to it. `ask` of `kvfast._core.lookup` is run unchanged for
an unknown group among unknown ones, along every path; each look-up keeps the invariants between
two of them (`_fixed_point.search`). That a look-up returns the longest hit of its group is
explored in `look_ups.py`.

Conditions. A block to drop lies within L, as the rules have it (KV-POL-19). Windows of one token
with a drop are left out (KV-SW-6). A window with a drop may lose a short prefix where its block is
shorter than the alignment (KV-SW-5), and so may chunks where nulls alone are no hit (KV-
POL-4); the result is a common hit then too, but a longer one may exist. That the block behind the
hit is there as well, as a drop demands, is proved where at most one group besides full attention is
an eagle group: the drop of a second one clears no marks (KV-COORD-7).

All searches of two or three groups over three tokens are made with kvfast's whole `agreed_hit`, and
mistakes in it are found there.
"""

from __future__ import annotations

import sys
from collections.abc import Callable

import z3

from kvfast._core.lookup import Lookup
from proofs._z3 import Ledger, Term, ask
from proofs.code._fixed_point import worlds
from proofs.code._fixed_point.groups import Groups, any_groups
from proofs.code._fixed_point.search import (
    BASIC,
    CLAIMS,
    Search,
    any_search,
    next_round,
    results,
    start,
    steps,
)
from proofs.code._planted import Planted

ASSUMES = (
    "each type's look-up answers its longest hit",
    "besides full attention at most one group drops a block, a window only one of the alignment",
)
GUARANTEES = ("the hit of several groups is the longest common one",)


def premises(world: Groups, search: Search, *more: str) -> list[Term]:
    """Return the assumptions on groups, and the invariants of a search between look-ups."""
    names = dict.fromkeys((*BASIC, *more))
    condition = [world.one_drops()] if "marks" in names else []
    return [*world.holds(), *condition, *(CLAIMS[name](search, world) for name in names)]


def check_claim(ledger: Ledger, name: str) -> None:
    """Prove that an invariant holds at the start, after each look-up, and in a new round."""
    world, search, claim = any_groups(), any_search(), CLAIMS[name]
    before = premises(world, search, name)
    ledger.prove(f"start: {name}", world.holds(), claim(start(world), world))
    for number, (way, after) in enumerate(steps(world, search)):
        ledger.prove(f"way {number}: {name}", [*before, *way], claim(after, world))
    again = [*before, search.turn == world.num, search.length < search.before]
    ledger.prove(f"next round: {name}", again, claim(next_round(search), world))


def check_ends(ledger: Ledger) -> None:
    """Prove the results of a search that has ended."""
    world, search = any_groups(), any_search()
    for end, condition in ends(world, search).items():
        ended = [search.turn == world.num, condition]
        known = [*premises(world, search, "misses_nothing", "round_agrees"), *ended]
        for name, result in results(world, search).items():
            ledger.prove(f"{end}: {name}", known, result)
        known = [*premises(world, search, "round_agrees", "marks"), *ended]
        ledger.prove(f"{end}: the block behind", known, world.is_common(search.length))


def ends(world: Groups, search: Search) -> dict[str, Term]:
    """Return the conditions under which a search ends (KV-COORD-10)."""
    two = z3.And(world.num == 2, world.is_full(z3.IntVal(0)), search.in_first_round)
    return {"a round shortens nothing": search.length >= search.before, "one round": two}


def check_possible(ledger: Ledger) -> None:
    """Show that no claim is empty."""
    world, search = any_groups(3), any_search()
    known = premises(world, search, *CLAIMS)
    found = [(way, after) for way, after in steps(world, search) if ask([*known, *way]) == "sat"]
    outcomes: dict[str, Callable[[Search], Term]] = {
        "a group shortens": lambda after: after.length < search.length,
        "a group does not": lambda after: after.length == search.length,
        "marks are cleared": lambda after: z3.And(search.mark(0), z3.Not(after.mark(0))),
    }
    for name, outcome in outcomes.items():
        answers = (ask([*known, *way, outcome(after)]) for way, after in found)
        ledger.agree(f"{name}: possible", "sat" in answers)
    later = [search.turn == world.num, search.length < search.before]
    ledger.possible("a further round", *known, *later)
    world = any_groups(2)
    known = [*premises(world, search, *CLAIMS), search.turn == world.num, search.length > 0]
    for end, condition in ends(world, search).items():
        ledger.possible(end, *known, condition)


PLANTED = (
    Planted("KV-COORD-5", (Lookup, "agreed_hit", ">= before or one_round", "<= before")),
    Planted("KV-COORD-10", (Lookup, "agreed_hit", "num == 2", "num <= 3")),
    Planted("KV-COORD-7", (Lookup, "ask", "min(length + size,", "min(length,")),
    Planted("KV-COORD-7", (Lookup, "ask", "min(length + size,", "max(length + size,")),
    Planted("KV-COORD-8", (Lookup, "ask", "is_verified[b] = 0", "is_verified[b] += 0")),
    Planted("KV-COORD-8", (Lookup, "ask", " and not self.is_mamba(a)", "")),
    Planted("KV-COORD-11", (Lookup, "agreed_hit", "min(num_blocks,", "max(num_blocks,")),
)


def check_worlds(ledger: Ledger) -> None:
    """Search every small world with kvfast's look-up, and with mistakes in it."""
    ledger.agree("kvfast's own", worlds.first_wrong() is None)
    for mistake in PLANTED:
        with mistake.done():
            ledger.agree(f"mistake: {mistake}", worlds.first_wrong() is not None)


def main() -> int:
    """Prove everything; return 0 if each answer is the expected one."""
    ledger = Ledger("fixed_point")
    for name in CLAIMS:
        check_claim(ledger, name)
    check_ends(ledger)
    check_possible(ledger)
    check_worlds(ledger)
    return ledger.finish()


if __name__ == "__main__":
    sys.exit(main())
