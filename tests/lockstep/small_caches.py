"""A cache of which is known what is in it when it is asked, in kvref and in kvfast.

Block b of the request is cached in group g if the flag g * num_blocks + b says so; its id is that
number + 1. What finds it there, the hashes and the map, is put aside.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import cast

from kvfast._core.lookup import Lookup
from kvfast._core.pool import BlockPool as FastPool
from kvfast._core.request import FastRequest
from kvfast._core.shape import Shape
from kvref.block_pool import BlockPool as ReferencePool
from kvref.hashing import split_key

ANY = 99
"""A block that no look-up finds."""


class Cache:
    """Stands for kvref's pool, kvfast's pool and its map, as far as look-ups read them."""

    has_partial = False

    def __init__(self, flags: Sequence[bool], num_blocks: int) -> None:
        self.flags = flags
        self.num_blocks = num_blocks
        self.keys = self

    def entry(self, block: int, group: int) -> int:
        """The id of a block of the request, 0 if it is not cached."""
        place = group * self.num_blocks + block
        return place + 1 if self.flags[place] else 0

    def block_of(self, entry: int) -> int:
        """An entry is a block."""
        return entry


class ReferenceCache(Cache):
    """What kvref asks: by key."""

    def find(self, key: bytes) -> int | None:
        """The block under a key."""
        block_hash, group = split_key(key)
        return self.entry(block_hash[0], group) or None


class FastCache(Cache):
    """What kvfast asks: by number of the hash, and a run at a time."""

    def find(self, _request: FastRequest, number: int, group: int) -> int:
        """The entry of a hash."""
        return self.entry(number, group)

    def find_run(
        self,
        request: FastRequest,
        _per: int,
        group: int,
        first: int,
        limit: int,
        out: list[int],
        base: int,
    ) -> int:
        """The end of the run of hits from block `first` on."""
        while first < limit:
            entry = self.find(request, first, group)
            if entry == 0:
                break
            out[base + first] = entry
            first += 1
        return first


def hashes(num_blocks: int) -> list[bytes]:
    """The hashes of the request: their numbers."""
    return [bytes([number]) for number in range(num_blocks)]


def reference_cache(flags: Sequence[bool], num_blocks: int) -> ReferencePool:
    """For kvref."""
    return cast(ReferencePool, ReferenceCache(flags, num_blocks))


def fast_lookup(shape: Shape, flags: Sequence[bool], num_blocks: int) -> Lookup:
    """For kvfast."""
    lookup = Lookup(shape, cast(FastPool, FastCache(flags, num_blocks)))
    lookup.make_room(num_blocks + 1)
    for group in range(shape.num_groups):
        for block in range(num_blocks):
            lookup.hits[group * lookup.stride + block] = ANY  # of an earlier look-up
    return lookup


REQUEST = cast(FastRequest, None)
"""Of the request only the hashes matter, and their numbers are enough."""
