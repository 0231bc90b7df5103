"""The hit that several groups agree on: kvref and kvfast find the same, whatever each has cached.

The whole search of both, with the look-ups of each kind of group: three or four blocks of two
tokens in each group, each cached or not (KV-COORD-5 … KV-COORD-8, KV-COORD-10 … KV-COORD-12).
"""

from __future__ import annotations

import sys
from dataclasses import replace
from types import SimpleNamespace
from typing import cast

from kvref.hybrid import HybridCoordinator
from kvref.request import ReferenceRequest
from proofs.code.contracts._hits import REQUEST, fast_lookup, hashes, reference_cache
from proofs.code.contracts._mistakes import (
    KEEPS_MARKS,
    LISTS_STAY,
    LOOKS_NO_FURTHER,
    STATES_LOOK_FURTHER,
)
from proofs.code.contracts._pools import chosen
from proofs.code.contracts._runner import Contract, main
from proofs.code.contracts._shapes import Numbers, fast_shape, reference_group

SIZE = 2

Two = tuple[bool, bool, bool, bool, bool, bool]
TwoOfFour = tuple[bool, bool, bool, bool, bool, bool, bool, bool]
Three = tuple[bool, bool, bool, bool, bool, bool, bool, bool, bool]

FULL = Numbers("full", SIZE, alignment=SIZE)
WINDOW = Numbers("sliding", SIZE, SIZE, alignment=SIZE)
STATES = Numbers("mamba", SIZE, alignment=SIZE)

EAGLE = ((False, False), (True, False), (False, True), (True, True))
"""Which of two groups drop a block."""


def same_search(groups: tuple[Numbers, ...], flags: tuple[bool, ...]) -> bool:
    """Whether both find the same blocks in each group, and the same longest answer on the way."""
    num_blocks = len(flags) // len(groups)
    pool = reference_cache(flags, num_blocks)
    both = [reference_group(each, pool, index=index) for index, each in enumerate(groups)]
    request = cast(ReferenceRequest, SimpleNamespace(block_hashes=hashes(num_blocks)))
    hit = HybridCoordinator(both, SIZE).longest_hit(request, SIZE * num_blocks)

    lookup = fast_lookup(fast_shape(*groups), flags, num_blocks)
    length = lookup.longest_hit(REQUEST, SIZE * num_blocks)
    blocks = tuple(
        [
            tuple([lookup.hits[group * lookup.stride + i] for i in range(lookup.hit_blocks[group])])
            for group in range(len(groups))
        ]
    )
    found = tuple([tuple(each) for each in hit.blocks.groups])
    expected = (found, hit.hit_length_tokens, hit.uncached_common_prefix_tokens)
    return expected == (blocks, length, lookup.longest_tokens - length)


def full_and_window(case: int, flags: Two) -> bool:
    """Two groups, the first of them full: one round (KV-COORD-7, KV-COORD-10, KV-COORD-11).

    pre: 0 <= case < len(EAGLE)
    post: _
    """
    first, second = chosen(EAGLE, case)
    return same_search((replace(FULL, drops=first), replace(WINDOW, drops=second)), flags)


def window_and_states(case: int, flags: TwoOfFour) -> bool:
    """Two groups, none of them full: rounds until both agree (KV-COORD-5, KV-COORD-8).

    pre: 0 <= case < len(EAGLE)
    post: _
    """
    first, second = chosen(EAGLE, case)
    return same_search((replace(WINDOW, drops=first), replace(STATES, drops=second)), flags)


def full_window_states(flags: Three, drop: bool) -> bool:
    """Three groups: full attention is asked once, then cut (KV-COORD-5, KV-COORD-6, KV-COORD-12).

    post: _
    """
    return same_search((FULL, replace(WINDOW, drops=drop), STATES), flags)


CONTRACTS = (
    Contract(full_and_window, (LOOKS_NO_FURTHER, LISTS_STAY)),
    Contract(window_and_states, (KEEPS_MARKS, STATES_LOOK_FURTHER)),
    Contract(full_window_states, (LISTS_STAY,)),
)


if __name__ == "__main__":
    sys.exit(main("agreement"))
