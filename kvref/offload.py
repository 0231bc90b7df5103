"""Chunks in front of lower tiers, exactly as KV-TIER-9 … say: lists, searched from end to end."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field, replace

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


@dataclass
class Chunk:
    """A chunk of the first tier; `storing`: the request that writes it, 0 for a promotion."""

    key: bytes
    place: int
    storing: str | int | None
    pins: int = 0


@dataclass
class Asking:
    """A request: what its look-ups found since it was last answered, and what it has begun."""

    found: list[bytes] = field(default_factory=list)
    is_finished: bool = False
    has_asked: bool = False
    must_wait: bool = False
    loads: Counter[bytes] = field(default_factory=Counter)


class ReferenceOffload:
    """`chunks`: the least recently used first. `begun`: promotions of this step, not yet moving."""

    def __init__(self, config: OffloadConfig) -> None:
        check_made(config)
        self.config = config
        self.requests: dict[str, Asking] = {}
        self.next_number = 0
        self.events: list[OffloadEvent] = []
        self.drop_all()

    def drop_all(self) -> None:
        self.chunks: list[Chunk] = []
        self.begun: list[tuple[int, str, Chunk]] = []
        self.stored: list[TierTransfer] = []
        self.moving: list[TierTransfer] = []

    def new_request(self, request_id: str) -> None:
        check_name(request_id)
        if request_id in self.requests and not self.requests[request_id].is_finished:
            raise InvalidArgumentError("request_id", request_id, "a new one")
        self.requests.setdefault(request_id, Asking()).is_finished = False

    def finish_request(self, request_id: str) -> None:
        """Forget what it looked up; its copies under way go on."""
        request = self._request(request_id)
        request.found = []
        request.is_finished, request.has_asked, request.must_wait = True, False, False

    def lookup(self, key: bytes, request_id: str) -> Found:
        """Look in the first tier, then in each lower one (KV-TIER-9, KV-TIER-20)."""
        (key,) = check_keys([key])
        request = self._request(request_id)
        found = self._looked_up(key, request_id)
        request.has_asked = True
        request.must_wait |= found in (Found.PENDING, Found.RETRY)
        if found in (Found.HIT, Found.PENDING):
            request.found.append(key)
        return found

    def _looked_up(self, key: bytes, request_id: str) -> Found:
        chunk = self._chunk(key)
        if chunk is not None:
            return Found.HIT if chunk.storing is None else Found.PENDING
        result = Found.MISS
        for tier, lower in enumerate(self.config.lower):
            below = lower.lookup(key)
            if below == Found.HIT:
                room = self._room(1, [key])
                if room is None:
                    return Found.MISS
                (place,), evicted = room
                self._evict(evicted)
                chunk = Chunk(key, place, storing=0)
                self.chunks.append(chunk)
                self.begun.append((tier, request_id, chunk))
                return Found.PENDING
            if below == Found.RETRY:
                result = Found.RETRY
        return result

    def prepare_load(self, keys: Sequence[bytes], request_id: str) -> tuple[int, ...]:
        """Pin each as often as it is named (KV-TIER-10, KV-TIER-11)."""
        keys, request = check_keys(keys), self._request(request_id)
        chunks = [self._chunk(key) for key in keys]
        for key, chunk in zip(keys, chunks, strict=True):
            if chunk is None or chunk.storing is not None:
                raise InvalidArgumentError("keys", key, "ready")
        places = []
        for chunk in chunks:
            if chunk is not None:
                chunk.pins += 1
                places.append(chunk.place)
        request.loads.update(keys)
        request.found = []
        self._use(keys)
        return tuple(places)

    def complete_load(self, keys: Sequence[bytes], request_id: str) -> None:
        """Unpin (KV-TIER-11)."""
        keys, request = check_keys(keys), self._request(request_id, or_finished=True)
        for key, number in Counter(keys).items():
            if request.loads[key] < number:
                raise InvalidArgumentError("keys", key, "loads of this request that were prepared")
        request.loads.subtract(keys)
        for key in keys:
            self._here(key).pins -= 1

    def prepare_store(self, keys: Sequence[bytes], request_id: str) -> PreparedStore | None:
        """Give the missing keys places (KV-TIER-12, KV-TIER-13)."""
        keys = check_keys(keys)
        self._request(request_id)
        missing: list[bytes] = []
        for key in keys:
            if self._chunk(key) is None and key not in missing:
                missing.append(key)
        room = self._room(len(missing), keys)
        if room is None:
            return None
        places, evicted = room
        self._evict(evicted)
        for key, place in zip(missing, places, strict=True):
            self.chunks.append(Chunk(key, place, storing=request_id))
        self._use(keys)
        return PreparedStore(tuple(missing), tuple(places), tuple(each.key for each in evicted))

    def complete_store(
        self, keys: Sequence[bytes], request_id: str, *, success: bool = True
    ) -> None:
        """Make them ready, and send them on to every lower tier; or drop them (KV-TIER-14)."""
        keys = check_keys(keys)
        self._request(request_id, or_finished=True)
        for number, key in enumerate(keys):
            chunk = self._chunk(key)
            if chunk is None or chunk.storing != request_id or key in keys[:number]:
                raise InvalidArgumentError("keys", key, "stores of this request that are under way")
        chunks = [self._here(key) for key in keys]
        if not success:
            self._drop(chunks)
            return
        self._become_ready(chunks)
        for tier in range(len(self.config.lower) if keys else 0):
            for chunk in chunks:
                chunk.pins += 1
            places = tuple(each.place for each in chunks)
            self.stored.append(TierTransfer(0, tier, False, keys, places))

    def touch(self, keys: Sequence[bytes], request_id: str) -> None:
        """Make those that are here the most recently used (KV-TIER-16)."""
        self._request(request_id)
        self._use(check_keys(keys))

    def end_step(self) -> tuple[TierTransfer, ...]:
        """Begin the promotions of this step, then what was stored since the last (KV-TIER-19)."""
        groups: dict[tuple[int, str], list[Chunk]] = {}
        for tier, request_id, chunk in self.begun:
            groups.setdefault((tier, request_id), []).append(chunk)
        began = []
        for (tier, _), chunks in groups.items():
            keys, places = tuple(each.key for each in chunks), tuple(each.place for each in chunks)
            began.append(TierTransfer(0, tier, True, keys, places))
        transfers = []
        for transfer in began + self.stored:
            transfers.append(replace(transfer, number=self.next_number))
            self.next_number += 1
        self.moving += transfers
        self.begun, self.stored = [], []
        for request in self.requests.values():
            if request.has_asked and not request.must_wait:
                request.found = []
            request.has_asked = request.must_wait = False
        return tuple(transfers)

    def finish_transfer(self, number: int, failed: Collection[bytes] = ()) -> None:
        """Make what was promoted ready, or drop it; unpin what was copied down (KV-TIER-21)."""
        check_number(number)
        failed = check_keys(list(failed))
        transfer = next((each for each in self.moving if each.number == number), None)
        if transfer is None:
            raise InvalidArgumentError("number", number, "a transfer under way")
        if not set(failed) <= set(transfer.keys):
            raise InvalidArgumentError("failed", list(failed), "keys of the transfer")
        self.moving.remove(transfer)
        chunks = [self._here(key) for key in transfer.keys]
        if not transfer.is_promotion:
            for chunk in chunks:
                chunk.pins -= 1
            return
        lost = [each for each in chunks if each.key in failed]
        self._drop(lost)
        self._become_ready([each for each in chunks if each not in lost])

    def reset(self) -> None:
        """Drop all chunks, unless one is being copied (KV-TIER-18)."""
        if any(each.pins or each.storing is not None for each in self.chunks):
            raise InvalidArgumentError("chunks", "some are being copied", "not under way")
        self.drop_all()
        self.events = []
        for request in self.requests.values():
            request.found = []

    def take_events(self) -> tuple[OffloadEvent, ...]:
        """Return what became ready and what left, in order (KV-TIER-17)."""
        events, self.events = self.events, []
        return tuple(events)

    def counts(self) -> OffloadCounts:
        """Count the places by their use (KV-TIER-15)."""
        pending = sum(each.storing is not None for each in self.chunks)
        pinned = sum(each.storing is None and each.pins > 0 for each in self.chunks)
        evictable = len(self.chunks) - pending - pinned
        free = self.config.num_chunks - len(self.chunks)
        return OffloadCounts(free, evictable, pinned, pending)

    # Parts of the rules.

    def _request(self, request_id: str, *, or_finished: bool = False) -> Asking:
        check_name(request_id)
        request = self.requests.get(request_id)
        is_under_way = request is not None and (
            request.loads.total() > 0 or any(each.storing == request_id for each in self.chunks)
        )
        if request is None or (request.is_finished and not (or_finished and is_under_way)):
            raise InvalidArgumentError("request_id", request_id, "one that has begun")
        return request

    def _chunk(self, key: bytes) -> Chunk | None:
        return next((each for each in self.chunks if each.key == key), None)

    def _here(self, key: bytes) -> Chunk:
        return next(each for each in self.chunks if each.key == key)

    def _use(self, keys: Sequence[bytes]) -> None:
        """Make them the most recently used, the first of them the last to go (KV-TIER-16)."""
        for key in reversed(keys):
            chunk = self._chunk(key)
            if chunk is not None:
                self.chunks.remove(chunk)
                self.chunks.append(chunk)

    def _room(self, number: int, kept: Sequence[bytes]) -> tuple[list[int], list[Chunk]] | None:
        """Return places for so many chunks, and those to evict for them (KV-TIER-13)."""
        taken = [each.place for each in self.chunks]
        free = [place for place in range(self.config.num_chunks) if place not in taken]
        evicted: list[Chunk] = []
        for chunk in self.chunks:
            if len(free) + len(evicted) < number and self._may_leave(chunk, kept):
                evicted.append(chunk)
        places = free + [each.place for each in evicted]
        return (places[:number], evicted) if len(places) >= number else None

    def _may_leave(self, chunk: Chunk, kept: Sequence[bytes]) -> bool:
        """Check that no copy uses it, nor a request that waits for an answer (KV-TIER-22)."""
        asked = [key for request in self.requests.values() for key in request.found]
        is_awaited = bool(self.config.lower) and chunk.key in asked
        is_idle = chunk.storing is None and not chunk.pins
        return is_idle and chunk.key not in kept and not is_awaited

    def _evict(self, chunks: Sequence[Chunk]) -> None:
        self.chunks = [each for each in self.chunks if each not in chunks]
        if chunks:
            self.events.append(OffloadEvent(tuple(each.key for each in chunks), is_removed=True))

    def _drop(self, chunks: Sequence[Chunk]) -> None:
        """Drop chunks whose content did not arrive; nobody waits for them any more."""
        self.chunks = [each for each in self.chunks if each not in chunks]
        for request in self.requests.values():
            request.found = [key for key in request.found if self._chunk(key) is not None]

    def _become_ready(self, chunks: Sequence[Chunk]) -> None:
        for chunk in chunks:
            chunk.storing = None
        if chunks:
            self.events.append(OffloadEvent(tuple(each.key for each in chunks), is_removed=False))
