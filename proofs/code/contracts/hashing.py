"""Extra keys are the same in kvref and kvfast; kvfast's two writers of CBOR heads agree.

No hash is taken. Items lie anywhere; a block has any place and size; heads are those of any value
below 2^64 (KV-HASH-2, KV-HASH-7, KV-HASH-8, KV-HASH-10). That a head is the shortest one is proved
in `cbor_head.py`, by itself; cbor2, which kvref calls, is compiled and is not run here.
"""

from __future__ import annotations

import sys
from typing import cast

import kvfast._core.extra_keys as fast
import kvref.hashing as reference
from kvfast._core import hashing
from kvspec._check import COUNT_MAX
from kvspec.events import ExtraKeys
from kvspec.request import MultimodalItem, RequestInput
from proofs.code._planted import Planted
from proofs.code.contracts._runner import Contract, main

ASSUMES: tuple[str, ...] = ()
GUARANTEES = ("extra keys are the same for two items and three blocks",)

MOST = COUNT_MAX // 4
"""Sums of places stay counts."""


def request_of(first: tuple[int, int], second: tuple[int, int], salt: bool) -> RequestInput:
    """Build a request with two items (gap before each, its length), perhaps with a salt."""
    place = first[0]
    items = [MultimodalItem("a", place, first[1])]
    place += first[1] + second[0]
    items.append(MultimodalItem("b", place, second[1]))
    return RequestInput("r", [0], cache_salt="s" if salt else None, multimodal=tuple(items))


def are_places(first: tuple[int, int], second: tuple[int, int]) -> bool:
    """Check that gaps and lengths are possible."""
    gaps = 0 <= first[0] <= MOST and 0 <= second[0] <= MOST
    return gaps and 1 <= first[1] <= MOST and 1 <= second[1] <= MOST


def extra_keys(
    first: tuple[int, int], second: tuple[int, int], salt: bool, start: int, end: int
) -> bool:
    """Compare a block's extra keys: overlapping items and the salt (KV-HASH-7, KV-HASH-8).

    pre: are_places(first, second) and 0 <= start < end <= COUNT_MAX
    post: _
    """
    request = request_of(first, second, salt)
    wanted = reference.extra_keys(request, start, end)
    found = fast.extra_keys(request, start, end)
    return found == reference.untagged(wanted) and fast.tagged(request, found) == wanted


SIZE = 4
NUM_BLOCKS = 3


def runs(first: tuple[int, int], second: tuple[int, int], salt: bool) -> bool:
    """Compare the extra keys of a run with those of each of its blocks (KV-HASH-7, KV-HASH-10).

    pre: are_places(first, second)
    post: _
    """
    request = request_of(first, second, salt)
    said: list[ExtraKeys] = []
    for begin, end, keys in fast.runs(request, SIZE, 0, NUM_BLOCKS):
        if begin != len(said):
            return False
        said.extend([keys for _ in range(begin, end)])
    wanted = [
        reference.untagged(reference.extra_keys(request, block * SIZE, (block + 1) * SIZE))
        for block in range(NUM_BLOCKS)
    ]
    return tuple(said) == tuple(wanted)


def head(major: int, value: int) -> tuple[int, ...] | None:
    """Return the head of a value as kvfast writes it outside tokens (KV-HASH-2)."""
    if not (0 <= major < 6 and 0 <= value < 1 << 64):
        return None
    return tuple(hashing.head(major, value))


def head_in_message(major: int, value: int) -> tuple[int, ...] | None:
    """Return the head of a token as kvfast writes it into a message."""
    if not (0 <= major < 6 and 0 <= value < 1 << 64):
        return None
    message = [0] * 16
    end = hashing.put_head(cast("memoryview[int]", message), 0, major, value)
    return tuple(message[:end])


ITEM_BEHIND = Planted("KV-HASH-8", (fast, "extra_keys", ".offset >= end", ".offset > end"))
LATER = Planted("KV-HASH-7", (fast, "_next_change", "max(block + 1,", "max(block + 2,"))
HEAD_LATER = Planted("KV-HASH-2", (hashing, "head", "value < 24", "value < 25"))

CONTRACTS = (
    Contract(extra_keys, mistakes=(ITEM_BEHIND,)),
    Contract(runs, mistakes=(LATER,)),
    Contract(head, mistakes=(HEAD_LATER,), other=head_in_message),
)


if __name__ == "__main__":
    sys.exit(main("hashing"))
