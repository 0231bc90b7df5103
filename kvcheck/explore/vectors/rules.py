"""Which rules the edges of each set exercise: a mistake in one of them is seen in some walk."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType


def _of(chapter: str, *numbers: int) -> tuple[str, ...]:
    return tuple(f"KV-{chapter}-{number}" for number in numbers)


SLOTS = (
    *_of("POOL", 1, 2, 3, 6, 7, 8, 12, 15, 16, 17),
    *_of("GRP", 1, 3, 4, 7),
    *_of("MGR", 4, 6, 7, 12, 17),
    *_of("ERR", 1, 4),
)
"""Blocks are handed out and come back, whatever is cached."""

HITS = (
    *SLOTS,
    *_of("HASH", 1, 2, 3, 4, 6),
    *_of("POOL", 4, 5, 11, 13, 14, 18),
    *_of("GRP", 5, 11),
    *_of("MGR", 1, 2, 8, 10),
    *_of("EVT", 1, 2, 3, 4, 5, 7),
    *_of("STAT", 1, 2, 3),
)
"""Prefixes are found, shared and evicted."""

ONE_FULL_GROUP = (*HITS, *_of("FULL", 1, 2, 6), *_of("CFG", 4, 5), *_of("COORD", 2))
ASKED = (*_of("MGR", 15, 18), *_of("FULL", 7), *_of("GRP", 10), *_of("MGR", 16))
ILLEGAL = (
    *_of("ERR", 2, 3),
    *_of("MGR", 3, 11),
    *_of("GRP", 9),
    *_of("REQ", 3),
)
WINDOWED = (*HITS, *_of("SW", 1, 2, 3, 4), *_of("GRP", 2), *_of("MGR", 14))
SEVERAL = (*_of("FULL", 2), *_of("GRP", 8), *_of("COORD", 4, 5, 9, 10, 11, 12, 13))

RULES: Mapping[str, tuple[str, ...]] = MappingProxyType(
    {
        "uncached": (*SLOTS, *_of("COORD", 1)),
        "base": ONE_FULL_GROUP,
        "pool": (*ONE_FULL_GROUP, *ASKED, *ILLEGAL, *_of("POOL", 9, 10), *_of("MGR", 13)),
        "manager": (*ONE_FULL_GROUP, *ASKED, *ILLEGAL, *_of("POOL", 10), *_of("REQ", 2)),
        "blocks-of-2": (*ONE_FULL_GROUP, *ASKED, *_of("REQ", 2)),
        "window": (*WINDOWED, *_of("SW", 8), *_of("MGR", 18)),
        "hybrid": (*WINDOWED, *SEVERAL, *_of("POOL", 10)),
        "two-requests": (*WINDOWED, *SEVERAL),
        "own-hits": (*WINDOWED, *SEVERAL, *_of("GRP", 6), *_of("MGR", 11), *_of("POOL", 10)),
        "eagle": (*ONE_FULL_GROUP, *_of("FULL", 3), *_of("CFG", 8)),
        "hybrid-eagle": (*WINDOWED, *SEVERAL, *_of("FULL", 3), *_of("SW", 5), *_of("COORD", 7)),
        "mamba": (
            *HITS,
            *SEVERAL,
            *_of("MAMBA", 1, 2, 3, 6, 7, 9, 11, 12, 13),
            *_of("MGR", 19),
        ),
        "chunked": (*HITS, *SEVERAL, *_of("CHUNK", 1, 2, 4, 6), *_of("GRP", 2), *_of("MGR", 14)),
        "external": (*ONE_FULL_GROUP, *_of("GRP", 6), *_of("MGR", 11), *_of("POOL", 10)),
        "partial": (*HITS, *_of("HASH", 5), *_of("PART", 1, 2, 3, 4, 5)),
        "retention": (*WINDOWED, *SEVERAL, *_of("RET", 2, 4, 6)),
        "admission": (*WINDOWED, *_of("SW", 7), *_of("MGR", 5, 9)),
        "no-events": (*_of("POOL", 4, 13), *_of("PART", 1, 2, 3)),
        "unequal": (*_of("MGR", 1), *_of("COORD", 6, 7, 13), *_of("RET", 1)),
        "mamba-retention": _of("RET", 5),
        "gate": _of("MGR", 5, 7, 9, 10),
    }
)
"""Set -> rules."""
