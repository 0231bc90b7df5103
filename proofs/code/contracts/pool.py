"""One call on a pool of three blocks: kvref and kvfast return the same and end in the same state.

The states are built directly, so they include those that no short sequence of calls reaches:
taking and touching in every queue up to the names of blocks, the other calls in some. A
number selects an entry of a table; reference counts and what keys cover are any ints that
32 bits hold (KV-POOL-2 … KV-POOL-6, KV-POOL-10, KV-POOL-13, KV-POOL-14, KV-POOL-18, KV-PART-2,
KV-PART-3, KV-EVT-4).
"""

from __future__ import annotations

import sys
from itertools import product

from proofs.code.contracts._mistakes import (
    ALL_IN_FRONT,
    COVERS_NOTHING,
    HITS_STAY,
    KEYS_STAY,
    NO_COPIES,
    NO_EVENT,
    TURNED,
)
from proofs.code.contracts._pools import (
    BLOCKS,
    KEYS,
    MOST,  # noqa: F401 (in preconditions)
    QUEUES,
    REGISTERED,
    are_used,  # noqa: F401 (in preconditions)
    chosen,
    fast_pool,
    fast_state,
    hashed,
    reference_pool,
    reference_state,
    tables_of,
)
from proofs.code.contracts._runner import Contract, main

ASSUMES = ("hashes are the same bytes in both", "kvfast's arrays are lists of numbers")
GUARANTEES = (
    "one call on a pool of three blocks ends in the same snapshot",
    "the same removals are told of one call on a pool of three blocks",
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


KEYED = {(): (0, 1, 2, 3), (3,): (0, 1, 2), (2, 1): (0, 3)}
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


FORGETTINGS = tuple(product(((), (1, 3), (3, 2, 1)), REGISTERED, BLOCKS))


def forget(case: int, refs: tuple[int, int, int], per_copy: bool) -> bool:
    """Drop the keys of a block, wherever it is, and nothing else (KV-POOL-10, KV-EVT-4).

    pre: 0 <= case < len(FORGETTINGS) and are_used(refs)
    post: _
    """
    queue, registered, block = chosen(FORGETTINGS, case)
    ours = reference_pool(queue, refs, registered, per_copy=per_copy)
    theirs = fast_pool(queue, refs, registered, per_copy=per_copy)
    ours.forget(block)
    theirs.forget(block)
    return reference_state(ours) == fast_state(theirs)


REGISTRATIONS = tuple(product(REGISTERED, BLOCKS, range(len(KEYS))))


def register(case: int, covered: int, num_tokens: int) -> bool:
    """Add a full block to those of its key; drop its shorter keys (KV-POOL-14, KV-POOL-18).

    pre: 0 <= case < len(REGISTRATIONS) and 1 <= covered < num_tokens < MOST
    post: _
    """
    registered, block, number = chosen(REGISTRATIONS, case)
    ours = reference_pool((), (1, 1, 1), registered, covered=covered)
    theirs = fast_pool((), (1, 1, 1), registered, covered=covered)
    ours.register(block, KEYS[number], num_tokens)
    theirs.register(block, hashed(), number, 0, num_tokens)
    return reference_state(ours) == fast_state(theirs)


def register_partial(case: int, covered: int) -> bool:
    """Add a key that ends inside; it replaces keys that cover less (KV-PART-2, KV-PART-3).

    pre: 0 <= case < len(REGISTRATIONS) and 1 <= covered < MOST
    post: _
    """
    registered, block, number = chosen(REGISTRATIONS, case)
    ours = reference_pool((), (1, 1, 1), registered, covered=covered)
    theirs = fast_pool((), (1, 1, 1), registered, covered=covered)
    is_new = ours.register_partial(block, KEYS[number], number + 1)
    return (is_new, reference_state(ours)) == (
        theirs.register_partial(block, hashed(), number, 0),
        fast_state(theirs),
    )


CONTRACTS = (
    Contract(allocate, (KEYS_STAY,)),
    Contract(touch, (HITS_STAY,)),
    Contract(release, (ALL_IN_FRONT, TURNED)),
    Contract(forget, (NO_EVENT,)),
    Contract(register, (NO_COPIES,)),
    Contract(register_partial, (COVERS_NOTHING,)),
)


if __name__ == "__main__":
    sys.exit(main("pool"))
