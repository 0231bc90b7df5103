"""The chunks of a first tier in the order in which they give way (KV-TIER-16, KV-TIER-29 …).

They are in lists, the least recently used first: one for each tenant with a quota, and for each
first key of the order. What may not leave now is passed over.
"""

from __future__ import annotations

import heapq
from collections import Counter, OrderedDict, deque
from collections.abc import Collection, Iterator, Sequence
from itertools import chain, islice
from typing import TypeAlias

Kind: TypeAlias = tuple[int, str | None]
"""What goes first (of LFU the uses, of priorities the priority, of ARC whether it was used often),
and a tenant with a quota."""


class Chunk:
    """`writer`: the request whose store it is, 0 for a promotion, None once ready.

    `pins`: copies that read it. `awaited`: requests that were told of it and wait for an answer.
    `last_use`: on the clock of `Ranks`. `last_step`: that of the last use.
    """

    __slots__ = (
        *("awaited", "is_dirty", "key", "kind", "last_step", "last_use"),
        *("pins", "place", "tenant", "uses", "writer"),
    )

    def __init__(
        self, key: bytes, place: int, writer: str | int | None, tenant: str, uses: int
    ) -> None:
        self.key, self.place, self.tenant, self.uses = key, place, tenant, uses
        self.writer = writer
        self.pins = self.awaited = self.last_step = self.last_use = 0
        self.kind: Kind | None = None
        self.is_dirty = False


class Asking:
    """A request: chunks that await its answer, copies under way, and how its step went."""

    __slots__ = ("awaits", "is_ended", "is_late", "loads", "num_stores", "priority", "tenant")

    def __init__(self) -> None:
        self.tenant, self.priority = "", 0
        self.awaits: set[Chunk] = set()
        self.loads: Counter[bytes] = Counter()
        self.num_stores = 0
        self.is_late, self.is_ended = False, True


def may_leave(chunk: Chunk) -> bool:
    return chunk.writer is None and not chunk.pins and not chunk.awaited


class Ranks:
    """All chunks in lists by `Kind`, and what ARC has learnt."""

    def __init__(self, order: str, capacity: int, tenants: Collection[str]) -> None:
        self._order, self._capacity, self._tenants = order, capacity, frozenset(tenants)
        self._lists: dict[Kind, OrderedDict[bytes, Chunk]] = {}
        self._clock = self._target = 0
        self._left: tuple[OrderedDict[bytes, None], ...] = (OrderedDict(), OrderedDict())

    def use(self, chunk: Chunk, priority: int) -> None:
        """Note a use, by a request of this priority."""
        self._clock += 1
        chunk.last_use = self._clock
        chunk.uses += 1
        order, first = self._order, 0
        if order != "lru":
            first = priority if order == "priority" else chunk.uses
            first = int(chunk.uses > 1) if order == "arc" else first
        kind = first, chunk.tenant if chunk.tenant in self._tenants else None
        if kind == chunk.kind:
            self._lists[kind].move_to_end(chunk.key)
            return
        self._take_out(chunk)
        chunk.kind = kind
        if kind not in self._lists:
            self._lists[kind] = OrderedDict()
        self._lists[kind][chunk.key] = chunk

    def _take_out(self, chunk: Chunk) -> None:
        if chunk.kind is not None:
            del self._lists[chunk.kind][chunk.key]
            if not self._lists[chunk.kind]:
                del self._lists[chunk.kind]

    def first(
        self,
        number: int,
        kept: Collection[bytes],
        tenant: str | None = None,
        gone: Sequence[Chunk] = (),
        *,
        dirty: bool = False,
    ) -> list[Chunk]:
        """Return up to so many that may leave, the first to give way first; none of those kept.

        `tenant`: whose chunks; None for all. `gone`: chunks that leave before them.
        """

        def ready(first: int) -> Iterator[Chunk]:
            for chunk in self._in_order(first, tenant):
                is_so = may_leave(chunk) and chunk.is_dirty == dirty
                if is_so and chunk.key not in kept and chunk not in gone:
                    yield chunk

        if self._order != "arc":
            every = sorted({first for first, _ in self._lists})
            return list(islice(chain.from_iterable(map(ready, every)), number))
        once, often = (deque(islice(ready(first), number)) for first in (0, 1))
        num_once = sum(len(each) for (first, _), each in self._lists.items() if not first)
        num_once -= sum(chunk.uses == 1 for chunk in gone)
        found: list[Chunk] = []
        while len(found) < number and (once or often):
            is_once = bool(once) and (num_once > self._target or not often)
            found.append(once.popleft() if is_once else often.popleft())
            num_once -= is_once
        return found

    def _in_order(self, first: int, tenant: str | None) -> Iterator[Chunk]:
        """Yield the chunks of a first key, the least recently used first."""
        whose = (None, *self._tenants) if tenant is None else (tenant,)
        lists = [
            self._lists[first, each].values() for each in whose if (first, each) in self._lists
        ]
        return heapq.merge(*lists, key=lambda chunk: chunk.last_use)

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
        """Take a chunk out that is gone; ARC remembers it if it was evicted."""
        self._take_out(chunk)
        if is_evicted and self._order == "arc":
            left = self._left[chunk.uses > 1]
            left[chunk.key] = None
            if len(left) > self._capacity:
                left.popitem(last=False)
