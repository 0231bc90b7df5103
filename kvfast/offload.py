"""A first tier of chunks (KV-TIER-9 …): chunks by key, idle ones in a heap by their last use.

A heap entry counts while its chunk is idle and was not used since: chunks are pushed when they
become idle or are used, and entries that no longer count are dropped when they come up.
"""

from __future__ import annotations

import heapq
from collections.abc import Collection, Iterable, Sequence

from kvspec._offload_checks import check_keys, check_made, check_name, check_number
from kvspec.errors import InvalidArgumentError
from kvspec.offload import (
    Found,
    OffloadConfig,
    OffloadCounts,
    OffloadEvent,
    PreparedStore,
    TierTransfer,
)


class _Chunk:
    """`writer`: the request whose store it is, 0 for a promotion, None once ready.

    `pins`: copies that read it. `awaited`: requests that were told of it and wait for an answer.
    """

    __slots__ = ("awaited", "key", "last_use", "pins", "place", "writer")

    def __init__(self, key: bytes, place: int, writer: str | int) -> None:
        self.key, self.place = key, place
        self.writer: str | int | None = writer
        self.last_use = self.pins = self.awaited = 0


class _Asking:
    """A request: chunks that await its answer, copies under way, and how its step went."""

    __slots__ = ("awaits", "is_late", "loads", "num_stores")

    def __init__(self) -> None:
        self.awaits: set[_Chunk] = set()
        self.loads: dict[bytes, int] = {}
        self.num_stores = 0
        self.is_late = False


class FastOffload:
    """See `kvspec.offload.OffloadManager`."""

    def __init__(self, config: OffloadConfig) -> None:
        check_made(config)
        self._num_chunks, self._lower = config.num_chunks, config.lower
        self._requests: dict[str, _Asking] = {}
        self._ended: dict[str, _Asking] = {}
        self._clock = self._next_number = 0
        self._clear()

    def _clear(self) -> None:
        self._chunks: dict[bytes, _Chunk] = {}
        self._free = list(range(self._num_chunks))
        self._idle: list[tuple[int, bytes]] = []
        self._num_pinned = self._num_pending = 0
        self._asked: set[str] = set()
        self._promoted: dict[tuple[int, str], list[_Chunk]] = {}
        self._stored: list[tuple[int, list[_Chunk]]] = []
        self._moving: dict[int, tuple[bool, list[_Chunk]]] = {}
        self._events: list[OffloadEvent] = []

    def new_request(self, request_id: str) -> None:
        check_name(request_id)
        if request_id in self._requests:
            raise InvalidArgumentError("request_id", request_id, "a new one")
        ended = self._ended.pop(request_id, None)
        self._requests[request_id] = _Asking() if ended is None else ended

    def finish_request(self, request_id: str) -> None:
        """Keep of it only the copies that are still to be completed."""
        request = self._request(request_id)
        self._forget(request)
        request.is_late = False
        self._asked.discard(request_id)
        del self._requests[request_id]
        if request.loads or request.num_stores:
            self._ended[request_id] = request

    def lookup(self, key: bytes, request_id: str) -> Found:
        """Look in the first tier, then in each lower one (KV-TIER-9, KV-TIER-20)."""
        (key,) = check_keys((key,))
        request = self._request(request_id)
        chunk = self._chunks.get(key)
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

    def _promote(self, key: bytes, request_id: str) -> tuple[Found, _Chunk | None]:
        result = Found.MISS
        for tier, lower in enumerate(self._lower):
            below = lower.lookup(key)
            if below == Found.HIT:
                made = self._place((key,), (), 0)
                if made is None:
                    return Found.MISS, None
                (chunk,) = made[0]
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
            chunk = self._chunks.get(key)
            if chunk is None or chunk.writer is not None:
                raise InvalidArgumentError("keys", key, "ready")
            chunks.append(chunk)
        for chunk in chunks:
            self._pin(chunk)
            request.loads[chunk.key] = request.loads.get(chunk.key, 0) + 1
        self._use(chunks)
        self._forget(request)
        return tuple([chunk.place for chunk in chunks])

    def complete_load(self, keys: Sequence[bytes], request_id: str) -> None:
        """Unpin (KV-TIER-11)."""
        keys, loads = check_keys(keys), self._request(request_id, or_ended=True).loads
        left = {key: loads.get(key, 0) for key in keys}
        for key in keys:
            left[key] -= 1
            if left[key] < 0:
                raise InvalidArgumentError("keys", key, "loads of this request that were prepared")
        for key in keys:
            self._unpin(self._chunks[key])
        for key, number in left.items():
            if number:
                loads[key] = number
            else:
                loads.pop(key, None)
        self._release(request_id)

    def prepare_store(self, keys: Sequence[bytes], request_id: str) -> PreparedStore | None:
        """Give the missing keys places (KV-TIER-12, KV-TIER-13)."""
        keys = check_keys(keys)
        request = self._request(request_id)
        missing = [key for key in dict.fromkeys(keys) if key not in self._chunks]
        made = self._place(missing, set(keys), request_id)
        if made is None:
            return None
        chunks, evicted = made
        request.num_stores += len(chunks)
        self._use([self._chunks[key] for key in keys])
        return PreparedStore(tuple(missing), tuple([each.place for each in chunks]), evicted)

    def complete_store(
        self, keys: Sequence[bytes], request_id: str, *, success: bool = True
    ) -> None:
        """Make them ready, and send them on to every lower tier; or drop them (KV-TIER-14)."""
        keys = check_keys(keys)
        request = self._request(request_id, or_ended=True)
        chunks = [chunk for chunk in map(self._chunks.get, keys) if chunk is not None]
        is_so = len(set(chunks)) == len(keys) and all(c.writer == request_id for c in chunks)
        if not is_so:
            raise InvalidArgumentError("keys", keys, "stores of this request that are under way")
        request.num_stores -= len(chunks)
        self._release(request_id)
        if not success:
            self._drop(chunks)
            return
        self._become_ready(chunks)
        for tier in range(len(self._lower) if keys else 0):
            for chunk in chunks:
                self._pin(chunk)
            self._stored.append((tier, chunks))

    def touch(self, keys: Sequence[bytes], request_id: str) -> None:
        """Make those that are here the most recently used (KV-TIER-16)."""
        self._request(request_id)
        self._use([self._chunks[key] for key in check_keys(keys) if key in self._chunks])

    def end_step(self) -> tuple[TierTransfer, ...]:
        """Begin the promotions of this step, then what was stored since the last (KV-TIER-19)."""
        began = []
        for (tier, _), chunks in self._promoted.items():
            began.append(self._begin(tier, chunks, is_promotion=True))
        for tier, chunks in self._stored:
            began.append(self._begin(tier, chunks, is_promotion=False))
        self._promoted, self._stored = {}, []
        for request_id in self._asked:
            request = self._requests.get(request_id)
            if request is not None:
                if not request.is_late:
                    self._forget(request)
                request.is_late = False
        self._asked.clear()
        return tuple(began)

    def _begin(self, tier: int, chunks: list[_Chunk], *, is_promotion: bool) -> TierTransfer:
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
        idle = len(self._chunks) - self._num_pinned - self._num_pending
        return OffloadCounts(len(self._free), idle, self._num_pinned, self._num_pending)

    # Chunks and their uses.

    def _request(self, request_id: str, *, or_ended: bool = False) -> _Asking:
        check_name(request_id)
        found = self._requests.get(request_id)
        if found is None and or_ended:
            found = self._ended.get(request_id)
        if found is None:
            raise InvalidArgumentError("request_id", request_id, "one that has begun")
        return found

    def _release(self, request_id: str) -> None:
        """Drop an ended request with its last copy."""
        ended = self._ended.get(request_id)
        if ended is not None and not ended.loads and not ended.num_stores:
            del self._ended[request_id]

    def _forget(self, request: _Asking) -> None:
        """Let the chunks that it was told of be evicted again."""
        for chunk in request.awaits:
            chunk.awaited -= 1
            self._push(chunk)
        request.awaits.clear()

    def _place(
        self, keys: Sequence[bytes], kept: Collection[bytes], writer: str | int
    ) -> tuple[list[_Chunk], tuple[bytes, ...]] | None:
        """Make pending chunks, evicting as many as there is no free place for, or none."""
        leaving = self._leaving(max(0, len(keys) - len(self._free)), kept)
        if leaving is None:
            return None
        num_free = len(keys) - len(leaving)
        places = [heapq.heappop(self._free) for _ in range(num_free)]
        places += [chunk.place for chunk in leaving]
        evicted = tuple([chunk.key for chunk in leaving])
        for key in evicted:
            del self._chunks[key]
        if evicted:
            self._events.append(OffloadEvent(evicted, is_removed=True))
        made = [_Chunk(key, place, writer) for key, place in zip(keys, places, strict=True)]
        for chunk in made:
            self._clock += 1
            chunk.last_use = self._clock
            self._chunks[chunk.key] = chunk
        self._num_pending += len(made)
        return made, evicted

    def _leaving(self, number: int, kept: Collection[bytes]) -> list[_Chunk] | None:
        """Take so many idle chunks off the heap, the least recently used first; or none."""
        found: list[_Chunk] = []
        passed: list[tuple[int, bytes]] = []
        while len(found) < number and self._idle:
            entry = heapq.heappop(self._idle)
            chunk = self._chunks.get(entry[1])
            if chunk is None or chunk.last_use != entry[0] or not _may_leave(chunk):
                continue
            if chunk in found[-1:]:  # pushed twice with one use
                continue
            if chunk.key in kept:
                passed.append(entry)
            else:
                found.append(chunk)
        is_enough = len(found) == number
        for entry in passed + ([] if is_enough else [(c.last_use, c.key) for c in found]):
            heapq.heappush(self._idle, entry)
        return found if is_enough else None

    def _push(self, chunk: _Chunk) -> None:
        if _may_leave(chunk):
            heapq.heappush(self._idle, (chunk.last_use, chunk.key))
            if len(self._idle) > 64 + 2 * len(self._chunks):
                self._idle = [(c.last_use, c.key) for c in self._chunks.values() if _may_leave(c)]
                heapq.heapify(self._idle)

    def _use(self, chunks: Sequence[_Chunk]) -> None:
        for chunk in reversed(chunks):
            self._clock += 1
            chunk.last_use = self._clock
            self._push(chunk)

    def _pin(self, chunk: _Chunk) -> None:
        self._num_pinned += not chunk.pins
        chunk.pins += 1

    def _unpin(self, chunk: _Chunk) -> None:
        chunk.pins -= 1
        if not chunk.pins:
            self._num_pinned -= 1
            self._push(chunk)

    def _become_ready(self, chunks: Iterable[_Chunk]) -> None:
        keys = []
        for chunk in chunks:
            chunk.writer = None
            self._num_pending -= 1
            keys.append(chunk.key)
            self._push(chunk)
        if keys:
            self._events.append(OffloadEvent(tuple(keys), is_removed=False))

    def _drop(self, chunks: Iterable[_Chunk]) -> None:
        for chunk in chunks:
            del self._chunks[chunk.key]
            self._num_pending -= 1
            heapq.heappush(self._free, chunk.place)


def _may_leave(chunk: _Chunk) -> bool:
    return chunk.writer is None and not chunk.pins and not chunk.awaited
