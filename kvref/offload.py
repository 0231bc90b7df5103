"""Chunks in front of lower tiers, exactly as KV-TIER-9 … say: lists, searched from end to end."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field, replace

from kvref.eviction import Chunk, Order
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


@dataclass
class Asking:
    """A request: what its look-ups found since it was last answered, and what it has begun."""

    tenant: str = ""
    priority: int = 0

    found: list[bytes] = field(default_factory=list)
    is_finished: bool = False
    has_asked: bool = False
    must_wait: bool = False
    loads: Counter[bytes] = field(default_factory=Counter)


class ReferenceOffload:
    """`chunks`: the least recently used first. `begun`: promotions of this step, not yet moving.

    `offers`: how many stores named a key. `short`: how many more chunks, of a tenant or of any,
    would have had to leave in this step.
    """

    def __init__(self, config: OffloadConfig) -> None:
        check_made(config)
        self.config = config
        self.requests: dict[str, Asking] = {}
        self.next_number = self.step = 0
        self.offers: Counter[bytes] = Counter()
        self.order = Order(config.order, config.num_chunks)
        self.events: list[OffloadEvent] = []
        self.drop_all()

    def drop_all(self) -> None:
        self.chunks: list[Chunk] = []
        self.order.clear()
        self.begun: list[tuple[int, str, Chunk]] = []
        self.stored: list[TierTransfer] = []
        self.short: dict[str | None, int] = {}
        self.moving: list[TierTransfer] = []

    def new_request(self, request_id: str, *, tenant: str = "", priority: int = 0) -> None:
        check_begun(request_id, tenant, priority)
        if request_id in self.requests and not self.requests[request_id].is_finished:
            raise InvalidArgumentError("request_id", request_id, "a new one")
        request = self.requests.setdefault(request_id, Asking())
        request.is_finished, request.tenant, request.priority = False, tenant, priority

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
                if self._added([key], [key], request_id, storing=0) is None:
                    return Found.MISS
                self._use([key], request_id)
                self.begun.append((tier, request_id, self._here(key)))
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
        self._use(keys, request_id)
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
        """Give the missing keys places (KV-TIER-12, KV-TIER-13, KV-TIER-25)."""
        keys = check_keys(keys)
        self._request(request_id)
        self.offers.update(set(keys))
        missing: list[bytes] = []
        for key in keys:
            is_seen = self.offers[key] >= self.config.store_after
            if self._chunk(key) is None and key not in missing and is_seen:
                missing.append(key)
        added = self._added(missing, keys, request_id, storing=request_id)
        if added is None:
            return None
        places, evicted = added
        self._use(keys, request_id)
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
        if self.config.write_back:
            for chunk in chunks:
                chunk.is_dirty = bool(self.config.lower)
        else:
            self._copy_down(chunks)

    def touch(self, keys: Sequence[bytes], request_id: str) -> None:
        """Make those that are here the most recently used (KV-TIER-16)."""
        self._request(request_id)
        self._use(check_keys(keys), request_id)

    def end_step(self) -> tuple[TierTransfer, ...]:
        """Begin the promotions of this step, then what was stored since the last (KV-TIER-19)."""
        groups: dict[tuple[int, str], list[Chunk]] = {}
        for tier, request_id, chunk in self.begun:
            groups.setdefault((tier, request_id), []).append(chunk)
        began = []
        for (tier, _), chunks in groups.items():
            keys, places = tuple(each.key for each in chunks), tuple(each.place for each in chunks)
            began.append(TierTransfer(0, tier, True, keys, places))
        for request in self.requests.values():
            if request.has_asked and not request.must_wait:
                request.found = []
            request.has_asked = request.must_wait = False
        self._make_clean()
        transfers = []
        for transfer in began + self.stored:
            transfers.append(replace(transfer, number=self.next_number))
            self.next_number += 1
        self.moving += transfers
        self.begun, self.stored = [], []
        self._expire()
        return tuple(transfers)

    def _expire(self) -> None:
        """Evict what was not used for so many whole steps (KV-TIER-28)."""
        ttl = self.config.ttl_steps
        if ttl:
            old = [each for each in self.chunks if self.step - each.last_step >= ttl]
            self._evict([each for each in old if self._may_leave(each, [])])
        self.step += 1

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

    def flush(self) -> None:
        """Copy all dirty chunks down at the end of the step (KV-TIER-32)."""
        dirty = [each for each in self.chunks if each.is_dirty]
        for chunk in dirty:
            chunk.is_dirty = False
        self._copy_down(dirty)

    def forget(self, keys: Sequence[bytes]) -> None:
        """Evict what is here of these, unless one is being copied (KV-TIER-33)."""
        chunks = [self._here(key) for key in dict.fromkeys(check_keys(keys)) if self._chunk(key)]
        for chunk in chunks:
            if chunk.pins or chunk.storing is not None:
                raise InvalidArgumentError("keys", chunk.key, "not being copied")
        self._evict(chunks)
        for request in self.requests.values():
            request.found = [key for key in request.found if self._chunk(key) is not None]

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
        owners = Counter(each.tenant for each in self.chunks)
        tenants = tuple((name, owners[name]) for name in sorted(self.config.quotas))
        return OffloadCounts(free, evictable, pinned, pending, tenants)

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

    def _use(self, keys: Sequence[bytes], request_id: str) -> None:
        """Make them the most recently used, the first of them the last to go (KV-TIER-16)."""
        for key in reversed(keys):
            chunk = self._chunk(key)
            if chunk is not None:
                self.chunks.remove(chunk)
                self.chunks.append(chunk)
                chunk.uses += 1
                chunk.priority = self.requests[request_id].priority
                chunk.last_step = self.step

    def _added(
        self, keys: Sequence[bytes], kept: Sequence[bytes], request_id: str, *, storing: str | int
    ) -> tuple[list[int], list[Chunk]] | None:
        """Add chunks for these keys, if there is room; return their places and who gave way."""
        tenant = self.requests[request_id].tenant
        free = self.free_places()
        may_leave = [each for each in self.chunks if self._may_leave(each, kept)]
        own = [each for each in may_leave if each.tenant == tenant]
        num_over = self._num_over(len(keys), tenant)
        if num_over > len(own) or len(keys) > len(free) + len(may_leave):
            whose = tenant if num_over > len(own) else None
            short = (
                num_over - len(own) if whose == tenant else len(keys) - len(free) - len(may_leave)
            )
            self.short[whose] = max(short, self.short.get(whose, 0))
            return None
        uses = [self.order.arrives(key) for key in keys]
        evicted: list[Chunk] = []
        while len(evicted) < num_over:
            evicted.append(self._next(own, evicted))
        while len(free) + len(evicted) < len(keys):
            evicted.append(self._next(may_leave, evicted))
        places = (free + [each.place for each in evicted])[: len(keys)]
        self._evict(evicted)
        for key, place, number in zip(keys, places, uses, strict=True):
            self.chunks.append(Chunk(key, place, storing, tenant=tenant, uses=number))
        return places, evicted

    def free_places(self) -> list[int]:
        taken = {each.place for each in self.chunks}
        return [place for place in range(self.config.num_chunks) if place not in taken]

    def _next(self, among: Sequence[Chunk], gone: Sequence[Chunk]) -> Chunk:
        """Return the first to go of some chunks, when others are gone already."""
        staying = [each for each in self.chunks if each not in gone]
        return self.order.first([each for each in among if each not in gone], staying)

    def _num_over(self, number: int, tenant: str) -> int:
        """Return by how many chunks the tenant would be over its quota (KV-TIER-26)."""
        if tenant not in self.config.quotas:
            return 0
        held = sum(each.tenant == tenant for each in self.chunks)
        return max(0, held + number - self.config.quotas[tenant])

    def _make_clean(self) -> None:
        """Copy down as many chunks as stores and promotions were short of (KV-TIER-27)."""
        whose = [tenant for tenant in self.short if tenant is not None]
        for tenant in [*sorted(whose), None]:
            dirty = [each for each in self.chunks if self._may_leave(each, [], is_dirty=True)]
            if tenant is not None:
                dirty = [each for each in dirty if each.tenant == tenant]
            chosen: list[Chunk] = []
            while len(chosen) < min(self.short.get(tenant, 0), len(dirty)):
                chosen.append(self._next(dirty, chosen))
            for chunk in chosen:
                chunk.is_dirty = False
            self._copy_down(chosen)
        self.short = {}

    def _copy_down(self, chunks: Sequence[Chunk]) -> None:
        """Let each lower tier be given these, from the end of the step on (KV-TIER-19)."""
        for tier in range(len(self.config.lower) if chunks else 0):
            for chunk in chunks:
                chunk.pins += 1
            keys, places = tuple(each.key for each in chunks), tuple(each.place for each in chunks)
            self.stored.append(TierTransfer(0, tier, False, keys, places))

    def _may_leave(self, chunk: Chunk, kept: Sequence[bytes], *, is_dirty: bool = False) -> bool:
        """Check that no copy uses it, nor a request that waits for an answer (KV-TIER-22)."""
        if chunk.is_dirty != is_dirty:
            return False
        asked = [key for request in self.requests.values() for key in request.found]
        is_awaited = bool(self.config.lower) and chunk.key in asked
        is_idle = chunk.storing is None and not chunk.pins
        return is_idle and chunk.key not in kept and not is_awaited

    def _evict(self, chunks: Sequence[Chunk]) -> None:
        self.chunks = [each for each in self.chunks if each not in chunks]
        for chunk in chunks:
            self.order.leaves(chunk)
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
