"""The event queue as it grows: small facts, made into events when they are taken (KV-EVT-1).

Requests with tokens only grow, so an event can read their hashes, tokens and extra keys later.
Those of a followed request may be dropped, and an entry whose key is removed may be reused: their
hashes are copied.
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
        """Queue that a caching call over blocks first … end - 1 stored those listed (KV-EVT-2)."""
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
        """Queue that a request hit blocks that were stored before (KV-EVT-11)."""
        self.facts.append((fact_of(request, group, hashes_per_block, first, end, blocks),))

    def removed(self, keys: KeyMap, entry: int) -> None:
        """Queue that the key of this entry left one physical block (KV-EVT-4)."""
        self.facts.append((keys.hash_of(entry), keys.group_of(entry)))

    def cleared(self) -> None:
        """Queue that a reset succeeded (KV-EVT-5)."""
        self.facts.append(None)


def fact_of(
    request: FastRequest, group: int, per: int, first: int, end: int, blocks: list[int]
) -> Stored | Followed:
    """Return the fact about these blocks among first … end - 1, each of `per` hashes."""
    if not request.is_followed:
        return request, group, per, first, end, blocks
    parent = request.hash_at(first * per - 1) if first > 0 else None
    hashes = [request.hash_at((i + 1) * per - 1) for i in blocks]
    return StoredRange(request.request_id, first, end, tuple(blocks)), group, per, hashes, parent
