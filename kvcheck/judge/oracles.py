"""What the answer must be, computed from a snapshot and the rules by plain enumeration.

For one full-attention group. Nothing here shares code with an implementation.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from kvcheck.play.difference import WrongAnswer
from kvspec.snapshot import Snapshot


def expect_equal(rule: str, what: str, expected: object, got: object) -> None:
    """Raise WrongAnswer unless the implementation answered what the rule says."""
    if expected != got:
        raise WrongAnswer("answers_as_the_rule_says", rule, what, expected, got)


def longest_full_hit(
    before: Snapshot,
    hashes: Sequence[bytes],
    max_length_tokens: int,
    block_size_tokens: int,
    *,
    drop_last_block: bool,
) -> list[int]:
    """The hit of one full-attention group 0: the best of all candidate lengths (KV-FULL-2, -3)."""
    keys = [block_hash + bytes(4) for block_hash in hashes]
    limit = min(max_length_tokens // block_size_tokens, len(keys))
    lengths = [n for n in range(limit + 1) if all(key in before.lookup_order for key in keys[:n])]
    best = max(lengths)
    if drop_last_block:
        best = max(best - 1, 0)
    return [before.lookup_order[key][0] for key in keys[:best]]


def blocks_needed(
    before: Snapshot, held: int, hits: Sequence[int], num_slots_tokens: int, block_size_tokens: int
) -> int:
    """Free blocks an allocation takes: missing ones, and hits that have to be revived."""
    required = (num_slots_tokens + block_size_tokens - 1) // block_size_tokens
    revived = [block for block in hits if before.ref_counts[block] == 0]
    return max(required - held - len(hits), 0) + len(revived)


def queue_after_release(before: Snapshot, lists: Iterable[Sequence[int]]) -> tuple[int, ...]:
    """The free queue after one release call per list (KV-POOL-6, KV-POOL-7)."""
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


def queue_after_allocation(
    before: Snapshot, hits: Sequence[int], num_taken: int
) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """The blocks taken, and the free queue after: hits leave first (KV-POOL-3, KV-GRP-8)."""
    queue = tuple(block for block in before.free_queue if block not in set(hits))
    return queue[:num_taken], queue[num_taken:]
