"""A first tier of chunks (KV-TIER-9 …): chunks by key, and in lists by their rank."""

from __future__ import annotations

import heapq
from collections import Counter, OrderedDict
from collections.abc import Collection, Iterable, Sequence

from kvfast.eviction import Asking, Chunk, Ranks, may_leave
from kvspec.checks.offload import check_begun, check_keys, check_made, check_name, check_number
from kvspec.errors import InvalidArgumentError
from kvspec.offload import (
    Found,
    OffloadConfig,
    OffloadCounts,
    OffloadEvent,
    PreparedStore,
    TierTransfer,
)

MOST_OFFERS = 64_000
"""Keys whose offers are counted."""


class FastOffload:
    """See `kvspec.offload.OffloadManager`."""

    def __init__(self, config: OffloadConfig) -> None:
        check_made(config)
        self._num_chunks, self._lower, self._order = config.num_chunks, config.lower, config.order
        self._store_after, self._quotas = config.store_after, dict(config.quotas)
        self._write_back = config.write_back and bool(config.lower)
        self._offers: OrderedDict[bytes, int] = OrderedDict()
        self._ttl_steps = config.ttl_steps
        self._requests: dict[str, Asking] = {}
        self._next_number = self._step = 0
        self._clear()

    def _clear(self) -> None:
        self.chunks: OrderedDict[bytes, Chunk] = OrderedDict()
        self._free = list(range(self._num_chunks))
        self._ranks = Ranks(self._order, self._num_chunks, self._quotas)
        self._owned: Counter[str] = Counter()
        self._num_pinned = self._num_pending = 0
        self._asked: set[str] = set()
        self._promoted: dict[tuple[int, str], list[Chunk]] = {}
        self._stored: list[tuple[int, list[Chunk]]] = []
        self._short: dict[str | None, int] = {}
        self._moving: dict[int, tuple[bool, list[Chunk]]] = {}
        self._events: list[OffloadEvent] = []

    def new_request(self, request_id: str, *, tenant: str = "", priority: int = 0) -> None:
        check_begun(request_id, tenant, priority)
        request = self._requests.setdefault(request_id, Asking())
        if not request.is_ended:
            raise InvalidArgumentError("request_id", request_id, "a new one")
        request.is_ended, request.tenant, request.priority = False, tenant, priority

    def finish_request(self, request_id: str) -> None:
        """Keep of it only the copies that are still to be completed."""
        request = self._request(request_id)
        self._forget(request)
        request.is_late, request.is_ended = False, True
        self._asked.discard(request_id)
        self._release(request_id, request)

    def lookup(self, key: bytes, request_id: str) -> Found:
        """Look in the first tier, then in each lower one (KV-TIER-9, KV-TIER-20)."""
        (key,) = check_keys((key,))
        request = self._request(request_id)
        chunk = self.chunks.get(key)
        found = Found.MISS
        if chunk is None and self._lower:
            found, chunk = self._promote(key, request_id)
        elif chunk is not None:
            found = Found.HIT if chunk.writer is None else Found.PENDING
        self._asked.add(request_id)
        if found in (Found.PENDING, Found.RETRY):
            request.is_late = True
        if chunk is not None and self._lower and chunk not in request.awaits:
            request.awaits.add(chunk)
            chunk.awaited += 1
        return found

    def _promote(self, key: bytes, request_id: str) -> tuple[Found, Chunk | None]:
        result = Found.MISS
        for tier, lower in enumerate(self._lower):
            below = lower.lookup(key)
            if below == Found.HIT:
                made = self._place((key,), (), request_id, 0)
                if made is None:
                    return Found.MISS, None
                (chunk,) = made[0]
                self._use((chunk,), self._requests[request_id])
                self._promoted.setdefault((tier, request_id), []).append(chunk)
                return Found.PENDING, chunk
            if below == Found.RETRY:
                result = Found.RETRY
        return result, None

    def prepare_load(self, keys: Sequence[bytes], request_id: str) -> tuple[int, ...]:
        """Pin each as often as it is named (KV-TIER-10, KV-TIER-11)."""
        keys, request = check_keys(keys), self._request(request_id)
        chunks = []
        for key in keys:
            chunk = self.chunks.get(key)
            if chunk is None or chunk.writer is not None:
                raise InvalidArgumentError("keys", key, "ready")
            chunks.append(chunk)
        for chunk in chunks:
            self._pin(chunk)
        request.loads.update(keys)
        self._use(chunks, request)
        self._forget(request)
        return tuple([chunk.place for chunk in chunks])

    def complete_load(self, keys: Sequence[bytes], request_id: str) -> None:
        """Unpin (KV-TIER-11)."""
        keys, request = check_keys(keys), self._request(request_id, or_ended=True)
        ending = Counter(keys)
        if not ending <= request.loads:
            raise InvalidArgumentError("keys", keys, "loads of this request that were prepared")
        request.loads -= ending
        for key in keys:
            self._unpin(self.chunks[key])
        self._release(request_id, request)

    def prepare_store(self, keys: Sequence[bytes], request_id: str) -> PreparedStore | None:
        """Give the missing keys places (KV-TIER-12, KV-TIER-13)."""
        keys = check_keys(keys)
        request = self._request(request_id)
        missing = [key for key in dict.fromkeys(keys) if key not in self.chunks]
        if self._store_after > 1:
            self._offer(set(keys))
            missing = [key for key in missing if self._offers[key] >= self._store_after]
        made = self._place(missing, set(keys), request_id, request_id)
        if made is None:
            return None
        chunks, evicted = made
        request.num_stores += len(chunks)
        self._use([self.chunks[key] for key in keys if key in self.chunks], request)
        return PreparedStore(tuple(missing), tuple([each.place for each in chunks]), evicted)

    def _offer(self, keys: set[bytes]) -> None:
        """Count the keys; those that were not offered for longest may be forgotten (KV-TIER-25)."""
        for key in keys:
            self._offers[key] = self._offers.pop(key, 0) + 1
        while len(self._offers) > max(MOST_OFFERS, len(keys)):
            self._offers.popitem(last=False)

    def complete_store(
        self, keys: Sequence[bytes], request_id: str, *, success: bool = True
    ) -> None:
        """Make them ready, and send them on to every lower tier; or drop them (KV-TIER-14)."""
        keys = check_keys(keys)
        request = self._request(request_id, or_ended=True)
        chunks = [chunk for chunk in map(self.chunks.get, keys) if chunk is not None]
        is_so = len(set(chunks)) == len(keys) and all(c.writer == request_id for c in chunks)
        if not is_so:
            raise InvalidArgumentError("keys", keys, "stores of this request that are under way")
        request.num_stores -= len(chunks)
        self._release(request_id, request)
        if not success:
            self._drop(chunks)
            return
        for chunk in chunks:
            chunk.is_dirty = self._write_back
        self._become_ready(chunks)
        if not self._write_back:
            self._copy_down(chunks)

    def touch(self, keys: Sequence[bytes], request_id: str) -> None:
        """Make those that are here the most recently used (KV-TIER-16)."""
        request = self._request(request_id)
        self._use([self.chunks[key] for key in check_keys(keys) if key in self.chunks], request)

    def end_step(self) -> tuple[TierTransfer, ...]:
        """Begin the promotions of this step, then what was stored since the last (KV-TIER-19)."""
        for request_id in self._asked:
            request = self._requests[request_id]
            if not request.is_late:
                self._forget(request)
            request.is_late = False
        self._asked.clear()
        self._make_clean()
        began = []
        for (tier, _), chunks in self._promoted.items():
            began.append(self._begin(tier, chunks, is_promotion=True))
        for tier, chunks in self._stored:
            began.append(self._begin(tier, chunks, is_promotion=False))
        self._promoted, self._stored = {}, []
        self._expire()
        return tuple(began)

    def _expire(self) -> None:
        """Evict what was not used for so many whole steps (KV-TIER-28)."""
        old = []
        for chunk in self.chunks.values() if self._ttl_steps else ():
            if self._step - chunk.last_step < self._ttl_steps:
                break
            if may_leave(chunk) and not chunk.is_dirty:
                old.append(chunk)
        self._evict(old)
        self._step += 1

    def _begin(self, tier: int, chunks: list[Chunk], *, is_promotion: bool) -> TierTransfer:
        number, self._next_number = self._next_number, self._next_number + 1
        self._moving[number] = (is_promotion, chunks)
        keys, places = [each.key for each in chunks], [each.place for each in chunks]
        return TierTransfer(number, tier, is_promotion, tuple(keys), tuple(places))

    def finish_transfer(self, number: int, failed: Collection[bytes] = ()) -> None:
        """Make what was promoted ready, or drop it; unpin what was copied down (KV-TIER-21)."""
        check_number(number)
        lost = set(check_keys(list(failed)))
        if number not in self._moving:
            raise InvalidArgumentError("number", number, "a transfer under way")
        is_promotion, chunks = self._moving[number]
        if not lost <= {each.key for each in chunks}:
            raise InvalidArgumentError("failed", list(failed), "keys of the transfer")
        del self._moving[number]
        if is_promotion:
            self._drop([each for each in chunks if each.key in lost])
            self._become_ready([each for each in chunks if each.key not in lost])
        else:
            for chunk in chunks:
                self._unpin(chunk)

    def flush(self) -> None:
        """Copy all dirty chunks down at the end of the step (KV-TIER-32)."""
        dirty = [chunk for chunk in self.chunks.values() if chunk.is_dirty]
        for chunk in dirty:
            chunk.is_dirty = False
        self._copy_down(dirty)

    def forget(self, keys: Sequence[bytes]) -> None:
        """Evict what is here of these, unless one is being copied (KV-TIER-33)."""
        listed = dict.fromkeys(check_keys(keys))
        chunks = [self.chunks[key] for key in listed if key in self.chunks]
        if any(chunk.pins or chunk.writer is not None for chunk in chunks):
            raise InvalidArgumentError("keys", list(keys), "not being copied")
        self._evict(chunks)

    def reset(self) -> None:
        """Drop all chunks, unless one is being copied (KV-TIER-18)."""
        if self._num_pinned or self._num_pending:
            raise InvalidArgumentError("chunks", "some are being copied", "not under way")
        for request in self._requests.values():
            request.awaits.clear()
        self._clear()

    def take_events(self) -> tuple[OffloadEvent, ...]:
        """Return what became ready and what left, in order (KV-TIER-17)."""
        events, self._events = self._events, []
        return tuple(events)

    def counts(self) -> OffloadCounts:
        """Count the places by their use (KV-TIER-15)."""
        idle = len(self.chunks) - self._num_pinned - self._num_pending
        tenants = tuple((name, self._owned[name]) for name in sorted(self._quotas))
        return OffloadCounts(len(self._free), idle, self._num_pinned, self._num_pending, tenants)

    # Chunks and their uses.

    def _request(self, request_id: str, *, or_ended: bool = False) -> Asking:
        check_name(request_id)
        found = self._requests.get(request_id)
        if found is None or (found.is_ended and not or_ended):
            raise InvalidArgumentError("request_id", request_id, "one that has begun")
        return found

    def _release(self, request_id: str, request: Asking) -> None:
        """Drop an ended request with its last copy."""
        if request.is_ended and not request.loads and not request.num_stores:
            del self._requests[request_id]

    def _forget(self, request: Asking) -> None:
        """Let the chunks that it was told of be evicted again."""
        for chunk in request.awaits:
            chunk.awaited -= 1
        request.awaits.clear()

    def _place(
        self, keys: Sequence[bytes], kept: Collection[bytes], request_id: str, writer: str | int
    ) -> tuple[list[Chunk], tuple[bytes, ...]] | None:
        """Make pending chunks, evicting as many as there is no free place for, or none."""
        tenant = self._requests[request_id].tenant
        leaving = self._leaving(len(keys), kept, tenant)
        if leaving is None:
            return None
        uses = [self._ranks.arrives(key) for key in keys]
        if any(uses):  # ARC has learnt, and others may go first
            leaving = self._leaving(len(keys), kept, tenant) or []
        places = [heapq.heappop(self._free) for _ in range(min(len(keys), len(self._free)))]
        for chunk in leaving:
            if len(places) < len(keys):
                places.append(chunk.place)
            else:
                heapq.heappush(self._free, chunk.place)
        evicted = self._evict(leaving, frees=False)
        made = list(map(Chunk, keys, places, [writer] * len(keys), [tenant] * len(keys), uses))
        for chunk in made:
            self.chunks[chunk.key] = chunk
        self._owned[tenant] += len(made)
        self._num_pending += len(made)
        return made, evicted

    def _leaving(self, number: int, kept: Collection[bytes], tenant: str) -> list[Chunk] | None:
        """Return the chunks that give way to so many; None if there are too few."""
        over = 0
        if tenant in self._quotas:
            over = max(0, self._owned[tenant] + number - self._quotas[tenant])
        own = self._ranks.first(over, kept, tenant) if over else []
        more = max(0, number - len(self._free) - len(own))
        others = self._ranks.first(more, kept, None, own) if more else []
        if len(own) == over and len(others) == more:
            return own + others
        whose, short = (tenant, over - len(own)) if len(own) < over else (None, more - len(others))
        self._short[whose] = max(short, self._short.get(whose, 0))
        return None

    def _make_clean(self) -> None:
        """Copy dirty chunks down, so that they may leave later (KV-TIER-27)."""
        tenants = sorted(each for each in self._short if each is not None)
        for tenant in (*tenants, None) if self._write_back else ():
            chosen = self._ranks.first(self._short.get(tenant, 0), (), tenant, dirty=True)
            for chunk in chosen:
                chunk.is_dirty = False
            self._copy_down(chosen)
        self._short.clear()

    def _copy_down(self, chunks: list[Chunk]) -> None:
        for tier in range(len(self._lower) if chunks else 0):
            for chunk in chunks:
                self._pin(chunk)
            self._stored.append((tier, chunks))

    def _evict(self, chunks: Sequence[Chunk], *, frees: bool = True) -> tuple[bytes, ...]:
        """Forget them and, unless others are given these, their places."""
        self._leave(chunks, is_evicted=True, frees=frees)
        keys = tuple([chunk.key for chunk in chunks])
        if keys:
            self._events.append(OffloadEvent(keys, is_removed=True))
        return keys

    def _leave(self, chunks: Iterable[Chunk], *, is_evicted: bool, frees: bool = True) -> None:
        for chunk in chunks:
            del self.chunks[chunk.key]
            self._owned[chunk.tenant] -= 1
            self._ranks.leaves(chunk, is_evicted=is_evicted)
            if frees:
                heapq.heappush(self._free, chunk.place)

    def _use(self, chunks: Sequence[Chunk], request: Asking) -> None:
        for chunk in reversed(chunks):
            self._ranks.use(chunk, request.priority)
            self.chunks.move_to_end(chunk.key)
            chunk.last_step = self._step

    def _pin(self, chunk: Chunk) -> None:
        self._num_pinned += not chunk.pins
        chunk.pins += 1

    def _unpin(self, chunk: Chunk) -> None:
        chunk.pins -= 1
        if not chunk.pins:
            self._num_pinned -= 1

    def _become_ready(self, chunks: Iterable[Chunk]) -> None:
        keys = []
        for chunk in chunks:
            chunk.writer = None
            self._num_pending -= 1
            keys.append(chunk.key)
        if keys:
            self._events.append(OffloadEvent(tuple(keys), is_removed=False))

    def _drop(self, chunks: Sequence[Chunk]) -> None:
        self._leave(chunks, is_evicted=False)
        self._num_pending -= len(chunks)
