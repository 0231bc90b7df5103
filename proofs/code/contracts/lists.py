"""Taking and giving back blocks: kvref and kvfast build the same lists, and take what they needed.

A pool of three blocks of two tokens each; a request in five states of its list, and tokens and
windows from tables (KV-GRP-2, KV-GRP-4 … KV-GRP-7, KV-GRP-11, KV-POOL-7,
KV-POOL-8, KV-MAMBA-5, KV-MAMBA-9).
"""

from __future__ import annotations

import sys
from itertools import product

from kvref.groups.base import Demand
from kvspec._check import COUNT_MAX  # noqa: F401 (in preconditions)
from proofs.code.contracts._mistakes import (
    DRAFTS_STAY,
    HITS_UNTOUCHED,
    NO_SKIP,
    NO_STATES,
    ROUNDED_DOWN,
    TURNED,
)
from proofs.code.contracts._pools import chosen
from proofs.code.contracts._rows import (
    NAME,
    ROW,
    Held,
    fast_demand,
    fast_row,
    fast_row_state,
    reference_row,
    reference_row_state,
)
from proofs.code.contracts._runner import Contract, main
from proofs.code.contracts._shapes import Numbers

SIZE = 2
TOKENS = range(1, 9)
"""Up to more than the pool has slots for. Known to CrossHair: it takes a slice of unknown length
for a view, which changes with the list."""

WINDOWS = (1, 3, 4, 100)

STARTS = (
    Held((1, 2, 3)),
    Held((2, 1, 3), hits=(1,)),
    Held((3, 2), hits=(1,)),
    Held((3, 1), hits=(0, 2)),
    Held((2, 3, 1), hits=(1, 2)),
)
"""A request without blocks, and its hits."""

RUNNING = (
    Held((1, 2, 3), num_cached=0),
    Held((3, 2), blocks=(1,), num_cached=1),
    Held((2,), blocks=(3, 1), num_cached=1),
    Held((3,), blocks=(0, 2), num_cached=1),
    Held((), blocks=(3, 1, 2), num_cached=0),
)


def takes(numbers: Numbers, held: Held, demand: Demand) -> bool:
    """Whether both take the same blocks, as many as needed, or both have too few.

    In mode align fewer may be taken: KV-MAMBA-7 counts drafted states that hits stand for.
    """
    group, allocator = reference_row(numbers, held), fast_row(numbers, held)
    asked = fast_demand(demand)
    need = group.num_blocks_needed(NAME, held.hits, demand)
    if need != allocator.need_of(0, ROW, asked, False):
        return False
    if need > group.pool.num_free_blocks:
        return True
    if held.num_cached is None and (held.hits or demand.num_external_tokens > 0):
        group.take_hits(NAME, held.hits, demand)
        allocator.take_hits(ROW, asked)
        if demand.num_external_tokens > 0:
            group.allocate_external(NAME, demand)
    group.allocate_new(NAME, demand)
    allocator.take_new(ROW, asked)
    left = len(held.queue) - group.pool.num_free_blocks
    is_as_needed = left <= need if numbers.kind == "aligned" else left == need
    return is_as_needed and reference_row_state(group) == fast_row_state(allocator)


FULL_STARTS = tuple(product(STARTS, TOKENS))


def start_full(case: int) -> bool:
    """Hits are touched, the rest is taken from the queue (KV-GRP-4, KV-GRP-5, KV-GRP-7).

    pre: 0 <= case < len(FULL_STARTS)
    post: _
    """
    held, slots = chosen(FULL_STARTS, case)
    local = SIZE * len(held.hits)
    demand = Demand(local + slots, local + slots, local, 0, 0)
    return takes(Numbers("full", SIZE), held, demand)


LOADS = ((0, 0), (0, 1), (0, 4), (2, 1))
"""Tokens that a short list of hits lacks, and external ones (KV-MGR-8)."""
SLIDING_STARTS = tuple(product(STARTS, WINDOWS, (1, 3), LOADS))


def start_sliding(case: int) -> bool:
    """Hits that the window skips become null; external tokens get blocks, too (KV-GRP-6).

    pre: 0 <= case < len(SLIDING_STARTS)
    post: _
    """
    held, window, slots, (lacking, external) = chosen(SLIDING_STARTS, case)
    local = SIZE * len(held.hits) + lacking
    computed = local + external
    demand = Demand(computed + slots, computed + slots, local, external, computed)
    return takes(Numbers("sliding", SIZE, window), held, demand)


CONTINUATIONS = tuple(product(RUNNING, TOKENS))


def go_on(case: int) -> bool:
    """A running request takes what its slots lack (KV-GRP-3, KV-GRP-7).

    pre: 0 <= case < len(CONTINUATIONS)
    post: _
    """
    held, slots = chosen(CONTINUATIONS, case)
    return takes(Numbers("full", SIZE), held, Demand(slots, slots, 0, 0, 0))


ALIGNED = (
    Held((1, 2, 3), num_cached=0),
    Held((3, 2), blocks=(1,), num_cached=0, has_allocated=True),
    Held((3,), blocks=(2, 1), num_cached=1, has_allocated=True),
    Held((3,), blocks=(0, 2, 1), num_cached=1, has_allocated=True),
    Held((2, 3), blocks=(0, 1), num_cached=2),
)
STEPS = tuple((*case, drafted) for case in product(ALIGNED, range(1, 11)) for drafted in (0, 1))


def go_on_aligned(case: int) -> bool:
    """Pad with null, move drafted states along, take what is missing (KV-MAMBA-7, KV-MAMBA-9).

    pre: 0 <= case < len(STEPS) and can_have(case)
    post: _
    """
    held, slots, drafted = chosen(STEPS, case)
    demand = Demand(slots, slots, 0, 0, 0)
    return takes(Numbers("aligned", SIZE, drafted=drafted), held, demand)


def can_have(case: int) -> bool:
    """Whether a request that took blocks holds its drafted states."""
    held, _, drafted = chosen(STEPS, case)
    return not held.has_allocated or len(held.blocks) >= 1 + drafted


def remove_skipped(case: int, window: int, computed: int) -> bool:
    """What fell out of the window is released, last block first (KV-GRP-2, KV-POOL-7).

    pre: 0 <= case < len(RUNNING) and 1 <= window <= COUNT_MAX and 0 <= computed <= COUNT_MAX
    post: _
    """
    numbers, held = Numbers("sliding", SIZE, window), chosen(RUNNING, case)
    group, allocator = reference_row(numbers, held), fast_row(numbers, held)
    group.remove_skipped_blocks(NAME, computed)
    allocator.remove_skipped(ROW, computed)
    return reference_row_state(group) == fast_row_state(allocator)


def remove_states(case: int, drafted: int, computed: int) -> bool:
    """So are states, but those to which rejected drafts may lead back (KV-MAMBA-5).

    pre: 0 <= case < len(RUNNING) and 0 <= drafted <= COUNT_MAX and 0 <= computed <= COUNT_MAX
    post: _
    """
    numbers, held = Numbers("mamba", SIZE, drafted=drafted), chosen(RUNNING, case)
    group, allocator = reference_row(numbers, held), fast_row(numbers, held)
    group.remove_skipped_blocks(NAME, computed)
    allocator.remove_skipped(ROW, computed)
    return reference_row_state(group) == fast_row_state(allocator)


CONTRACTS = (
    Contract(start_full, (HITS_UNTOUCHED,)),
    Contract(start_sliding, (NO_SKIP,)),
    Contract(go_on, (ROUNDED_DOWN,)),
    Contract(go_on_aligned, (DRAFTS_STAY,)),
    Contract(remove_skipped, (TURNED,)),
    Contract(remove_states, (NO_STATES,)),
)


if __name__ == "__main__":
    sys.exit(main("lists"))
