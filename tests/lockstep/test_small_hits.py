"""kvref and kvfast find the same hits in every small cache: each block of a request cached or not.

Blocks of two tokens. What mistakes of kvfast they find is shown below.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import product
from types import SimpleNamespace
from typing import Any, cast

import pytest

from kvfast._core.lookup import Lookup
from kvfast._core.request import FastRequest
from kvfast._core.shape import Shape
from kvref.groups.base import LookUp
from kvref.hybrid import HybridCoordinator
from kvref.request import ReferenceRequest
from tests.lockstep.shapes import Numbers, fast_shape, reference_group
from tests.lockstep.small_caches import REQUEST, fast_lookup, hashes, reference_cache

SIZE = 2
NUM_BLOCKS = 4
ALIGNMENTS = (1, 2)
"""In blocks."""
WINDOWS = (1, 2, 3, 4, 6, 8, 10)
"""In tokens: a hit needs one block (of the first three), or 2, 3, 4 or 5, more than there are."""
BOTH = (False, True)

Flags = tuple[bool, ...]


def caches(num_blocks: int) -> Iterator[Flags]:
    return product(BOTH, repeat=num_blocks)


def same_hit(numbers: Numbers, flags: Flags, num_tokens: int, drop: bool, per: int) -> bool:
    """Whether both find the same blocks."""
    group = reference_group(numbers, reference_cache(flags, NUM_BLOCKS))
    asked = LookUp(hashes(NUM_BLOCKS), num_tokens, [0], drop, per * SIZE)
    (found,) = group.longest_hit(asked)
    lookup = fast_lookup(fast_shape(numbers), flags, NUM_BLOCKS)
    length = lookup.look_up(0, REQUEST, num_tokens, drop, per)
    return found == [lookup.hits[index] for index in range(length)]


LENGTHS = range(SIZE * (NUM_BLOCKS + 1))


def full() -> bool:
    """A run from block 0, one dropped, cut to alignment."""
    return all(
        same_hit(Numbers("full", SIZE, alignment=per * SIZE), flags, num_tokens, drop, per)
        for per, flags, num_tokens, drop in product(ALIGNMENTS, caches(NUM_BLOCKS), LENGTHS, BOTH)
    )


def sliding() -> bool:
    """The rightmost run that fills a window, else one from the start, with the drop."""
    return all(
        same_hit(
            Numbers("sliding", SIZE, window, alignment=per * SIZE), flags, num_tokens, drop, per
        )
        for per, window, flags, num_tokens, drop in product(
            ALIGNMENTS, WINDOWS, caches(NUM_BLOCKS), LENGTHS, BOTH
        )
    )


def chunked() -> bool:
    """Null for earlier chunks, then a run; by policy nulls alone are no hit."""
    return all(
        same_hit(
            Numbers("chunked", SIZE, SIZE * chunk, null_prefix_is_hit=is_hit),
            flags,
            num_tokens,
            False,
            1,
        )
        for chunk, flags, num_tokens, is_hit in product(
            (1, 2, 3), caches(NUM_BLOCKS), LENGTHS, BOTH
        )
    )


def states() -> bool:
    """The rightmost aligned state, null before it."""
    return all(
        same_hit(Numbers("mamba", SIZE), flags, num_tokens, False, per)
        for per, flags, num_tokens in product(ALIGNMENTS, caches(NUM_BLOCKS), LENGTHS)
    )


FULL = Numbers("full", SIZE, alignment=SIZE)
WINDOW = Numbers("sliding", SIZE, SIZE, alignment=SIZE)
STATES = Numbers("mamba", SIZE, alignment=SIZE)


def same_search(groups: tuple[Numbers, ...], flags: Flags) -> bool:
    """Whether both find the same blocks in each group, and the same longest answer on the way."""
    num_blocks = len(flags) // len(groups)
    pool = reference_cache(flags, num_blocks)
    both = [reference_group(each, pool, index=index) for index, each in enumerate(groups)]
    request = cast(ReferenceRequest, SimpleNamespace(block_hashes=hashes(num_blocks)))
    hit = HybridCoordinator(both, SIZE).longest_hit(request, SIZE * num_blocks)

    lookup = fast_lookup(fast_shape(*groups), flags, num_blocks)
    length = lookup.longest_hit(REQUEST, SIZE * num_blocks)
    blocks = [
        [lookup.hits[group * lookup.stride + i] for i in range(lookup.hit_blocks[group])]
        for group in range(len(groups))
    ]
    expected = (hit.blocks.to_lists(), hit.hit_length_tokens, hit.uncached_common_prefix_tokens)
    return expected == (blocks, length, lookup.longest_tokens - length)


def agreement(*groups: Numbers, num_blocks: int) -> Callable[[], bool]:
    """The search among these groups, whichever of them drop a block and whatever is cached."""

    def check() -> bool:
        return all(
            same_search(
                tuple(replace(each, drops=drop) for each, drop in zip(groups, drops, strict=True)),
                flags,
            )
            for drops in product(BOTH, repeat=len(groups))
            for flags in caches(num_blocks * len(groups))
        )

    return check


CHECKS = {
    "full": full,
    "sliding": sliding,
    "chunked": chunked,
    "states": states,
    "full and window": agreement(FULL, WINDOW, num_blocks=3),
    "window and states": agreement(WINDOW, STATES, num_blocks=4),
    "full, window and states": agreement(FULL, WINDOW, STATES, num_blocks=3),
}


@pytest.mark.rule(
    "KV-FULL-2", "KV-FULL-3", "KV-FULL-4", "KV-SW-2", "KV-SW-3", "KV-SW-4", "KV-SW-5", "KV-CHUNK-2"
)
@pytest.mark.rule("KV-MAMBA-3", "KV-POL-4", "KV-COORD-5", "KV-COORD-6", "KV-COORD-7", "KV-COORD-8")
@pytest.mark.rule("KV-COORD-10", "KV-COORD-11", "KV-COORD-12")
@pytest.mark.parametrize("name", list(CHECKS))
def test_both_find_the_same_in_every_small_cache(name: str) -> None:
    assert CHECKS[name]()


def not_aligned(
    self: Lookup, a: int, request: FastRequest, limit: int, drop: bool, per: int
) -> int:
    end = self.run_from(a, request, 0, limit)
    return end - 1 if drop and end > 0 else end


look_up_mamba, ask, spread = Lookup.look_up_mamba, Lookup.ask, Lookup.spread


def any_state(self: Lookup, a: int, request: FastRequest, limit: int, per: int) -> int:
    return look_up_mamba(self, a, request, limit, 1)


def look_no_further(self: Lookup, a: int, request: FastRequest, length: int, _limit: int) -> int:
    return ask(self, a, request, length, length)


def keep_marks(self: Lookup, a: int, request: FastRequest, length: int, limit: int) -> int:
    marks = list(self.is_verified)
    answer = ask(self, a, request, length, limit)
    for b, mark in enumerate(marks):
        self.is_verified[b] = max(self.is_verified[b], mark)
    return answer


def spread_whole(self: Lookup, a: int, num_blocks: int) -> None:
    spread(self, a, self.found_blocks[a])


@pytest.mark.parametrize(
    ("name", "owner", "attribute", "replacement"),
    [
        ("full", Lookup, "look_up_full", not_aligned),
        ("sliding", Lookup, "short_run", lambda self, length, dropped, per: length),
        ("sliding", Lookup, "put_null", lambda *_: None),
        ("chunked", Shape, "skipped", lambda *_: 0),
        ("states", Lookup, "look_up_mamba", any_state),
        ("full and window", Lookup, "ask", look_no_further),
        ("full and window", Lookup, "spread", spread_whole),
        ("window and states", Lookup, "ask", keep_marks),
        ("window and states", Lookup, "is_mamba", lambda *_: False),
        ("full, window and states", Lookup, "spread", spread_whole),
    ],
)
def test_a_mistake_in_kvfast_is_found(
    monkeypatch: pytest.MonkeyPatch, name: str, owner: type, attribute: str, replacement: Any
) -> None:
    monkeypatch.setattr(owner, attribute, replacement)
    assert not CHECKS[name]()
