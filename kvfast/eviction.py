"""The idle chunks of a first tier, in the order in which they give way (KV-TIER-16, KV-TIER-29 …).

Heaps by rank, with entries that may be out of date: an entry counts while its chunk has the rank of
the entry and may leave. Chunks are pushed when they become idle or are used.
"""

from __future__ import annotations

import heapq
from collections import OrderedDict
from collections.abc import Collection
from typing import TypeAlias

Rank: TypeAlias = tuple[int, int]
Entry: TypeAlias = tuple[Rank, bytes]
Kind: TypeAlias = tuple[str | None, bool, bool]
"""A tenant with a quota, whether used often (ARC), whether dirty."""


class Chunk:
    """`writer`: the request whose store it is, 0 for a promotion, None once ready.

    `pins`: copies that read it. `awaited`: requests that were told of it and wait for an answer.
    `rank`: what is evicted first has the lowest. `last_step`: that of the last use.
    """

    __slots__ = (
        *("awaited", "is_dirty", "key", "last_step", "pins", "place"),
        *("rank", "tenant", "uses", "writer"),
    )

    def __init__(
        self, key: bytes, place: int, writer: str | int | None, tenant: str, uses: int
    ) -> None:
        self.key, self.place, self.tenant, self.uses = key, place, tenant, uses
        self.writer = writer
        self.pins = self.awaited = self.last_step = 0
        self.rank: Rank = (0, 0)
        self.is_dirty = False


class Asking:
    """A request: chunks that await its answer, copies under way, and how its step went."""

    __slots__ = ("awaits", "is_late", "loads", "num_stores", "priority", "tenant")

    def __init__(self) -> None:
        self.tenant, self.priority = "", 0
        self.awaits: set[Chunk] = set()
        self.loads: dict[bytes, int] = {}
        self.num_stores = 0
        self.is_late = False


def may_leave(chunk: Chunk) -> bool:
    return chunk.writer is None and not chunk.pins and not chunk.awaited


class Idle:
    """Heaps of the chunks that may leave, by tenant with a quota, list of ARC, and dirtiness.

    `chunks`: all of them, the least recently used first.
    """

    def __init__(
        self, order: str, chunks: OrderedDict[bytes, Chunk], capacity: int, tenants: frozenset[str]
    ) -> None:
        self._order, self._chunks, self._capacity = order, chunks, capacity
        self._tenants = tenants
        self._heaps: dict[Kind, list[Entry]] = {}
        self._num_pushed = self._clock = 0
        self.num_once = self._target = 0
        self._left: tuple[OrderedDict[bytes, None], ...] = (OrderedDict(), OrderedDict())

    def use(self, chunk: Chunk, priority: int) -> None:
        """Note a use, by a request of this priority."""
        self._clock += 1
        self.num_once += (chunk.uses == 0) - (chunk.uses == 1)
        chunk.uses += 1
        order = self._order
        first = chunk.uses if order == "lfu" else priority if order == "priority" else 0
        chunk.rank = (first, self._clock)
        self._chunks.move_to_end(chunk.key)
        self.push(chunk)

    def push(self, chunk: Chunk) -> None:
        if not may_leave(chunk):
            return
        if self._num_pushed > 64 + 2 * len(self._chunks):
            self._heaps, self._num_pushed = {}, 0
            for each in filter(may_leave, self._chunks.values()):
                self._push(each)
        self._push(chunk)

    def _push(self, chunk: Chunk) -> None:
        heap = self._heaps.setdefault(self._kind(chunk), [])
        heapq.heappush(heap, (chunk.rank, chunk.key))
        self._num_pushed += 1

    def _kind(self, chunk: Chunk) -> Kind:
        tenant = chunk.tenant if chunk.tenant in self._tenants else None
        return tenant, self._order == "arc" and chunk.uses > 1, chunk.is_dirty

    def take(
        self,
        number: int,
        kept: Collection[bytes],
        tenant: str | None = None,
        *,
        dirty: bool = False,
    ) -> list[Chunk]:
        """Take up to so many off the heaps, the first to give way first; none of those kept.

        `tenant`: whose chunks; None for all. What is not evicted then must be pushed again.
        """
        found: list[Chunk] = []
        passed: list[Chunk] = []
        once = self.num_once
        while len(found) < number:
            is_often = self._order == "arc" and once <= self._target
            chunk = self._pop(tenant, is_often, dirty) or self._pop(tenant, not is_often, dirty)
            if chunk is None:
                break
            if chunk.key in kept or chunk in found:
                passed.append(chunk)
            else:
                found.append(chunk)
                once -= chunk.uses == 1
        for chunk in passed:
            if chunk not in found:
                self._push(chunk)
        return found

    def _pop(self, tenant: str | None, often: bool, dirty: bool) -> Chunk | None:
        best: tuple[Entry, list[Entry]] | None = None
        for kind, heap in self._heaps.items():
            if kind[1:] == (often, dirty) and (tenant is None or kind[0] == tenant):
                while heap and not self._is_current(heap[0], kind):
                    heapq.heappop(heap)
                    self._num_pushed -= 1
                if heap and (best is None or heap[0] < best[0]):
                    best = heap[0], heap
        if best is None:
            return None
        self._num_pushed -= 1
        return self._chunks[heapq.heappop(best[1])[1]]

    def _is_current(self, entry: Entry, kind: Kind) -> bool:
        chunk = self._chunks.get(entry[1])
        is_same = chunk is not None and chunk.rank == entry[0] and self._kind(chunk) == kind
        return is_same and chunk is not None and may_leave(chunk)

    # What ARC has learnt.

    def arrives(self, key: bytes) -> int:
        """Return 1 if ARC remembers the key, and adapt; else 0."""
        for which, left in enumerate(self._left if self._order == "arc" else ()):
            if key in left:
                step = max(1, len(self._left[1 - which]) // len(left))
                target = self._target - step if which else self._target + step
                self._target = max(0, min(self._capacity, target))
                del left[key]
                return 1
        return 0

    def leaves(self, chunk: Chunk, *, is_evicted: bool) -> None:
        """Count a chunk that is gone; ARC remembers it if it was evicted."""
        self.num_once -= chunk.uses == 1
        if is_evicted and self._order == "arc":
            left = self._left[chunk.uses > 1]
            left[chunk.key] = None
            if len(left) > self._capacity:
                left.popitem(last=False)
