"""The need of an allocation is the same number in kvref and in kvfast, for all integers.

`num_blocks_needed` of every kind of group of kvref and `need_of` of `kvfast._core.allocator` run as
they stand on unknown numbers, along each way they may take: for a request with an entry or without
one, that took blocks of its own before or did not, with any blocks, hits and external tokens, with
the cap of admission and without (KV-GRP-3, KV-GRP-4, KV-SW-7, KV-CHUNK-5, KV-MAMBA-4,
KV-MAMBA-6 … KV-MAMBA-8, KV-CROSS-1, KV-CROSS-5).

Stubs are which hits are free, the same in both, and that no state must wait. Each case is shown to
be possible, and mistakes in kvfast are found.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from itertools import product
from typing import Any, cast

import z3

from kvfast._core.allocator import Allocator
from kvfast._core.demand import Demand
from kvfast._core.shape import Shape
from proofs._z3 import Ledger, Term, ask, run
from proofs.code._allocation.mistakes import (
    CountsSkippedHits,
    ForgetsDrafts,
    ForgetsFreeHits,
    ForgetsTheList,
)
from proofs.code._allocation.run import Numbers, SymbolicAllocator, revived
from proofs.code._groups import need
from proofs.code._paths import Way, term_of, ways
from proofs.code._planted import Planted
from proofs.code.allocation import ASKED_FOR, free_hits, number

ASSUMES = ("both see the same blocks free, in use and cached", "both let the same states wait")
GUARANTEES = ("both need the same number of blocks for the same demand",)

GROUPS = {
    "full": "full",
    "sliding": "window",
    "chunked": "chunk",
    "mamba": "state",
    "aligned": "aligned",
    "cross": "cross",
    "encoder_only": "encoder_only",
}
"""By the name of their kind in kvfast."""

CAPPED = ("sliding", "chunked")
MOST = z3.Int("cap")


def known(kind: str) -> list[Term]:
    """Sizes are at least 1, counts at least 0, and of the free hits none is behind the last."""
    numbers = Numbers(Way())
    sizes = (numbers.block_size, numbers.reach, MOST)
    counts = (numbers.drafted, numbers.held, numbers.hits, *map(number, ASKED_FOR))
    return [*(size >= 1 for size in sizes), *(count >= 0 for count in counts), free_hits()]


def of_kvfast(
    kind: str,
    allocator: type[SymbolicAllocator],
    *,
    has_entry: bool,
    has_taken: bool,
    capped: bool,
) -> Iterator[tuple[list[Term], Term]]:
    """Each way through the code: what is known then, and the need."""

    def run(way: Way) -> Term:
        made = allocator(way, kind, Numbers(way), has_entry=has_entry, was_allocated=has_taken)
        made.shape.cap = cast(Any, [way.number(MOST) if kind in CAPPED else -1])
        asked = (cast(int, way.number(number(name))) for name in ASKED_FOR)
        return term_of(made.need_of(0, 0, Demand().of(*asked), capped))

    for way, answer in ways(run):
        yield list(way.conditions), answer


def of_kvref(kind: str, *, has_entry: bool, has_taken: bool, capped: bool) -> Term:
    """The need that kvref answers."""
    numbers = Numbers(Way())
    return need(
        GROUPS[kind],
        **{name: number(name) for name in ASKED_FOR},
        hits=numbers.hits,
        held=numbers.held,
        most=MOST if capped and kind in CAPPED else None,
        has_entry=has_entry,
        has_taken=has_taken,
        revived=revived,
        window=numbers.reach,
        chunk=numbers.reach,
        num_speculative_blocks=numbers.drafted,
    )


def differs(kind: str, allocator: type[SymbolicAllocator] = SymbolicAllocator) -> bool:
    """Whether there are numbers for which the two answer otherwise."""
    for has_entry, has_taken, capped in product((False, True), repeat=3):
        wanted = of_kvref(kind, has_entry=has_entry, has_taken=has_taken, capped=capped)
        for here, answer in of_kvfast(
            kind, allocator, has_entry=has_entry, has_taken=has_taken, capped=capped
        ):
            if ask([*known(kind), *here, answer != wanted]) == "sat":
                return True
    return False


def check_kind(ledger: Ledger, kind: str) -> None:
    """The same need in all cases."""
    for has_entry, has_taken, capped in product((False, True), repeat=3):
        wanted = of_kvref(kind, has_entry=has_entry, has_taken=has_taken, capped=capped)
        case = f"{kind}, entry {has_entry}, has taken {has_taken}, capped {capped}"
        possible = kind == "encoder_only"
        for number_of_way, (here, answer) in enumerate(
            of_kvfast(
                kind, SymbolicAllocator, has_entry=has_entry, has_taken=has_taken, capped=capped
            )
        ):
            before = [*known(kind), *here]
            ledger.prove(f"{case}, way {number_of_way}", before, answer == wanted)
            possible = possible or ask([*before, answer > 0]) == "sat"
        ledger.agree(f"{case}: something is needed", possible)


MISTAKES: tuple[tuple[str, str, type[SymbolicAllocator]], ...] = (
    ("KV-GRP-4", "full", ForgetsFreeHits),
    ("KV-GRP-4", "sliding", CountsSkippedHits),
    ("KV-MAMBA-4", "mamba", ForgetsDrafts),
    ("KV-MAMBA-7", "aligned", ForgetsDrafts),
    ("KV-GRP-3", "full", ForgetsTheList),
    ("KV-CROSS-1", "cross", ForgetsTheList),
)

PLANTED: tuple[tuple[str, Planted], ...] = (
    ("full", Planted("KV-GRP-3", Shape, "cdiv", " + (1 if a % b else 0)", "")),
    ("sliding", Planted("KV-GRP-4", Shape, "skipped", "if tokens > 0", "if tokens < 0")),
    ("sliding", Planted("KV-SW-7", Allocator, "need_of", "= min(required", "= max(required")),
    ("chunked", Planted("KV-CHUNK-5", Allocator, "need_of", "if capped and", "if not capped and")),
    ("aligned", Planted("KV-MAMBA-6", Allocator, "length_for", "(demand.main,", "(demand.slots,")),
    ("aligned", Planted("KV-MAMBA-8", Allocator, "need_of_aligned", "if demand.external > 0 and",
                        "if demand.external < 0 and")),
    ("encoder_only", Planted("KV-CROSS-5", Allocator, "length_for", "return 0\n", "return 1\n")),
)  # fmt: skip
"""In the arithmetic, with the kind of the group where it shows."""


def check_mistakes(ledger: Ledger) -> None:
    """Mistakes in kvfast's need, and in the arithmetic below it."""
    for rule, kind, mistake in MISTAKES:
        ledger.agree(f"mistake: {rule}, {mistake.__name__}, {kind}", differs(kind, mistake))
    for kind, planted in PLANTED:
        with planted.done():
            ledger.agree(f"mistake: {planted}, {kind}", differs(kind))


def main() -> int:
    """Ask everything; 0 if each answer is the expected one."""
    ledger = Ledger("needs")
    for kind in GROUPS:
        check_kind(ledger, kind)
    check_mistakes(ledger)
    return ledger.finish()


if __name__ == "__main__":
    sys.exit(run(main))
