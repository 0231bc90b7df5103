"""What a first tier must hold, computed from its own results; each check names its rule."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Sequence

from kvcheck.offload.orders import Expected
from kvcheck.offload.orders import letters as _
from kvcheck.play import lives
from kvspec.offload import (
    Found,
    OffloadCapabilities,
    OffloadConfig,
    OffloadEvent,
    OffloadManager,
    PreparedStore,
    TierTransfer,
)


class Shadow(lives.Shadow):
    """The first tier as its calls show it.

    `ready`: key and place of the content there. `pending`: the same for content on its way; None
    while a promotion has not told its place. `pins`: copies that read a key. `down`: stored keys
    that each lower tier is still to get. `dirty`: ready keys that none of them was given. `short`:
    how many more chunks of a tenant, or of any (None), would have had to leave in this step.
    `used`: ready and pending keys, least recently used first. `awaited`: what each request was told
    of that waits for an answer. `reason`: the rule that a key's state follows from, if that is not
    its look-up's own.
    """

    def __init__(self, config: OffloadConfig, capabilities: OffloadCapabilities) -> None:
        super().__init__()
        self.config, self.capabilities = config, capabilities
        self.num_chunks, self.num_lower = config.num_chunks, len(config.lower)
        self.expected = Expected(config.order, config.num_chunks)
        self.offers: Counter[bytes] = Counter()
        self.requests: dict[str, tuple[str, int]] = {}
        self.step = 0
        self.clear()

    def clear(self) -> None:
        """Drop all chunks."""
        self.expected.clear()
        self.ready: dict[bytes, int] = {}
        self.pending: dict[bytes, int | None] = {}
        self.promoted: dict[bytes, int] = {}
        self.pins: Counter[bytes] = Counter()
        self.down: list[tuple[int, Sequence[bytes]]] = []
        self.dirty: set[bytes] = set()
        self.short: dict[str | None, int] = {}
        self.used: list[bytes] = []
        self.last_step: dict[bytes, int] = {}
        self.owner: dict[bytes, str] = {}
        self.num_over = 0
        self.due: list[bytes] | None = None
        self.awaited: dict[str, set[bytes]] = {}
        self.reason: dict[bytes, str] = {}

    def begins_request(self, who: str, *, tenant: str = "", priority: int = 0) -> None:
        self.requests[who] = tenant, priority

    @property
    def num_free(self) -> int:
        return self.num_chunks - len(self.ready) - len(self.pending)

    def idle(self, kept: Collection[bytes] = ()) -> list[bytes]:
        """Return ready keys that no copy uses and nobody waits for, least recently used first."""
        if self.num_lower:
            kept = {*kept, *(key for keys in self.awaited.values() for key in keys)}
        return [k for k in self.used if k in self.ready and not self.pins[k] and k not in kept]

    def evictable(self, kept: Collection[bytes] = ()) -> list[bytes]:
        """Return keys that any manager may evict, the least recently used first."""
        return [key for key in self.idle(kept) if key not in self.dirty]

    def is_copied(self, key: bytes) -> bool:
        return key in self.pending or self.pins[key] > 0

    def over(self, number: int, tenant: str) -> int:
        """Return how many of its own chunks a tenant must give up for so many more."""
        quota = self.config.quotas.get(tenant)
        held = sum(owner == tenant for owner in self.owner.values())
        return 0 if quota is None else max(0, held + number - quota)

    def has_room(self, number: int, room: Sequence[bytes], tenant: str) -> bool:
        """Check that a store or promotion must succeed; note what it is short of otherwise."""
        own = sum(self.owner[key] == tenant for key in room)
        lacks, missing = self.over(number, tenant) - own, number - self.num_free - len(room)
        if lacks > 0 or missing > 0:
            whose, short = (tenant, lacks) if lacks > 0 else (None, missing)
            self.short[whose] = max(short, self.short.get(whose, 0))
        return lacks <= 0 and missing <= 0

    # What calls returned.

    def looked_up(self, key: bytes, who: str, found: Found, below: Sequence[Found]) -> None:
        """Judge a look-up of a request; `below`: what each lower tier would have answered."""
        rule = self.reason.get(key, "KV-TIER-9")
        if key in self.ready:
            self.judge(rule, found == Found.HIT, f"{_(key)} is ready, and was {found}")
        elif key in self.pending:
            self.judge(rule, found == Found.PENDING, f"{_(key)} is on its way, and was {found}")
        elif Found.HIT in below:
            self._promoted(key, who, found, below.index(Found.HIT))
        else:
            wanted = Found.RETRY if Found.RETRY in below else Found.MISS
            where = "a lower tier does not know" if wanted == Found.RETRY else "no tier has it"
            problem = f"{_(key)} was {found}: {where}, so {wanted} is right"
            self.judge(rule, found == wanted, problem)
        if found in (Found.HIT, Found.PENDING):
            self.awaited.setdefault(who, set()).add(key)

    def _promoted(self, key: bytes, who: str, found: Found, tier: int) -> None:
        tenant = self.requests[who][0]
        rule = "KV-TIER-26" if tenant in self.config.quotas else "KV-TIER-20"
        if found == Found.PENDING:
            self.tried["KV-TIER-20"] += 1
            self.num_over, room = self.over(1, tenant), self.evictable()
            own = [key for key in room if self.owner[key] == tenant]
            is_so = self.num_over <= len(own)
            self.judge(rule, is_so, f"{_(key)} is above the quota of its tenant")
            self.expected.came(key)
            needed = max(1 - self.num_free, self.num_over)
            self.due = self._due(needed, self.num_over, room, tenant)
            self.pending[key], self.promoted[key] = None, tier
            self.reason.pop(key, None)
            self._came(key, tenant)
            self.use([key], who)
            return
        is_so = found == Found.MISS and not self.has_room(1, self.evictable(), tenant)
        problem = f"{_(key)} is in tier {tier} and there is room, but it was {found}"
        self.judge(rule, is_so, problem)

    def loads(self, keys: Sequence[bytes], places: Sequence[int], who: str) -> None:
        """Judge the places of a load, and pin its keys."""
        wanted = [self.ready[key] for key in keys]
        problem = f"{_(*keys)} are at {wanted}, and were to be loaded from {list(places)}"
        self.judge("KV-TIER-10", list(places) == wanted, problem)
        self.pins.update(keys)
        self.use(keys, who)

    def loaded(self, keys: Sequence[bytes]) -> None:
        self.pins.subtract(keys)

    def stores(self, keys: Sequence[bytes], store: PreparedStore | None, who: str) -> None:
        """Judge a prepared store: what it takes, where to, and what gives way."""
        self.offers.update(set(keys))
        tenant = self.requests[who][0]
        missing = [k for k in dict.fromkeys(keys) if k not in self.ready and k not in self.pending]
        seen = [key for key in missing if self.offers[key] >= self.config.store_after]
        room, num_over = self.evictable(keys), self.over(len(seen), tenant)
        rule = "KV-TIER-26" if tenant in self.config.quotas else "KV-TIER-13"
        if store is None:
            is_so = not self.has_room(len(seen), room, tenant)
            self.judge(rule, is_so, f"no room for {_(*seen)}, though {_(*room)} may go")
            return
        if missing != seen or self.config.store_after > 1:
            problem = f"of {_(*missing)} the offered often enough are {_(*seen)}"
            self.judge("KV-TIER-25", list(store.keys) == seen, f"{problem}, not {_(*store.keys)}")
        self.judge(
            "KV-TIER-12",
            list(store.keys) == seen and len(store.places) == len(seen),
            f"of {_(*keys)} the missing are {_(*seen)}, and {_(*store.keys)} were to be stored",
        )
        for key in store.evicted:
            self._may_leave(key, keys)
        own = sum(self.owner[key] == tenant for key in store.evicted)
        self.judge(rule, own >= num_over, f"{num_over} of {tenant!r} had to give way, {own} did")
        needed = max(num_over, len(seen) - self.num_free)
        is_so = len(set(store.evicted)) == len(store.evicted) == max(0, needed)
        self.judge(rule, is_so, f"{needed} had to give way, and {_(*store.evicted)} did")
        for key in seen:
            self.expected.came(key)
        due = self._due(len(store.evicted), num_over, room, tenant)
        self._judge_order(store.evicted, due)
        for key in store.evicted:
            self.leaves(key)
        for key, place in zip(store.keys, store.places, strict=True):
            self._came(key, tenant)
            self._takes(key, place, "KV-TIER-12")
        self.use(keys, who)

    def _due(
        self, number: int, num_over: int, room: Sequence[bytes], tenant: str
    ) -> list[bytes] | None:
        """Return who must give way by the order; None where it is not promised, or has no say.

        What a waiting request was told of may be kept in several ways.
        """
        is_awaited = self.num_lower and any(self.awaited.values())
        if is_awaited or self.config.order not in self.capabilities.orders:
            return None
        here = [key for key in self.used if key in self.ready or key in self.pending]
        own = [key for key in room if self.owner[key] == tenant]
        due = self.expected.due(num_over, own, here)
        left = [key for key in room if key not in due]
        here = [key for key in here if key not in due]
        return due + self.expected.due(number - len(due), left, here)

    def _judge_order(self, gone: Sequence[bytes], due: Sequence[bytes] | None) -> None:
        if due is not None:
            problem = f"{_(*gone)} gave way, and the first to go are {_(*due)}"
            self.judge(self.expected.rule, list(gone) == due, problem)

    def stored(self, keys: Sequence[bytes], *, success: bool) -> None:
        """Move keys from pending to ready, or drop them."""
        for key in keys:
            place = self.pending.pop(key)
            self.reason[key] = "KV-TIER-14"
            if success and place is not None:
                self.ready[key] = place
                if self.config.write_back and self.num_lower:
                    self.dirty.add(key)
                else:
                    self.pins[key] += self.num_lower
            else:
                self._forget(key, is_evicted=False)
        if success and keys and not self.config.write_back:
            self.down += [(tier, tuple(keys)) for tier in range(self.num_lower)]

    def begins(self, transfers: Iterable[TierTransfer]) -> None:
        """Judge the transfers of a step against what was promoted and stored since the last."""
        transfers = list(transfers)
        if self.config.write_back:
            self._written_back([each for each in transfers if not each.is_promotion])
        down = Counter((tier, key) for tier, keys in self.down for key in keys)
        for each in transfers:
            problem = f"{_(*each.keys)} and the places {list(each.places)}"
            rule = "KV-TIER-20" if each.is_promotion else "KV-TIER-19"
            self.judge(rule, len(each.keys) == len(each.places), problem)
            for key, place in zip(each.keys, each.places, strict=True):
                if each.is_promotion:
                    is_so = self.promoted.pop(key, None) == each.tier
                    self.judge(rule, is_so, f"{_(key)} is promoted, and was not asked for")
                    self._takes(key, place, rule)
                    continue
                is_so = down[each.tier, key] > 0
                self.judge(rule, is_so, f"{_(key)} is copied to tier {each.tier} again")
                down[each.tier, key] -= 1
                is_so = self.ready.get(key) == place
                self.judge(rule, is_so, f"{_(key)} is copied down from {place}, where it is not")
        if not self.num_lower:
            return
        problem = f"{_(*self.promoted)} stay on their way: no transfer began"
        self.judge("KV-TIER-20", not self.promoted, problem)
        left = [key for (_tier, key), number in down.items() if number > 0]
        rule = "KV-TIER-32" if self.config.write_back else "KV-TIER-19"
        problem = f"{_(*left)} were not copied to a lower tier"
        self.judge(rule, not left, problem, "KV-TIER-19")
        self.down = []

    def _written_back(self, transfers: Sequence[TierTransfer]) -> None:
        """Judge which dirty chunks are copied down: as many as were missing (KV-TIER-27)."""
        flushed = {key for _, keys in self.down for key in keys}
        moved = dict.fromkeys(key for each in transfers for key in each.keys)
        keys = [key for key in moved if key not in flushed]
        left = [key for key in self.idle() if key in self.dirty]
        wrong = [key for key in keys if key not in left]
        self.judge("KV-TIER-27", not wrong, f"{_(*wrong)} are copied down, and need not be")
        total = 0
        for tenant in [*sorted(each for each in self.short if each is not None), None]:
            own = [key for key in left if tenant is None or self.owner[key] == tenant]
            wanted = min(self.short.get(tenant, 0), len(own) - (total if tenant is None else 0))
            got = sum(key in own for key in keys)
            total += wanted
            problem = f"{wanted} chunks more had to be copied down, and {_(*keys)} are"
            self.judge("KV-TIER-27", got >= wanted, problem)
        self.judge("KV-TIER-27", len(keys) == total, f"{total} had to be, and {_(*keys)} are")
        self.short = {}
        self.cleaned(keys)

    def cleaned(self, keys: Sequence[bytes]) -> None:
        """Note that these dirty keys are copied down from the end of the step on."""
        self.dirty -= set(keys)
        for key in keys:
            self.pins[key] += self.num_lower
        self.down += [(tier, keys) for tier in range(self.num_lower) if keys]

    def expired(self) -> list[bytes]:
        """Return what the end of this step evicts for its age (KV-TIER-28), and begin the next."""
        ttl = self.config.ttl_steps
        old = [k for k in self.evictable() if ttl and self.step - self.last_step[k] >= ttl]
        self.step += 1
        for key in old:
            self.leaves(key)
        return old

    def moved(self, transfer: TierTransfer, failed: Collection[bytes]) -> None:
        """End a transfer."""
        for key in transfer.keys:
            if not transfer.is_promotion:
                self.pins[key] -= 1
                continue
            place = self.pending.pop(key)
            self.reason[key] = "KV-TIER-21"
            if key in failed or place is None:
                self._forget(key, is_evicted=False)
            else:
                self.ready[key] = place

    def use(self, keys: Sequence[bytes], who: str) -> None:
        for key in reversed(keys):
            if key in self.used or key in self.ready or key in self.pending:
                self.used = [each for each in self.used if each != key] + [key]
                self.expected.used(key, self.requests[who][1])
                self.last_step[key] = self.step

    def leaves(self, key: bytes) -> None:
        del self.ready[key]
        self.reason.pop(key, None)
        self._forget(key, is_evicted=True)

    def _came(self, key: bytes, tenant: str) -> None:
        self.owner[key] = tenant
        if key not in self.used:
            self.used.append(key)

    def _forget(self, key: bytes, *, is_evicted: bool) -> None:
        self.used.remove(key)
        self.owner.pop(key)
        self.dirty.discard(key)
        for told in self.awaited.values():
            told.discard(key)
        self.expected.went(key, is_evicted=is_evicted)

    # What the manager says of itself, after each call.

    def told(self, events: Sequence[OffloadEvent], due: Collection[bytes]) -> None:
        """Judge events: removals of what may leave, and arrivals of exactly the keys `due`."""
        arrived = [key for event in events if not event.is_removed for key in event.keys]
        problem = f"{_(*due)} became ready, and events say {_(*arrived)}"
        self.judge("KV-TIER-17", sorted(arrived) == sorted(due), problem)

    def removed(
        self, events: Sequence[OffloadEvent], *, told: Collection[bytes], rule: str
    ) -> None:
        """Judge removals; `told`: those that the call returned, or that follow from `rule`."""
        gone = [key for event in events if event.is_removed for key in event.keys]
        if told or rule in ("KV-TIER-28", "KV-TIER-33"):
            is_so = sorted(gone) == sorted(told)
            rule = rule if rule in ("KV-TIER-28", "KV-TIER-33") else "KV-TIER-17"
            self.judge(rule, is_so, f"{_(*told)} gave way, and events say {_(*gone)}")
            return
        if self.num_over:
            problem = f"{self.num_over} of its tenant had to give way, and {_(*gone)} did"
            self.judge("KV-TIER-26", len(gone) >= self.num_over, problem)
        is_so = len(gone) <= max(0, -self.num_free, self.num_over)
        self.judge("KV-TIER-13", is_so, f"{_(*gone)} gave way, and there was room")
        self._judge_order(gone, self.due)
        self.num_over, self.due = 0, None
        for key in gone:
            self._may_leave(key, ())
            self.leaves(key)
        problem = f"{-self.num_free} more chunks than places"
        self.judge("KV-TIER-15", self.num_free >= 0, problem)

    def counted(self, manager: OffloadManager, rule: str) -> None:
        """Judge the manager's counts after a call that `rule` is about."""
        if not self.capabilities.has_counts:
            return
        pinned = sum(self.pins[key] > 0 for key in self.ready)
        evictable = len(self.ready) - pinned
        wanted = (self.num_free, evictable, pinned, len(self.pending))
        got = manager.counts()
        found = (got.num_free, got.num_evictable, got.num_pinned, got.num_pending)
        if self.config.quotas:
            owners = Counter(self.owner.values())
            due = tuple((name, owners[name]) for name in sorted(self.config.quotas))
            problem = f"tenants have {due}, and were said to have {got.tenants}"
            self.judge("KV-TIER-26", got.tenants == due, problem)
        problem = "free, evictable, pinned and pending are {}, and were said to be {}"
        self.judge(rule, found == wanted, problem.format(wanted, found), "KV-TIER-15")

    def _may_leave(self, key: bytes, kept: Collection[bytes]) -> None:
        self.judge("KV-TIER-13", key in self.ready, f"{_(key)} gave way, and was not ready")
        self.judge("KV-TIER-11", not self.pins[key], f"{_(key)} gave way while a copy reads it")
        self.judge("KV-TIER-13", key not in kept, f"{_(key)} gave way to others of its own call")
        if self.config.write_back:
            problem = f"{_(key)} gave way, and no lower tier was given it"
            self.judge("KV-TIER-27", key not in self.dirty, problem)

    def _takes(self, key: bytes, place: int, rule: str) -> None:
        """Judge a new chunk's place, and note it."""
        problem = f"place {place}, of 0 … {self.num_chunks - 1}"
        self.judge(rule, 0 <= place < self.num_chunks, problem)
        others = [k for k, p in (*self.ready.items(), *self.pending.items()) if p == place]
        problem = f"place {place} is given to {_(key)}, and holds {_(*others)}"
        self.judge(rule, not others, problem)
        self.pending[key] = place
        self.reason.pop(key, None)
