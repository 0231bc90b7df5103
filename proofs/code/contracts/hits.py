"""The longest hit of a group: kvref and kvfast find the same, whatever is cached.

A request of up to four blocks of two tokens, each cached or not; windows from one token to more
than the request has (KV-FULL-2 … KV-FULL-4, KV-SW-2 … KV-SW-5, KV-CHUNK-2, KV-MAMBA-3, KV-POL-4).
"""

from __future__ import annotations

import sys

from proofs.code.contracts._hits import REQUEST, fast_lookup, hashes, reference_cache
from proofs.code.contracts._mistakes import (
    ANY_STATE,
    NO_NULLS,
    NO_SKIP,
    NOT_ALIGNED,
    NOT_SHORTENED,
)
from proofs.code.contracts._pools import chosen
from proofs.code.contracts._runner import Contract, main
from proofs.code.contracts._shapes import Numbers, fast_shape, reference_group

SIZE = 2
NUM_BLOCKS = 4

Flags = tuple[bool, bool, bool, bool]

ALIGNMENTS = (1, 2)
"""In blocks."""

WINDOWS = (1, 2, 3, 4, 6, 8, 10)
"""In tokens: a hit needs one block (of the first three), or 2, 3, 4 or 5, more than there are."""


def same_hit(numbers: Numbers, flags: Flags, num_tokens: int, drop: bool, per: int) -> bool:
    """Whether both find the same blocks."""
    group = reference_group(numbers, reference_cache(flags, NUM_BLOCKS))
    (found,) = group.longest_hit(
        hashes(NUM_BLOCKS),
        num_tokens,
        members=[0],
        drop_last_block=drop,
        alignment_tokens=per * SIZE,
    )
    lookup = fast_lookup(fast_shape(numbers), flags, NUM_BLOCKS)
    length = lookup.look_up(0, REQUEST, num_tokens, drop, per)
    return tuple(found) == tuple([lookup.hits[index] for index in range(length)])


def full(case: int, flags: Flags, num_tokens: int, drop: bool) -> bool:
    """A run from block 0, one dropped, cut to alignment (KV-FULL-2 … KV-FULL-4).

    pre: 0 <= case < len(ALIGNMENTS) and 0 <= num_tokens < SIZE * (NUM_BLOCKS + 1)
    post: _
    """
    per = chosen(ALIGNMENTS, case)
    return same_hit(Numbers("full", SIZE, alignment=per * SIZE), flags, num_tokens, drop, per)


def sliding(per_case: int, case: int, flags: Flags, drop: bool) -> bool:
    """The rightmost run that fills a window, else one from block 0 (KV-SW-2 … KV-SW-5).

    pre: 0 <= per_case < len(ALIGNMENTS) and 0 <= case < len(WINDOWS)
    post: _
    """
    per = chosen(ALIGNMENTS, per_case)
    numbers = Numbers("sliding", SIZE, chosen(WINDOWS, case), alignment=per * SIZE)
    return same_hit(numbers, flags, SIZE * NUM_BLOCKS, drop, per)


def chunked(case: int, flags: Flags, num_tokens: int, null_prefix_is_hit: bool) -> bool:
    """Null for earlier chunks, then a run; by policy nulls alone are no hit (KV-CHUNK-2, KV-POL-4).

    pre: 0 <= case < 3 and 0 <= num_tokens < SIZE * (NUM_BLOCKS + 1)
    post: _
    """
    chunk = SIZE * (1 + chosen((0, 1, 2), case))
    numbers = Numbers("chunked", SIZE, chunk, null_prefix_is_hit=null_prefix_is_hit)
    return same_hit(numbers, flags, num_tokens, False, 1)


def states(case: int, flags: Flags, num_tokens: int) -> bool:
    """The rightmost aligned state, null before it (KV-MAMBA-3).

    pre: 0 <= case < len(ALIGNMENTS) and 0 <= num_tokens < SIZE * (NUM_BLOCKS + 1)
    post: _
    """
    per = chosen(ALIGNMENTS, case)
    return same_hit(Numbers("mamba", SIZE), flags, num_tokens, False, per)


CONTRACTS = (
    Contract(full, (NOT_ALIGNED,)),
    Contract(sliding, (NOT_SHORTENED, NO_NULLS)),
    Contract(chunked, (NO_SKIP,)),
    Contract(states, (ANY_STATE,)),
)


if __name__ == "__main__":
    sys.exit(main("hits"))
