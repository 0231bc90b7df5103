"""The event queue as it grows: small facts, made into events when they are taken (KV-EVT-1).

Requests only ever grow, so what an event needs of one (its hashes, tokens and extra keys) can be
read later; only removed hashes are copied, since their entry may be used again.
"""

from __future__ import annotations

from kvfast.events import Fact

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
        self.facts.append((request, group, hashes_per_block, first, end, blocks))

    def removed(self, keys: KeyMap, entry: int) -> None:
        """The key of this entry left one physical block (KV-EVT-4)."""
        self.facts.append((keys.hash_of(entry), keys.group_of(entry)))

    def cleared(self) -> None:
        """A reset succeeded (KV-EVT-5)."""
        self.facts.append(None)
