"""Which chunk of a first tier gives way (KV-TIER-16, KV-TIER-29 …), chosen from lists."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass


@dataclass
class Chunk:
    """A chunk of the first tier; `storing`: the request that writes it, 0 for a promotion.

    `is_dirty`: no lower tier has been given it yet. `uses`, `priority`, `last_step`: how often it
    was used, the priority of the request that used it last, and the step of that.
    """

    key: bytes
    place: int
    storing: str | int | None
    pins: int = 0
    tenant: str = ""
    is_dirty: bool = False
    uses: int = 0
    priority: int = 0
    last_step: int = 0


class Order:
    """Evicts by the order of that name. Chunks are given with the least recently used first."""

    def __init__(self, name: str, capacity: int) -> None:
        self.name, self.capacity = name, capacity
        self.clear()

    def clear(self) -> None:
        """Forget what ARC has learnt: which keys left after one use and after several."""
        self.target = 0
        self.left_once: list[bytes] = []
        self.left_often: list[bytes] = []

    def first(self, may_leave: Sequence[Chunk], staying: Collection[Chunk]) -> Chunk:
        """Return the first to give way; `staying`: all that are in the tier now."""
        if self.name == "lfu":
            return min(may_leave, key=lambda chunk: chunk.uses)
        if self.name == "priority":
            return min(may_leave, key=lambda chunk: chunk.priority)
        if self.name == "arc":
            is_full = sum(chunk.uses == 1 for chunk in staying) > self.target
            wanted = [chunk for chunk in may_leave if (chunk.uses == 1) == is_full]
            return (wanted or may_leave)[0]
        return may_leave[0]

    def arrives(self, key: bytes) -> int:
        """Return how often a new chunk counts as used before; ARC learns from keys that left."""
        if key not in self.left_once + self.left_often:
            return 0
        once, often = len(self.left_once), len(self.left_often)
        if key in self.left_once:
            self.target = min(self.capacity, self.target + max(1, often // once))
            self.left_once.remove(key)
        else:
            self.target = max(0, self.target - max(1, once // often))
            self.left_often.remove(key)
        return 1

    def leaves(self, chunk: Chunk) -> None:
        """Remember an evicted chunk, as many of each kind as there are places (KV-TIER-31)."""
        if self.name != "arc":
            return
        left = self.left_once if chunk.uses == 1 else self.left_often
        left.append(chunk.key)
        del left[: -self.capacity]
