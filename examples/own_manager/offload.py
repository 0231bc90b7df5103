"""A first tier of chunks with nothing behind it: `kvspec check --tier offload:implementation`.

`held`: the place of each key, the least recently used first. `writers`: the request that stores a
pending key. `loads`: a pair (request, key) for each load under way.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

from kvspec.errors import InvalidArgumentError
from kvspec.offload import (
    Found,
    OffloadCapabilities,
    OffloadConfig,
    OffloadCounts,
    OffloadEvent,
    PreparedStore,
    TierTransfer,
)


class MyTier:
    def __init__(self, config: OffloadConfig) -> None:
        require(config.num_chunks >= 0, "num_chunks", config.num_chunks)
        require(config.order == "lru", "order", config.order)
        self.free = list(range(config.num_chunks))
        self.held: dict[bytes, int] = {}
        self.writers: dict[bytes, str] = {}
        self.loads: list[tuple[str, bytes]] = []
        self.requests: set[str] = set()
        self.events: list[OffloadEvent] = []

    def is_ready(self, key: bytes) -> bool:
        return key in self.held and key not in self.writers

    def is_read(self, key: bytes) -> bool:
        return any(key == read for _, read in self.loads)

    def new_request(self, request_id: str) -> None:
        require(request_id not in self.requests, "request_id", request_id)
        self.requests.add(request_id)

    def finish_request(self, request_id: str) -> None:
        self.requests.discard(request_id)

    def lookup(self, key: bytes, request_id: str) -> Found:
        require(isinstance(key, bytes), "keys", key)
        if key in self.writers:
            return Found.PENDING
        return Found.HIT if key in self.held else Found.MISS

    def touch(self, keys: Sequence[bytes], request_id: str) -> None:
        for key in reversed([key for key in keys if key in self.held]):
            self.held[key] = self.held.pop(key)  # a dict keeps the order of its keys

    def prepare_load(self, keys: Sequence[bytes], request_id: str) -> tuple[int, ...]:
        require(all(map(self.is_ready, keys)), "keys", keys)
        self.loads += [(request_id, key) for key in keys]
        self.touch(keys, request_id)
        return tuple(self.held[key] for key in keys)

    def complete_load(self, keys: Sequence[bytes], request_id: str) -> None:
        left = list(self.loads)
        for key in keys:
            require((request_id, key) in left, "keys", key)
            left.remove((request_id, key))
        self.loads = left

    def prepare_store(self, keys: Sequence[bytes], request_id: str) -> PreparedStore | None:
        require(all(isinstance(key, bytes) for key in keys), "keys", keys)
        new = [key for key in dict.fromkeys(keys) if key not in self.held]
        may_leave = [k for k in self.held if self.is_ready(k) and not self.is_read(k)]
        may_leave = [key for key in may_leave if key not in keys]
        num_missing = max(0, len(new) - len(self.free))
        if num_missing > len(may_leave):
            return None
        evicted = may_leave[:num_missing]
        places = self.free[: len(new)] + [self.held.pop(key) for key in evicted]
        self.free = self.free[len(new) :]
        self.held |= dict(zip(new, places, strict=True))
        self.writers |= dict.fromkeys(new, request_id)
        self.touch(keys, request_id)
        if evicted:
            self.events.append(OffloadEvent(tuple(evicted), is_removed=True))
        return PreparedStore(tuple(new), tuple(places), tuple(evicted))

    def complete_store(
        self, keys: Sequence[bytes], request_id: str, *, success: bool = True
    ) -> None:
        is_mine = all(self.writers.get(key) == request_id for key in keys)
        require(is_mine and len(set(keys)) == len(keys), "keys", keys)
        for key in keys:
            del self.writers[key]
        if success:
            self.events.append(OffloadEvent(tuple(keys), is_removed=False))
        else:
            self.free = sorted(self.free + [self.held.pop(key) for key in keys])

    def end_step(self) -> tuple[TierTransfer, ...]:
        return ()  # nothing is behind it

    def finish_transfer(self, number: int, failed: Collection[bytes] = ()) -> None:
        require(False, "number", number)

    def reset(self) -> None:
        require(not self.writers and not self.loads, "chunks", len(self.held))
        self.free = sorted([*self.free, *self.held.values()])
        self.held = {}

    def take_events(self) -> tuple[OffloadEvent, ...]:
        events, self.events = self.events, []
        return tuple(events)

    def counts(self) -> OffloadCounts:
        num_read = sum(map(self.is_read, self.held))
        num_idle = len(self.held) - num_read - len(self.writers)
        return OffloadCounts(len(self.free), num_idle, num_read, len(self.writers))


class MyImplementation:
    offload_capabilities = OffloadCapabilities(has_lower_tiers=False, has_lowest_places=True)

    def make_offload(self, config: OffloadConfig) -> MyTier:
        return MyTier(config)


def require(is_legal: bool, field: str, value: object) -> None:
    if not is_legal:
        raise InvalidArgumentError(field, value, "as KV-TIER-9 … 24 say")


def implementation() -> MyImplementation:
    return MyImplementation()
