"""One call on a pool of three blocks: kvref and kvfast return the same and end in the same state.

The states are built directly, so they include those that no short sequence of calls reaches: queues
of none to three blocks, in different orders. A number selects an entry of a table; reference counts
are any ints that 32 bits hold (KV-POOL-2 … KV-POOL-6).
"""

from __future__ import annotations

import sys
from itertools import product

from kvfast._core.pool import BlockPool
from proofs.code._planted import Planted
from proofs.code.contracts._pools import (
    BLOCKS,
    QUEUES,
    REGISTERED,
    are_used,  # noqa: F401 (in preconditions)
    chosen,
    fast_pool,
    fast_state,
    reference_pool,
    reference_state,
    tables_of,
)
from proofs.code.contracts._runner import Contract, main

ASSUMES = ("hashes are the same bytes in both", "kvfast's arrays are lists of numbers")
GUARANTEES = (
    "an allocation, touch or release among three blocks ends in the same snapshot",
    "the same removals are reported of an allocation from three blocks",
)

ALLOCATIONS = tuple(
    (queue, registered, count)
    for queue in QUEUES
    for registered in REGISTERED
    for count in range(1, len(queue) + 1)
)


def allocate(case: int, refs: tuple[int, int, int]) -> bool:
    """Take blocks from the front, and evict them in that order (KV-POOL-3, KV-POOL-4).

    pre: 0 <= case < len(ALLOCATIONS) and are_used(refs)
    post: _
    """
    queue, registered, count = chosen(ALLOCATIONS, case)
    ours, theirs = reference_pool(queue, refs, registered), fast_pool(queue, refs, registered)
    tables = tables_of(())
    theirs.allocate(tables, 0, count)
    return (tuple(ours.allocate(count)), reference_state(ours)) == (
        tuple(tables.to_list(0)),
        fast_state(theirs),
    )


TOUCHES = tuple(product(QUEUES, BLOCKS, BLOCKS))


def touch(case: int, refs: tuple[int, int, int]) -> bool:
    """Reference hits; free ones leave the queue from any position (KV-POOL-5).

    pre: 0 <= case < len(TOUCHES) and are_used(refs)
    post: _
    """
    queue, *hits = chosen(TOUCHES, case)
    ours, theirs = reference_pool(queue, refs), fast_pool(queue, refs)
    ours.touch(hits)
    theirs.touch(tables_of(hits), 0, 2)
    return reference_state(ours) == fast_state(theirs)


KEYED = {(): (1, 2), (3,): (1,), (2, 1): (3,)}
"""Queues, and how many blocks from block 1 on have a key."""

RELEASES = tuple(
    (queue, keyed, first, second)
    for queue, numbers in KEYED.items()
    for keyed, first, second in product(numbers, (0, *BLOCKS), BLOCKS)
    if first not in queue and second not in queue
)


def release(case: int, refs: tuple[int, int, int], to_front: bool) -> bool:
    """Release two references; a free block joins the queue, in front without a key (KV-POOL-6).

    By policy such blocks are put at the back as well (KV-POL-3).

    pre: 0 <= case < len(RELEASES) and are_used(refs)
    post: _
    """
    queue, keyed, first, second = chosen(RELEASES, case)
    registered = tuple((block, 0) for block in range(1, keyed + 1))
    counts = list(refs)
    counts[second - 1] += first == second  # it has two references to drop
    ours = reference_pool(queue, counts, registered, to_front=to_front)
    theirs = fast_pool(queue, counts, registered, to_front=to_front)
    ours.release([first, second])
    theirs.release(tables_of([second, first]), 0, 2)  # kvfast releases the last one first
    return reference_state(ours) == fast_state(theirs)


ALLOCATING = (
    Planted("KV-POOL-2", (BlockPool, "set_queue", "= len(blocks)", "= len(blocks) + 1")),
    Planted("KV-POOL-3", (BlockPool, "allocate_run", "num_free -= count", "num_free -= count + 1")),
    Planted("KV-POOL-3", (BlockPool, "allocate_run", "step = 1 + facts", "step = 2 + facts")),
    Planted(
        "KV-POOL-4", (BlockPool, "allocate_run", "evict(tables, start,", "evict(tables, start + 1,")
    ),
)
TOUCHING = (Planted("KV-POOL-5", (BlockPool, "touch", "REFS] == 0", "REFS] <= 1")),)
RELEASING = (
    Planted(
        "KV-POOL-6",
        (
            BlockPool,
            "release",
            "last = self.before(0)\n    for place in range(end - 1, start - 1, -1)",
            "last = self.before(0)\n    for place in range(end - 1, start, -1)",
        ),
    ),
    Planted("KV-POOL-6", (BlockPool, "release", "self.num_free += 1", "self.num_free += 2")),
    Planted("KV-POOL-6", (BlockPool, "release", "REFS] == 1", "REFS] <= 2")),
    Planted("KV-POOL-6", (BlockPool, "drop_ref", "+ record.REFS] > 0", "+ record.REFS] > 1")),
)
CONTRACTS = (
    Contract(allocate, ALLOCATING),
    Contract(touch, TOUCHING),
    Contract(release, RELEASING),
)


if __name__ == "__main__":
    sys.exit(main("pool"))
