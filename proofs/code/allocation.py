"""The need that admission counts is what an allocation then takes, for all integers.

Statement (KV-GRP-3 … KV-GRP-7, KV-MGR-7, KV-MAMBA-4, KV-MAMBA-7 … KV-MAMBA-9, KV-CROSS-1,
KV-CROSS-2, KV-CROSS-5): for a group of each kind `need_of` of `kvfast._core.allocator` is the
number of blocks that `take_hits` and `take_new` take out of the free queue, new ones and revived
hits; no step takes less than none; and the list then has slots for all that was asked for. The
hits from what is skipped on are copied, each to its own place, and touched, and null is before
them. A hit counts as free just where touching it takes it out of the queue, and null never
(`num_revived`, and `touch` of the pool, of one hit). The need of all groups is the sum. These
methods, and what they call in the allocator and the shape, are run along each way they may take,
for a request that is under way, one that has blocks but no entry, and a first allocation with hits,
with and without external tokens.

What is around them is stubs (`_allocation/run.py`), and so left out: which new blocks the pool
gives (`free_queue.py`); how many hits are free, but for the step from one hit to the next; which
state must wait; places of rows, and of the hits of any group but the first. Who compares the need
with the free blocks, the reserve and the watermark is in `slots.py`.

Assumed is what the rules say of arguments: computed tokens have slots, hits cover whole blocks (all
local tokens or, beside a load, no more than these), a load has slots, a step computes something, of
a state's hits only the last is not null, no hit comes twice. In mode align a request that holds
blocks but has taken none may take less than its need, never more.

Each case is shown to be possible, and mistakes in the need are found.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from dataclasses import dataclass
from types import SimpleNamespace
from typing import cast

import z3

from kvfast._core.allocator import Allocator
from kvfast._core.demand import Demand
from kvfast._core.pool import BlockPool
from proofs._z3 import Ledger, Term, ask, run
from proofs.code._allocation.hits import copied, one_hit_is_right
from proofs.code._allocation.mistakes import (
    CountsSkippedHits,
    ForgetsDrafts,
    ForgetsFreeHits,
    ForgetsTheList,
    LeavesTheLastHit,
    ReadsTheNextHit,
)
from proofs.code._allocation.run import KINDS, Numbers, SymbolicAllocator, revived
from proofs.code._paths import Way, term_of, ways
from proofs.code._planted import Planted

ASSUMES = (
    "arguments are as the rules allow",
    "no block is twice among hits",
    "the pool gives the blocks that the queue says",
)
GUARANTEES = (
    "an allocation takes what its need counts, and makes the slots",
    "hits are copied to their places and touched from what is skipped on",
)

STATES = ("mamba", "aligned")
COPYING = ("full", "sliding", "chunked", *STATES)
"""Kinds that have hits."""
ASKED_FOR = ("slots", "main", "local", "external", "skip_at", "encoder")
"""See `kvfast._core.demand`."""


@dataclass(frozen=True)
class Case:
    """What a request has in the group, and what is asked for."""

    name: str
    has_entry: bool = False
    was_allocated: bool = False
    is_first: bool = False
    has_external: bool = False


CASES = (
    Case("under way", has_entry=True),
    Case("under way, has taken", has_entry=True, was_allocated=True),
    Case("without an entry"),
    Case("without an entry, has taken", was_allocated=True),
    Case("first", is_first=True),
    Case("first, with a load", is_first=True, has_external=True),
)


@dataclass(frozen=True)
class Allocation:
    """What came of one way: the need, what was taken and in which steps, the list's length."""

    conditions: tuple[Term, ...]
    need: Term
    taken: Term
    counts: tuple[Term, ...]
    length: Term
    copies: Term


def number(name: str) -> Term:
    """What is asked for, or of a need."""
    return z3.Int(name)


def assumed(kind: str, case: Case) -> dict[str, Term]:
    """What the rules say of arguments, by name; all without quantifiers."""
    numbers = Numbers(Way())
    size, held, hits = numbers.block_size, numbers.held, numbers.hits
    slots, local, external = number("slots"), number("local"), number("external")
    at, main = number("skip_at"), number("main")
    known = {
        "sizes": z3.And(size >= 1, numbers.reach >= 1, numbers.drafted >= 0),
        "counts": z3.And(held >= 0, hits >= 0, slots >= 1, main >= 1, at >= 0),
        "tokens": z3.And(local >= 0, external >= 0, number("encoder") >= 0),
    }
    if not case.is_first:
        known["a request with blocks has no hits"] = z3.And(hits == 0, external == 0)
        known["computed tokens have slots"] = held * size >= at
        if kind == "aligned" and case.was_allocated:
            known["who has taken holds states"] = held >= 1 + numbers.drafted
        return known
    known["hits cover whole blocks"] = z3.And(held == 0, local == hits * size)
    if case.has_external:  # of a short list they are fewer than the local tokens (KV-MGR-22)
        known["hits cover whole blocks"] = z3.And(held == 0, local >= hits * size)
        known["a load has slots"] = z3.And(external >= 1, slots >= local + external)
        known["what is skipped is computed"] = at <= local + external
    else:
        known["a step computes something"] = z3.And(external == 0, at == local, main > local)
    if kind in STATES:
        only = revived(z3.IntVal(0)) == revived(hits - 1)
        known["only the last state of a hit is not null"] = z3.Implies(hits > 0, only)
    return known


def free_hits() -> Term:
    """No hit waits behind the last one."""
    i = z3.Int("i")
    none = z3.Implies(i >= Numbers(Way()).hits, revived(i) == 0)
    return z3.ForAll([i], z3.And(revived(i) >= 0, none), patterns=[revived(i)])


def allocations(
    kind: str,
    case: Case,
    allocator: type[SymbolicAllocator] = SymbolicAllocator,
) -> Iterator[Allocation]:
    """Every way that the need and the allocation may take."""

    def run(way: Way) -> tuple[Term, SymbolicAllocator]:
        made = allocator(
            way,
            kind,
            Numbers(way),
            has_entry=case.has_entry,
            was_allocated=case.was_allocated,
        )
        slots, main, local, external, skip_at, encoder = (
            cast(int, way.number(number(name))) for name in ASKED_FOR
        )
        load = external if case.has_external else 0
        demand = Demand().of(slots, main, local, load, skip_at, encoder)
        need = term_of(made.need_of(0, 0, demand, False))
        if case.is_first:
            made.take_hits(0, demand)
        made.take_new(0, demand)
        return need, made

    for way, (need, made) in ways(run):
        pool, length = made.counting, term_of(made.tables.length[0])
        copies = copied(made) if case.is_first and kind in COPYING else z3.BoolVal(True)
        yield Allocation(tuple(way.conditions), need, pool.taken, tuple(pool.asked), length, copies)


def may_take_less(kind: str, case: Case) -> bool:
    """Mode align counts 1 + S for who has taken nothing, also where blocks are held already."""
    return kind == "aligned" and not case.is_first and not case.was_allocated


def check_kind(ledger: Ledger, kind: str, case: Case) -> None:
    """The statement for one kind and case."""
    known = assumed(kind, case)
    before = [*known.values(), free_hits()]
    something = kind == "encoder_only"  # never takes a block
    for way, each in enumerate(allocations(kind, case)):
        name = f"{kind}, {case.name}, way {way}"
        here = [*before, *each.conditions]
        exact = each.taken == each.need
        claim = each.taken <= each.need if may_take_less(kind, case) else exact
        none_given = z3.And(*(count >= 0 for count in each.counts))
        enough = has_slots(kind, each.length)
        ledger.prove(name, here, z3.And(claim, none_given, each.copies, enough))
        something = something or ask([*here, each.need > 0, exact]) == "sat"
    ledger.agree(f"{kind}, {case.name}: something is taken", something)


def has_slots(kind: str, length: Term) -> Term:
    """The list is long enough for what was asked for; lookahead is not counted in mode align."""
    tokens = length * Numbers(Way()).block_size
    if kind == "cross":
        return tokens >= number("encoder")
    if kind == "encoder_only":
        return z3.BoolVal(True)
    return tokens >= number("main" if kind == "aligned" else "slots")


MISTAKES: tuple[tuple[str, Case, type[SymbolicAllocator], str], ...] = (
    ("full", CASES[4], ForgetsFreeHits, "KV-GRP-4"),
    ("sliding", CASES[4], CountsSkippedHits, "KV-GRP-4"),
    ("mamba", CASES[0], ForgetsDrafts, "KV-MAMBA-4"),
    ("aligned", CASES[4], ForgetsDrafts, "KV-MAMBA-7"),
    ("full", CASES[0], ForgetsTheList, "KV-GRP-3"),
    ("cross", CASES[0], ForgetsTheList, "KV-CROSS-1"),
    ("full", CASES[4], LeavesTheLastHit, "KV-GRP-5"),
    ("sliding", CASES[4], LeavesTheLastHit, "KV-GRP-5"),
    ("full", CASES[4], ReadsTheNextHit, "KV-GRP-5"),
    ("aligned", CASES[5], ReadsTheNextHit, "KV-GRP-5"),
)

NEEDED: tuple[tuple[str, Case, str], ...] = (
    ("full", CASES[5], "a load has slots"),
    ("full", CASES[5], "hits cover whole blocks"),
    ("sliding", CASES[2], "computed tokens have slots"),
    ("aligned", CASES[4], "a step computes something"),
    ("aligned", CASES[4], "only the last state of a hit is not null"),
)
"""Assumptions without which the statement does not hold."""


def is_wrong(
    kind: str, case: Case, known: dict[str, Term], allocator: type[SymbolicAllocator]
) -> bool:
    """Whether some way takes another number than the need, or copies hits otherwise."""
    before = [*known.values(), free_hits()]
    return any(
        ask([*before, *each.conditions, z3.Or(each.taken != each.need, z3.Not(each.copies))])
        == "sat"
        for each in allocations(kind, case, allocator)
    )


ONE_HIT = (
    Planted("KV-GRP-4", Allocator, "num_revived", "block and ", ""),
    Planted("KV-GRP-4", Allocator, "num_revived", "block and self.pool.refs(block) == 0", "block"),
    Planted("KV-POOL-5", BlockPool, "touch", "self.unlink(block)", "pass"),
    Planted("KV-GRP-5", BlockPool, "touch", "+= 1", "+= 0"),
)


def check_one_hit(ledger: Ledger) -> None:
    """What is counted of a hit is what it takes."""
    known, right = one_hit_is_right()
    ledger.prove("one hit", [known], right)
    for kind, free in (("null", number("hit") == 0), ("free", number("refs") == 0)):
        ledger.possible(f"one hit: {kind}", known, free)
    for mistake in ONE_HIT:
        with mistake.done():
            known, right = one_hit_is_right()
            ledger.refute(f"mistake: {mistake}", [known], right)


COPIES = (
    Planted("KV-GRP-5", Allocator, "take_hits_of", "(skipped, length)", "(skipped, length - 1)"),
    Planted("KV-GRP-5", Allocator, "take_hits_of", "range(skipped):", "range(skipped - 1):"),
    Planted("KV-GRP-5", Allocator, "take_hits_of", "start + skipped,", "start,"),
)


def check_mistakes(ledger: Ledger) -> None:
    """Mistakes in the need and in what is done with hits, and arguments that the rules exclude."""
    for kind, case, mistake, rule in MISTAKES:
        wrong = is_wrong(kind, case, assumed(kind, case), mistake)
        ledger.agree(f"mistake: {rule}, {mistake.__name__}, {kind}", wrong)
    for planted in COPIES:
        with planted.done():
            known = assumed("sliding", CASES[4])
            found = is_wrong("sliding", CASES[4], known, SymbolicAllocator)
        ledger.agree(f"mistake: {planted}", found)
    for kind, case, name in NEEDED:
        known = assumed(kind, case)
        del known[name]
        ledger.agree(f"{kind}: {name}", is_wrong(kind, case, known, SymbolicAllocator))
    less = assumed("aligned", CASES[2])
    ledger.agree("align may take less", is_wrong("aligned", CASES[2], less, SymbolicAllocator))


class Several(SymbolicAllocator):
    """Groups of which only the needs are known."""

    def need_of(self, g: int, row: int, demand: Demand, capped: bool) -> int:
        need: int = self.numbers.number(z3.Int(f"need {g}"))
        return need


def check_sum(ledger: Ledger) -> None:
    """The need of all groups is the sum of theirs, or more than there are blocks, as that is."""
    needs, num_blocks = [z3.Int(f"need {g}") for g in range(3)], number("num_blocks")

    def run(way: Way) -> Term:
        groups = Several(way, "full", Numbers(way), has_entry=False, was_allocated=False)
        groups.shape.num_groups = 3
        groups.pool = cast(BlockPool, SimpleNamespace(num_blocks=way.number(num_blocks)))
        return term_of(groups.num_needed(0, Demand(), False))

    counts = z3.And(*(need >= 0 for need in needs))
    found = [([counts, *way.conditions], total) for way, total in ways(run)]
    for each, (here, total) in enumerate(found):
        beyond = z3.And(total > num_blocks, total <= z3.Sum(needs))
        claim = z3.Or(total == z3.Sum(needs), beyond)
        ledger.prove(f"the need of three groups, way {each}", here, claim)
    wrong = (ask([*here, total <= num_blocks, total != z3.Sum(needs[:2])]) for here, total in found)
    ledger.agree("mistake: of two", "sat" in wrong)


def main() -> int:
    """Ask everything; 0 if each answer is the expected one."""
    ledger = Ledger("allocation")
    for kind in KINDS:
        for case in CASES:
            if kind == "aligned" or not case.was_allocated:  # nobody else remembers it
                check_kind(ledger, kind, case)
    check_one_hit(ledger)
    check_mistakes(ledger)
    check_sum(ledger)
    return ledger.finish()


if __name__ == "__main__":
    sys.exit(run(main))
