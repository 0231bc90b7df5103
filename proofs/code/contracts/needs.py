"""How many free blocks an allocation needs: kvref and kvfast answer the same for all counts.

The request holds up to three blocks, or is offered up to two hits of which some are free. Windows,
tokens and drafted states are any counts, but for computed ones, up to 8 or 12; blocks have 4 tokens
(KV-GRP-3, KV-GRP-4, KV-SW-7, KV-MAMBA-4,
KV-MAMBA-6, KV-MAMBA-7, KV-MAMBA-8).
"""

from __future__ import annotations

import sys
from dataclasses import replace

from kvref.groups.base import Demand
from kvspec._check import COUNT_MAX  # noqa: F401 (in preconditions)
from proofs.code.contracts._mistakes import (
    NO_DRAFTS,
    NO_SKIP,
    NONE_REVIVED,
    ROUNDED_DOWN,
)
from proofs.code.contracts._pools import chosen
from proofs.code.contracts._rows import NAME, ROW, Held, fast_demand, fast_row, reference_row
from proofs.code.contracts._runner import Contract, main
from proofs.code.contracts._shapes import Numbers

SIZE = 4

HELD = (
    Held((1, 2, 3)),
    Held((3,), blocks=(1, 2)),
    Held((3,), blocks=(0, 2), num_cached=0),
    Held((1, 2, 3), hits=(1, 2)),
    Held((2, 3), hits=(1, 2)),
)


def are_equal(numbers: Numbers, held: Held, demand: Demand) -> bool:
    """Whether both implementations say the same need."""
    allocator = fast_row(numbers, held)
    ours = reference_row(numbers, held).num_blocks_needed(NAME, held.hits, demand)
    return ours == allocator.need_of(0, ROW, fast_demand(demand), demand.apply_admission_cap)


def demand_of(
    slots: int, *, local: int = 0, external: int = 0, skip_at: int = 0, capped: bool = False
) -> Demand:
    """What an allocation asks for."""
    return Demand(slots, slots, local, external, skip_at, apply_admission_cap=capped)


def full(case: int, slots: int) -> bool:
    """Of attention to everything (KV-GRP-3, KV-GRP-4).

    pre: 0 <= case < len(HELD) and 1 <= slots <= COUNT_MAX
    post: _
    """
    held = chosen(HELD, case)
    return are_equal(Numbers("full", SIZE), held, demand_of(slots))


def sliding(case: int, window: int, slots: int, skip_at: int, capped: bool) -> bool:
    """Of a window, at admission not more than its cap (KV-GRP-4, KV-SW-7).

    pre: 0 <= case < len(HELD) and 1 <= window <= COUNT_MAX
    pre: 1 <= slots <= COUNT_MAX and 0 <= skip_at <= 8
    post: _
    """
    held = chosen(HELD, case)
    # A step of 7 and sequences up to 100 tokens, so that the cap is known.
    cap = -(-min(window + 6, 100) // SIZE) + 1
    numbers = Numbers("sliding", SIZE, window, batched=7, longest=100, cap=cap)
    return are_equal(numbers, held, demand_of(slots, skip_at=skip_at, capped=capped))


def states(case: int, drafted: int, slots: int, skip_at: int) -> bool:
    """Of states, with those of drafted tokens (KV-MAMBA-4).

    pre: 0 <= case < len(HELD) and 0 <= drafted <= COUNT_MAX
    pre: 1 <= slots <= COUNT_MAX and 0 <= skip_at <= 12
    post: _
    """
    held = chosen(HELD, case)
    numbers = Numbers("mamba", SIZE, drafted=drafted)
    return are_equal(numbers, held, demand_of(slots, skip_at=skip_at))


def aligned(case: int, drafted: int, slots: int, has_allocated: bool) -> bool:
    """Of states in mode align: the running one and the drafted ones (KV-MAMBA-6, KV-MAMBA-7).

    pre: 0 <= case < len(HELD) and 0 <= drafted <= COUNT_MAX
    pre: 1 <= slots <= COUNT_MAX
    post: _
    """
    held = chosen(HELD, case)
    held = replace(held, has_allocated=True) if has_allocated else held
    return are_equal(Numbers("aligned", SIZE, drafted=drafted), held, demand_of(slots))


def aligned_with_external(case: int, drafted: int, slots: int, local: int, external: int) -> bool:
    """The same with external tokens (KV-MAMBA-8).

    pre: 0 <= case < len(HELD) and 0 <= drafted <= COUNT_MAX
    pre: 1 <= slots <= COUNT_MAX and 0 <= local and 1 <= external <= 8 - local
    post: _
    """
    held = chosen(HELD, case)
    numbers = Numbers("aligned", SIZE, drafted=drafted)
    skip_at = local + external
    demand = demand_of(slots, local=local, external=external, skip_at=skip_at)
    return are_equal(numbers, held, demand)


CONTRACTS = (
    Contract(full, (ROUNDED_DOWN, NONE_REVIVED)),
    Contract(sliding, (NO_SKIP,)),
    Contract(states, (NO_SKIP,)),
    Contract(aligned, (NO_DRAFTS,)),
    Contract(aligned_with_external, (NONE_REVIVED,)),
)


if __name__ == "__main__":
    sys.exit(main("needs"))
