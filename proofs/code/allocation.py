"""Admission's need is what the allocation then takes, for all integers, in both twins.

Statement (KV-GRP-3 … KV-GRP-7, KV-MGR-7, KV-SW-7, KV-CHUNK-5, KV-MAMBA-4, KV-MAMBA-6 …
KV-MAMBA-9, KV-CROSS-1, KV-CROSS-2, KV-CROSS-5): for a group of each kind the need
(`num_blocks_needed` of kvref's groups, `need_of` of `kvfast._core.allocator`) is the number of
blocks that hits, external blocks and new ones remove from the free queue, revived hits included; no
step removes fewer than none; and the list then has the length that the rules ask for. All hits
behind the skipped ones are touched and count as cached, null precedes them; kvfast copies each to
its own place. A hit counts as free exactly where touching it removes it from the queue, and null
never does (`num_revived`, and `touch` of the pool, for one hit). With the cap of admission the need
is that of KV-SW-7 and KV-CHUNK-5, and the need of all groups is the sum. These methods, and what
they call in groups, allocator and shape, run along every path, for a request that is
under way, one that has blocks but no entry, and a first allocation with hits, with and without
external tokens.

The code around them is replaced by stubs (`_allocation`) and left out: which new blocks the pool
gives (`free_queue.py`); how many hits are free, apart from the step from one hit to the next; which
state must wait; which entry moves in mode align; places of rows, and of the hits of any group but
the first. The need is compared with free blocks, reserve and watermark in `slots.py`.

Assumptions, from the rules: computed tokens have slots, hits cover whole blocks (all
local tokens or, beside a load, no more than these), a load has slots, a step computes something, of
a state's hits only the last is not null, no hit occurs twice. In mode align a request that holds
blocks but has taken none may take less than its need, never more.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from types import SimpleNamespace
from typing import Any, cast

import z3

from kvfast._core.allocator import Allocator
from kvfast._core.demand import Demand
from kvfast._core.pool import BlockPool
from kvfast._core.shape import Shape
from kvref.groups import base, cross_attention
from kvref.groups.base import Group
from kvref.groups.mamba import MambaGroup
from kvref.groups.mamba_align import AlignedMambaGroup
from proofs._z3 import Ledger, Statement, Term, cdiv, larger, smaller
from proofs.code._allocation.hits import one_hit_of_kvfast, one_hit_of_kvref
from proofs.code._allocation.kvref import Reference
from proofs.code._allocation.run import HELD, HITS, SymbolicAllocator, revived
from proofs.code._groups import BLOCK, CAPPED, DRAFTED, GROUPS, STATES, sizes, skipped
from proofs.code._paths import Way, merged_each, ways
from proofs.code._planted import TWINS, Planted, check_planted

ASSUMES = (
    "arguments are as the rules allow",
    "no block is twice among hits",
    "the pool gives the blocks that the queue says",
    "both let the same states wait",
)
GUARANTEES = (
    "an allocation takes what its need counts, and makes the slots",
    "both need the same number of blocks for the same demand",
    "hits are copied to their places and touched from what is skipped on",
)

COPYING = ("full", "rswa", *CAPPED, *STATES)
"""Kinds that have hits."""
ASKED = z3.Ints("slots main local external skip_at encoder")
"""See `kvfast._core.demand`."""
SLOTS, MAIN, LOCAL, EXTERNAL, SKIP_AT, ENCODER = ASKED
NONE = z3.IntVal(0)
MADE_BY: Mapping[str, type[Any]] = {"kvref": Reference, "kvfast": SymbolicAllocator}


@dataclass(frozen=True)
class Case:
    """The entries that a request holds in the group, and the amounts that it asks for."""

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


def assumed(kind: str, case: Case) -> dict[str, Term]:
    """Return the rules' assumptions on arguments, by name and without quantifiers."""
    known = {
        "sizes": z3.And(*sizes()),
        "counts": z3.And(HELD >= 0, HITS >= 0, SLOTS >= 1, MAIN >= 1, SKIP_AT >= 0),
        "tokens": z3.And(LOCAL >= 0, EXTERNAL >= 0, ENCODER >= 0, z3.Int("cap") >= 1),
    }
    if not case.is_first:
        known["a request with blocks has no hits"] = z3.And(HITS == 0, EXTERNAL == 0)
        known["computed tokens have slots"] = HELD * BLOCK >= SKIP_AT
        if kind == "aligned" and case.was_allocated:
            known["who has taken holds states"] = HELD >= 1 + DRAFTED
        return known
    known["hits cover whole blocks"] = z3.And(HELD == 0, LOCAL == HITS * BLOCK)
    if case.has_external:  # of a short list they are fewer than the local tokens (KV-MGR-22)
        known["hits cover whole blocks"] = z3.And(HELD == 0, LOCAL >= HITS * BLOCK)
        known["a load has slots"] = z3.And(EXTERNAL >= 1, SLOTS >= LOCAL + EXTERNAL)
        known["what is skipped is computed"] = SKIP_AT <= LOCAL + EXTERNAL
    else:
        known["a step computes something"] = z3.And(
            EXTERNAL == 0, SKIP_AT == LOCAL, MAIN > LOCAL, SLOTS > LOCAL
        )
    if kind in STATES:
        only = revived(NONE) == revived(HITS - 1)
        known["only the last state of a hit is not null"] = z3.Implies(HITS > 0, only)
    return known


def free_hits() -> Term:
    """State that no hit behind the last one is in the free queue."""
    i = z3.Int("i")
    none = z3.Implies(i >= HITS, revived(i) == 0)
    return z3.ForAll([i], z3.And(revived(i) >= 0, none), patterns=[revived(i)])


# What the rules say.


def required(kind: str) -> Term:
    """Return the length the list must have (KV-GRP-7, KV-MAMBA-4, KV-MAMBA-6, KV-CROSS-1)."""
    tokens = {"aligned": MAIN, "cross": ENCODER, "encoder_only": NONE}.get(kind, SLOTS)
    return cdiv(tokens, BLOCK) + (DRAFTED if kind in STATES else 0)


def begun(kind: str, case: Case) -> Term:
    """Return its length before new blocks: hits and loaded ones (KV-GRP-5, KV-GRP-6)."""
    before = HELD
    if case.is_first and kind in COPYING:
        before = larger(skipped(kind, SKIP_AT) / BLOCK, HITS)
        if case.has_external:
            loads = skipped(kind, SKIP_AT) < LOCAL + EXTERNAL
            before = z3.If(loads, larger(before, cdiv(LOCAL + EXTERNAL, BLOCK)), before)
    return before


def capped(kind: str, case: Case) -> Term:
    """Return the need with the cap of admission (KV-SW-7, KV-CHUNK-5)."""
    wanted = smaller(required(kind), z3.Int("cap"))
    if case.has_entry:
        return larger(wanted - HELD, NONE)
    gone = skipped(kind, SKIP_AT) / BLOCK
    return larger(wanted - larger(gone, HITS + HELD), NONE) + revived(larger(gone - HELD, NONE))


def under_way(case: Case) -> Term:
    """Return the need of mode align: one, or the running state plus drafts (KV-MAMBA-7)."""
    return z3.If(required("aligned") > HELD, 1 if case.was_allocated else 1 + DRAFTED, 0)


# The code.


def allocations(
    kind: str, case: Case, known: Mapping[str, Term], *twins: str
) -> Iterator[Statement]:
    """Yield the claims for every path through need and allocation, in these twins."""
    before = (*known.values(), free_hits())
    for twin in twins:

        def run(way: Way, made_by: type[Any] = MADE_BY[twin]) -> tuple[Term, Term | None, Any]:
            entry = {"has_entry": case.has_entry, "was_allocated": case.was_allocated}
            asked: list[Any] = [way.number(each) for each in ASKED]
            if not case.has_external:
                asked[3] = 0
            most = None
            if kind in CAPPED:
                most = made_by(way, kind, **entry).need(asked, capped=True)
            made = made_by(way, kind, **entry)
            need = made.need(asked, capped=False)
            made.take(asked, with_hits=case.is_first)
            return need, most, made

        for number, (way, (need, most, made)) in enumerate(ways(run)):
            start = begun(kind, case)
            claims = [made.taken == need, made.list_length == larger(start, required(kind))]
            claims.append(made.begun == start)
            if kind == "aligned" and not case.is_first:  # where blocks are held it may take less
                claims[0] = made.taken <= need
                claims.append(need == under_way(case))
                if case.was_allocated:
                    claims[0] = made.taken == need
            claims += [count >= 0 for count in made.counts]
            if most is not None:
                claims.append(most == capped(kind, case))
            if case.is_first and kind in COPYING:
                claims.append(made.copies(skipped(kind, SKIP_AT) / BLOCK))
            name = f"{twin}: {kind}, {case.name}, way {number}"
            yield Statement(name, (*before, *way.conditions), z3.And(*claims))


def cases() -> Iterator[tuple[str, Case]]:
    """Yield every case; only mode align remembers that a request took blocks."""
    for kind in GROUPS:
        for case in CASES:
            if kind == "aligned" or not case.was_allocated:
                yield kind, case


def everything() -> Iterator[Statement]:
    """Yield the claims for one hit, then for every kind and case."""
    yield from one_hit(*TWINS)
    for kind, case in cases():
        yield from allocations(kind, case, assumed(kind, case), *TWINS)


def one_hit(*twins: str) -> Iterator[Statement]:
    """Claim that a free hit is counted, and that touching one unlinks and references it."""
    refs, hit = z3.Ints("refs hit")
    free = z3.If(z3.And(hit != 0, refs == 0), 1, 0)
    for twin in twins:
        found = merged_each(one_hit_of_kvref if twin == "kvref" else one_hit_of_kvfast)
        right = z3.And(
            found["counted"] == free,
            found["unlinked"] == free,
            found["refs"] == refs + z3.If(hit != 0, 1, 0),
        )
        yield Statement(f"{twin}: one hit", (refs >= 0, hit >= 0), right)


class Several(SymbolicAllocator):
    """Groups of which only the needs are known."""

    def need_of(self, g: int, row: int, demand: Demand, capped: bool) -> int:
        need: Any = self.way.number(z3.Int(f"need {g}"))
        return cast(int, need)


def check_sum(ledger: Ledger) -> None:
    """Prove that the need of all groups is their sum, or at least more than the pool has."""
    needs, num_blocks = [z3.Int(f"need {g}") for g in range(3)], z3.Int("num_blocks")

    def run(way: Way) -> Term:
        groups = Several(way, "full", has_entry=False, was_allocated=False)
        groups.shape.num_groups = 3
        groups.pool = cast(BlockPool, SimpleNamespace(num_blocks=way.number(num_blocks)))
        return cast(Any, groups.num_needed(0, Demand(), False)).term

    counts = z3.And(*(need >= 0 for need in needs))
    for each, (way, total) in enumerate(ways(run)):
        beyond = z3.And(total > num_blocks, total <= z3.Sum(needs))
        claim = z3.Or(total == z3.Sum(needs), beyond)
        ledger.prove(f"the need of three groups, way {each}", [counts, *way.conditions], claim)


def of(kind: str, case: int) -> Callable[[str], Iterator[Statement]]:
    return partial(allocations, kind, CASES[case], assumed(kind, CASES[case]))


PLANTED: tuple[tuple[Callable[[str], Iterator[Statement]], Planted], ...] = (
    (of("full", 0), Planted("KV-GRP-3",
        (Group, "num_blocks_needed", "max(required - held, 0)", "max(required - held, 1)"),
        (Allocator, "need_of", "return max(required - held, 0)",
         "return max(required - held, 1)"))),
    (of("full", 0), Planted("KV-GRP-7",
        (base, "cdiv", "-(-a // b)", "a // b + 1"),
        (Shape, "cdiv", "(1 if a % b else 0)", "1"))),
    (of("sliding", 4), Planted("KV-GRP-4",
        (Group, "num_blocks_needed", "hits[max(0, skipped - held) :]", "hits"),
        (Allocator, "need_of", "max(0, skipped - held)", "0"))),
    (of("sliding", 4), Planted("KV-GRP-5",
        (Group, "take_hits", "skipped + len(taken)", "skipped + len(taken) + 1"),
        (Allocator, "take_hits_of", "1 + length", "2 + length"))),
    (of("sliding", 4), Planted("KV-GRP-5",
        (Group, "take_hits", "list(hits[skipped:])", "list(hits[skipped + 1 :])"),
        (Allocator, "take_hits_of", "touch(self.tables, start", "touch(self.tables, 1 + start"))),
    (of("full", 4), Planted("KV-GRP-5",
        (Allocator, "take_hits_of", "(skipped, length)", "(skipped, length - 1)"))),
    (of("sliding", 4), Planted("KV-GRP-5",
        (Allocator, "take_hits_of", "range(skipped):", "range(skipped - 1):"))),
    (of("full", 4), Planted("KV-GRP-5",
        (Allocator, "take_hits_of", "self.lookup.stride + i]", "self.lookup.stride + i + 1]"))),
    (of("sliding", 5), Planted("KV-GRP-6",
        (Group, "allocate_external", " < demand", " <= demand"),
        (Shape, "is_window_beyond", " >= computed", " > computed"))),
    (of("sliding", 4), Planted("KV-SW-7",
        (Group, "num_blocks_needed", "min(required, cap)", "min(required, cap) + 1"),
        (Allocator, "need_of", "min(required, self.shape.cap[g])",
         "min(required, self.shape.cap[g]) + 1"))),
    (of("chunked", 0), Planted("KV-CHUNK-5",
        (Group, "num_blocks_needed", "min(required, cap)", "min(required, cap - 1)"),
        (Allocator, "need_of", "min(required, self.shape.cap[g])",
         "min(required, self.shape.cap[g] - 1)"))),
    (of("mamba", 0), Planted("KV-MAMBA-4",
        (MambaGroup, "with_speculative_blocks", "self.num_speculative_blocks *",
         "(self.num_speculative_blocks + 1) *"),
        (Allocator, "length_for", "if kind == kinds.MAMBA:\n        return",
         "if kind == kinds.MAMBA:\n        return 1 +"))),
    (of("aligned", 4), Planted("KV-MAMBA-6",
        (AlignedMambaGroup, "num_required_blocks", "demand.num_main_tokens",
         "demand.num_slots_tokens"),
        (Allocator, "length_for", "(demand.main,", "(demand.slots,"))),
    (of("aligned", 2), Planted("KV-MAMBA-7",
        (AlignedMambaGroup, "num_blocks_needed", "else 1 + self", "else 2 + self"),
        (Allocator, "need_of_aligned", "else 1 + drafted", "else 2 + drafted"))),
    (of("aligned", 5), Planted("KV-MAMBA-8",
        (AlignedMambaGroup, "_needed_with_external", "self.num_speculative_blocks - 1",
         "self.num_speculative_blocks"),
        (Allocator, "need_of_aligned", "required - drafted - 1", "required - drafted"))),
    (of("aligned", 1), Planted("KV-MAMBA-9",
        (AlignedMambaGroup, "lengthen", "held - self.num_speculative_blocks, min",
         "held - self.num_speculative_blocks + 1, min"),
        (Allocator, "grow_aligned", "held - drafted, min", "held - drafted + 1, min"))),
    (of("cross", 0), Planted("KV-CROSS-1",
        (cross_attention.CrossAttentionGroup, "num_blocks_needed", "max(required -",
         "max(required + 1 -"),
        (Allocator, "length_for", "(demand.encoder,", "(demand.encoder + 1,"))),
    (of("encoder_only", 0), Planted("KV-CROSS-5",
        (cross_attention.EncoderOnlyGroup, "num_tokens_held", "return 0", "return 1"),
        (Allocator, "length_for", "return 0\n", "return 1\n"))),
    (one_hit, Planted("KV-GRP-4",
        (Group, "num_revived", "sum(1", "sum(2"),
        (Allocator, "num_revived", "block and self.pool.refs(block) == 0", "block"))),
    (one_hit, Planted("KV-GRP-4", (Allocator, "num_revived", "block and ", ""))),
    (one_hit, Planted("KV-POOL-5",
        (BlockPool, "touch", "self.facts[record.INTS * block + record.REFS] == 0",
         "self.facts[record.INTS * block + record.REFS] <= 1"))),
    (one_hit, Planted("KV-GRP-5", (BlockPool, "touch", "+= 1", "+= 0"))),
)  # fmt: skip


def main() -> int:
    """Prove everything; return 0 if each answer is the expected one."""
    ledger = Ledger("allocation")
    ledger.prove_and_refute(everything(), always_possible=False)
    for kind, case in cases():
        ledger.possible(f"{kind}, {case.name}", *assumed(kind, case).values())
    check_sum(ledger)
    check_planted(ledger, PLANTED)
    return ledger.finish()


if __name__ == "__main__":
    sys.exit(main())
