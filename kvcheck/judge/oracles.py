"""Expected results, computed from a snapshot and the rules by plain enumeration.

Nothing here shares code with an implementation.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from kvcheck.play.difference import WrongAnswer
from kvspec.snapshot import Snapshot


def expect_equal(rule: str, what: str, expected: object, got: object) -> None:
    """Raise WrongAnswer unless the result is what the rule says."""
    if expected != got:
        raise WrongAnswer("answers_as_the_rule_says", rule, what, expected, got)


def queue_after_release(before: Snapshot, lists: Iterable[Sequence[int]]) -> tuple[int, ...]:
    """Return the free queue after one release call per list (KV-POOL-6, KV-POOL-7)."""
    counts = list(before.ref_counts)
    queue = list(before.free_queue)
    for blocks in lists:
        gone = []
        for block in blocks:
            if block != 0:
                counts[block] -= 1
                if counts[block] == 0:
                    gone.append(block)
        unhashed = [block for block in gone if not before.block_keys[block]]
        hashed = [block for block in gone if before.block_keys[block]]
        queue = unhashed + queue + hashed
    return tuple(queue)
