"""Which chunks must give way under each order of eviction (KV-TIER-16, KV-TIER-29 …)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Sequence

from kvspec.offload import ORDERS


class Expected:
    """Uses of chunks, and the chunks that are due to leave.

    `once`, `often`: keys that ARC saw leave after one use or after several, the latest last.
    """

    def __init__(self, order: str, num_chunks: int) -> None:
        self.order, self.num_chunks = order, num_chunks
        self.rule = f"KV-TIER-{(16, 29, 30, 31)[ORDERS.index(order)]}"
        self.clear()

    def clear(self) -> None:
        self.uses: Counter[bytes] = Counter()
        self.priority: dict[bytes, int] = {}
        self.target = 0
        self.once: dict[bytes, None] = {}
        self.often: dict[bytes, None] = {}

    def used(self, key: bytes, priority: int) -> None:
        self.uses[key] += 1
        self.priority[key] = priority

    def came(self, key: bytes) -> None:
        """Note a new chunk; one that left counts as used before, and ARC learns from it."""
        for here, other, sign in ((self.once, self.often, 1), (self.often, self.once, -1)):
            if key in here:
                step = max(len(other) // len(here), 1)
                self.target = sorted((0, self.target + sign * step, self.num_chunks))[1]
                del here[key]
                self.uses[key] = 1
                return

    def went(self, key: bytes, *, is_evicted: bool) -> None:
        left = self.once if self.uses.pop(key, 0) <= 1 else self.often
        self.priority.pop(key, None)
        if is_evicted and self.order == "arc":
            left[key] = None
            while len(left) > self.num_chunks:
                del left[next(iter(left))]

    def due(self, number: int, room: Sequence[bytes], here: Collection[bytes]) -> list[bytes]:
        """Return the first to leave of `room`, the least recently used first; `here`: all keys."""
        if self.order == "lfu":
            return sorted(room, key=lambda key: self.uses[key])[:number]
        if self.order == "priority":
            return sorted(room, key=lambda key: self.priority.get(key, 0))[:number]
        if self.order != "arc":
            return list(room[:number])
        single = [key for key in room if self.uses[key] <= 1]
        several = [key for key in room if self.uses[key] > 1]
        num_single = sum(self.uses[key] <= 1 for key in here)
        found: list[bytes] = []
        while len(found) < number and (single or several):
            if single and (num_single > self.target or not several):
                found.append(single.pop(0))
                num_single -= 1
            else:
                found.append(several.pop(0))
        return found


def letters(*keys: bytes) -> str:
    """Return keys as text."""
    return "[" + " ".join(key.decode("latin-1") for key in keys) + "]"
