"""CrossHair itself: it confirms what holds, refutes what does not, admits what it can't decide.

True and false statements about a free queue (KV-POOL-3, KV-POOL-6), windows (KV-SW-1), hits
(KV-FULL-2) and counts (KV-ERR-6); one of them has no case, and one has more paths than
CrossHair may take. If an answer here changes, none of the other files can be trusted.
"""

from __future__ import annotations

import sys

from kvspec._check import COUNT_MAX
from proofs.code.contracts._runner import Contract, Outcome, main

Queue = tuple[int, int, int]


def released(queue: Queue, block: int, has_key: bool) -> tuple[int, ...]:
    """Return the queue after a release, by KV-POOL-6."""
    return (*queue, block) if has_key else (block, *queue)


def last_block_stays(queue: Queue, block: int, has_key: bool) -> bool:
    """Claim that a block without a key leaves the back of the queue as it was: true.

    pre: not has_key
    post: _
    """
    return released(queue, block, has_key)[-1] == queue[-1]


def first_block_stays(queue: Queue, block: int, has_key: bool) -> bool:
    """Claim that no release changes the front: false.

    pre: block not in queue
    post: _
    """
    return released(queue, block, has_key)[0] == queue[0]


def window_moves_on(window: int, computed: int) -> bool:
    """Claim that one token more skips at most one more: true.

    pre: window >= 1 and computed >= 0
    post: _
    """
    return max(0, computed + 2 - window) - max(0, computed + 1 - window) in (0, 1)


def window_always_moves(window: int, computed: int) -> bool:
    """Claim that one token more always skips one more: false at the start.

    pre: window >= 1 and computed >= 0
    post: _
    """
    return max(0, computed + 2 - window) - max(0, computed + 1 - window) == 1


def run(flags: tuple[bool, bool, bool]) -> int:
    """Return the hit of full attention, in blocks."""
    length = 0
    while length < 3 and flags[length]:
        length += 1
    return length


def run_is_cached(flags: tuple[bool, bool, bool]) -> bool:
    """Claim that all blocks of a hit are cached: true.

    post: _
    """
    return all(flags[block] for block in range(run(flags)))


def run_is_all_that_is_cached(flags: tuple[bool, bool, bool]) -> bool:
    """Claim that a hit has every cached block: false.

    post: _
    """
    return run(flags) == sum(flags)


def sums_of_counts(first: int, second: int) -> bool:
    """Claim that the sum of two counts fits in 54 bits: true.

    pre: 0 <= first <= COUNT_MAX and 0 <= second <= COUNT_MAX
    post: _
    """
    return (first + second) >> 54 == 0


def sums_are_counts(first: int, second: int) -> bool:
    """Claim that the sum of two counts is a count: false.

    pre: 0 <= first <= COUNT_MAX and 0 <= second <= COUNT_MAX
    post: _
    """
    return first + second <= COUNT_MAX


def no_such_count(count: int) -> bool:
    """Claim anything: no argument meets the precondition.

    pre: count > COUNT_MAX and count < 0
    post: _
    """
    return True


def many_ways(count: int) -> bool:
    """Claim what is true, but on more paths than CrossHair may take.

    pre: count >= 0
    post: _
    """
    steps = 0
    while steps < count:
        steps += 1
    return steps == count


def same_way(count: int) -> int:
    """Return `count`, at least 0."""
    return count if count > 0 else 0


def other_way(count: int) -> int:
    """Return the same as `same_way`, written differently."""
    return max(count, 0)


def wrong_at_7(count: int) -> int:
    """Return the same, but for 7."""
    return 0 if count == 7 else max(count, 0)


def not_the_same(count: int) -> int:
    """Call `same_way`."""
    return same_way(count)


CONTRACTS = (
    Contract(last_block_stays),
    Contract(first_block_stays, expected=Outcome.REFUTED),
    Contract(window_moves_on),
    Contract(window_always_moves, expected=Outcome.REFUTED),
    Contract(run_is_cached),
    Contract(run_is_all_that_is_cached, expected=Outcome.REFUTED),
    Contract(sums_of_counts),
    Contract(sums_are_counts, expected=Outcome.REFUTED),
    Contract(no_such_count, expected=Outcome.VACUOUS),
    Contract(many_ways, expected=Outcome.BOUNDED, num_paths=20),
    Contract(same_way, other=other_way),
    Contract(not_the_same, other=wrong_at_7, expected=Outcome.REFUTED),
)


if __name__ == "__main__":
    sys.exit(main("canaries"))
