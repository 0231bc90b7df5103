"""The arithmetic of `allocate_slots`: kvref and kvfast follow the rules, for all integers.

Statement: whether a call is illegal, refused by the gate of the whole sequence, refused for lack of
blocks or granted; the number of tokens in each need; the number of tokens at which skipped
blocks are removed; whether hits are taken; and how many tokens are cached are the formulas of
KV-MGR-3 … KV-MGR-7, KV-MGR-9, KV-MGR-10, KV-MGR-21 and KV-SW-10, with reserve and watermark.
`Allocator.allocate` of kvref and `Calls.grant` and `Core.place` of kvfast run unchanged on
unknown numbers and flags, along every path, for requests of each status that
hold nothing, hold blocks or are under way. A mistake made in both is seen, since both are compared
with the formulas.

Stubs replace the groups and the pool (`_slots.py`): the need is any number, the same for the same
demand, and removing may free any blocks. The checks of hits, slots and types are left out.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping
from types import MappingProxyType

import z3

import kvref.allocation
from kvfast._core.calls import Calls
from kvfast._core.core import Core
from kvref.allocation import Allocator
from kvspec.request import RequestStatus
from proofs._z3 import Ledger, Statement, Term, larger, smaller
from proofs.code._planted import TWINS, Planted, check_planted
from proofs.code._slots import (
    ASKED,
    COUNTS,
    FLAGS,
    GRANTED,
    ILLEGAL,
    REFUSED,
    REFUSED_BY_GATE,
    Case,
    needed,
    of_fast,
    of_reference,
)

ASSUMES = (
    "both need the same number of blocks for the same demand",
    "both see the same blocks free, in use and cached",
    "both refuse the same hits, slots and types",
)
GUARANTEES = (
    "both refuse or grant the same calls, and cache, remove and need at the same numbers",
)

CASES = (
    Case(RequestStatus.WAITING, has_hits=True),  # first: the quickest, in which mistakes show
    Case(RequestStatus.WAITING),
    Case(RequestStatus.WAITING, has_hits=True, replays=True),
    Case(RequestStatus.RUNNING, has_row=True, is_running=True),
    Case(RequestStatus.PREEMPTED),
    Case(RequestStatus.WAITING, has_row=True),
    Case(RequestStatus.RUNNING),
    Case(RequestStatus.RUNNING, has_row=True),
)


def known() -> list[Term]:
    """State that counts are at least 0, and a request has a token."""
    counts = [*z3.Ints(" ".join(COUNTS)), *z3.Ints("watermark longest"), z3.Int("num_tokens") - 1]
    flags = [z3.And(flag >= 0, flag <= 1) for flag in z3.Ints(" ".join(FLAGS))]
    return [*(count >= 0 for count in counts), *flags]


def ruled(case: Case) -> dict[str, Term]:
    """Return the values that the rules ask for; -1 where nothing happens."""
    computed, hit, external, new = z3.Ints("computed hit external new")
    lookahead, encoder, reserved, tokens = z3.Ints("lookahead encoder reserved num_tokens")
    longest, before, then = z3.Int("longest"), z3.Int("free at first"), z3.Int("free then")
    must_fit, caches, beside = (z3.Int(flag) == 1 for flag in FLAGS)
    local = computed + hit
    loads = external > 0
    total = smaller(local + external, longest)  # KV-MGR-4
    at = z3.If(loads, smaller(local + external, tokens - 1), local + external)
    main = total + new
    slots = smaller(main + lookahead, longest)  # KV-MGR-7
    if not case.is_running:
        slots = z3.If(loads, larger(slots, local + external), slots)
    newcomer = case.status in (RequestStatus.WAITING, RequestStatus.PREEMPTED)
    watermark = z3.If(beside, z3.Int("watermark"), 0) if newcomer else z3.IntVal(0)  # KV-MGR-9
    whole = smaller(tokens, longest)
    gate = (whole, whole, local, external, smaller(at, longest), encoder)
    need = (slots, main, local, external, at, encoder)
    is_replay = z3.And(hit > 0, z3.BoolVal(case.replays))  # KV-SW-10
    some = z3.Or(new > 0, loads, is_replay)  # KV-MGR-3
    legal = z3.And(some, new <= longest - total)  # KV-MGR-4
    passes = z3.Or(z3.Not(must_fit), needed("gate", *gate) + watermark <= before)  # KV-MGR-5
    fits = needed("need", *need) + watermark <= then - reserved
    granted = z3.And(legal, passes, fits)
    takes = z3.BoolVal(not case.is_running) if case.has_hits else z3.And(
        loads, z3.BoolVal(not case.is_running)
    )  # fmt: skip

    def if_(condition: Term, number: Term) -> Term:
        return z3.If(condition, number, -1)

    outcome = z3.If(fits, GRANTED, REFUSED)
    outcome = z3.If(passes, outcome, REFUSED_BY_GATE)
    return {
        "outcome": z3.If(legal, outcome, ILLEGAL),
        "removed": if_(  # KV-MGR-6, KV-MGR-21
            z3.And(legal, passes), larger(smaller(total, at) - z3.Int("in_flight"), 0)
        ),
        "takes_hits": z3.If(z3.And(granted, takes), 1, 0),
        "cached": if_(  # KV-MGR-10
            z3.And(granted, caches), smaller(smaller(total + new, tokens), longest)
        ),
        **{
            f"gate {name}": if_(z3.And(legal, must_fit), number)
            for name, number in zip(ASKED, gate, strict=True)
        },
        **{
            f"need {name}": if_(z3.And(legal, passes), number)
            for name, number in zip(ASKED, need, strict=True)
        },
    }


CODE: Mapping[str, Callable[[Case], dict[str, Term]]] = MappingProxyType(
    {"kvref": of_reference, "kvfast": of_fast}
)


def allocations(*twins: str) -> Iterator[Statement]:
    """Yield the claims that these twins do what the rules say."""
    for case in CASES:
        rules = ruled(case)
        for name in twins:
            found = CODE[name](case)
            same = z3.And(*(found[each] == number for each, number in rules.items()))
            yield Statement(f"{case}: {name}", tuple(known()), same)


def check_outcomes(ledger: Ledger) -> None:
    """Check that every outcome can happen."""
    for case in CASES:
        for outcome in (ILLEGAL, REFUSED_BY_GATE, REFUSED, GRANTED):
            known_here = (*known(), ruled(case)["outcome"] == outcome)
            ledger.possible(f"{case}: outcome {outcome}", *known_here)


PLANTED = tuple((allocations, each) for each in (
    Planted("KV-MGR-3",
        (kvref.allocation, "check_allocation", " and not asked.has_load", ""),
        (Calls, "grant", "new == 0 and external == 0", "new == 0")),
    Planted("KV-MGR-4", (Calls, "grant", "if new > most:", "if new > most + 1:")),
    Planted("KV-MGR-4", (Core, "place", "total = min(local + external, self.max_len)",
                         "total = local + external")),
    Planted("KV-MGR-5", (Core, "place", "demand, True) + asked", "demand, False) + asked")),
    Planted("KV-MGR-5",
        (Allocator, "whole_fits", "+ watermark <=", "+ watermark <"),
        (Core, "place", "demand, True) + asked.watermark >",
         "demand, True) + asked.watermark >=")),
    Planted("KV-MGR-6",
        (Allocator, "demand", "asked.request.num_tokens - 1", "asked.request.num_tokens"),
        (Core, "place", "max(min(total, skip_at) -", "max(total -")),
    Planted("KV-MGR-21",
        (Allocator, "release", "max(processed, 0)", "processed"),
        (Core, "place", " - request.in_flight, 0)", ", 0)")),
    Planted("KV-MGR-7", (Core, "place", "self.pool.num_free - asked.reserved",
                         "self.pool.num_free")),
    Planted("KV-MGR-7", (Core, "place", "needed + asked.watermark > self.pool.num_free",
                         "needed + asked.watermark >= self.pool.num_free")),
    Planted("KV-MGR-7", (Core, "place", "if external > 0 and not is_running:", "if external > 0:")),
    Planted("KV-MGR-7", (Allocator, "demand", "main + asked.num_lookahead_tokens", "main")),
    Planted("KV-MGR-9",
        (Allocator, "watermark", "in (RequestStatus.WAITING, RequestStatus.PREEMPTED)",
         "is RequestStatus.WAITING"),
        (Core, "place", "needed + asked.watermark >", "needed >")),
    Planted("KV-MGR-10",
        (Allocator, "cache", "total + asked.num_new_tokens", "total + asked.num_new_tokens + 1"),
        (Calls, "grant", "+ new, request.num_tokens)", "+ new + 1, request.num_tokens)")),
    Planted("KV-MGR-10",
        (Allocator, "cache", ", asked.request.num_tokens, self.longest)", ", self.longest)")),
))  # fmt: skip


def main() -> int:
    """Prove everything; return 0 if each answer is the expected one."""
    ledger = Ledger("slots")
    ledger.prove_and_refute(allocations(*TWINS))
    check_outcomes(ledger)
    check_planted(ledger, PLANTED)
    return ledger.finish()


if __name__ == "__main__":
    sys.exit(main())
