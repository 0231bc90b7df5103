"""The event queue as it grows: small facts, made into events when they are taken (KV-EVT-1).

Requests with tokens only ever grow, so what an event needs of one (its hashes, tokens and extra
keys) can be read later. Those of a followed request may be dropped, and an entry whose key is
removed may be used again: their hashes are copied.
"""

from __future__ import annotations

from kvfast.events import Fact, Followed, Stored
from kvspec.events import StoredRange

from .key_map import KeyMap
from .request import FastRequest


class EventLog:
    """Facts since they were taken last."""

    def __init__(self) -> None:
        self.facts: list[Fact] = []

    def stored(
        self,
        request: FastRequest,
        group: int,
        hashes_per_block: int,
        first: int,
        end: int,
        blocks: list[int],
    ) -> None:
        """A caching call over blocks first … end - 1 stored those listed (KV-EVT-2)."""
        self.facts.append(fact_of(request, group, hashes_per_block, first, end, blocks))

    def hit(
        self,
        request: FastRequest,
        group: int,
        hashes_per_block: int,
        first: int,
        end: int,
        blocks: list[int],
    ) -> None:
        """The same of blocks that were stored before, and are hit (KV-EVT-11)."""
        self.facts.append((fact_of(request, group, hashes_per_block, first, end, blocks),))

    def removed(self, keys: KeyMap, entry: int) -> None:
        """The key of this entry left one physical block (KV-EVT-4)."""
        self.facts.append((keys.hash_of(entry), keys.group_of(entry)))

    def cleared(self) -> None:
        """A reset succeeded (KV-EVT-5)."""
        self.facts.append(None)


def fact_of(
    request: FastRequest, group: int, per: int, first: int, end: int, blocks: list[int]
) -> Stored | Followed:
    """What an event will say of these blocks, each of so many hashes, of first … end - 1."""
    if not request.is_followed:
        return request, group, per, first, end, blocks
    parent = request.hash_at(first * per - 1) if first > 0 else None
    hashes = [request.hash_at((i + 1) * per - 1) for i in blocks]
    return StoredRange(request.request_id, first, end, tuple(blocks)), group, per, hashes, parent
