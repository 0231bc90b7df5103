"""Giving back blocks: kvref and kvfast release the same ones, in the same order.

A pool of three blocks of two tokens each; a request in five states of its list, and any windows,
drafted states and computed tokens (KV-GRP-2, KV-POOL-7, KV-MAMBA-5). What is taken is compared in
tests/lockstep/test_small_lists.py, for each entry of a table.
"""

from __future__ import annotations

import sys

from kvspec._check import COUNT_MAX  # noqa: F401 (in preconditions)
from proofs.code.contracts._mistakes import NO_STATES, TURNED
from proofs.code.contracts._pools import chosen
from proofs.code.contracts._rows import (
    NAME,
    ROW,
    Held,
    fast_row,
    fast_row_state,
    reference_row,
    reference_row_state,
)
from proofs.code.contracts._runner import Contract, main
from proofs.code.contracts._shapes import Numbers

SIZE = 2

RUNNING = (
    Held((1, 2, 3), num_cached=0),
    Held((3, 2), blocks=(1,), num_cached=1),
    Held((2,), blocks=(3, 1), num_cached=1),
    Held((3,), blocks=(0, 2), num_cached=1),
    Held((), blocks=(3, 1, 2), num_cached=0),
)


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
    Contract(remove_skipped, (TURNED,)),
    Contract(remove_states, (NO_STATES,)),
)


if __name__ == "__main__":
    sys.exit(main("lists"))
