"""What a first tier must hold, computed from its own results; each check names its rule."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, field

from kvcheck.play.lives import BrokenRuleError
from kvspec.offload import (
    Found,
    OffloadCapabilities,
    OffloadEvent,
    OffloadManager,
    PreparedStore,
    TierTransfer,
)


@dataclass
class Shadow:
    """The first tier as its calls show it.

    `ready`: key and place of the content there. `pending`: the same for content on its way; None
    while a promotion has not told its place. `pins`: copies that read a key. `down`: stored keys
    that each lower tier is still to get. `used`: ready and pending keys, least recently used first.
    `awaited`: what each request was told of that waits for an answer, or was answered in this step.
    `reason`: the rule that a key's state follows from, if that is not its look-up's own. `tried`:
    how often each rule was put to the test.
    """

    num_chunks: int
    capabilities: OffloadCapabilities
    num_lower: int
    ready: dict[bytes, int] = field(default_factory=dict)
    pending: dict[bytes, int | None] = field(default_factory=dict)
    promoted: dict[bytes, int] = field(default_factory=dict)
    pins: Counter[bytes] = field(default_factory=Counter)
    down: list[tuple[int, tuple[bytes, ...]]] = field(default_factory=list)
    used: list[bytes] = field(default_factory=list)
    awaited: dict[str, set[bytes]] = field(default_factory=dict)
    reason: dict[bytes, str] = field(default_factory=dict)
    tried: Counter[str] = field(default_factory=Counter)

    def judge(self, rule: str, holds: bool, problem: str, other: str = "") -> None:
        """Count a test of the rule; raise unless it holds."""
        self.tried[rule] += 1
        if not holds:
            raise BrokenRuleError(rule, problem, other)

    @property
    def num_free(self) -> int:
        return self.num_chunks - len(self.ready) - len(self.pending)

    def evictable(self, kept: Collection[bytes] = ()) -> list[bytes]:
        """Return keys that any manager may evict, the least recently used first."""
        if self.num_lower:
            kept = {*kept, *(key for keys in self.awaited.values() for key in keys)}
        return [k for k in self.used if k in self.ready and not self.pins[k] and k not in kept]

    # What calls returned.

    def looked_up(self, key: bytes, who: str, found: Found, below: Sequence[Found]) -> None:
        """Judge a look-up of a request; `below`: what each lower tier would have answered."""
        rule = self.reason.get(key, "KV-TIER-9")
        if key in self.ready:
            self.judge(rule, found == Found.HIT, f"{_(key)} is ready, and was {found}")
        elif key in self.pending:
            self.judge(rule, found == Found.PENDING, f"{_(key)} is on its way, and was {found}")
        elif Found.HIT in below:
            self._promoted(key, found, below.index(Found.HIT))
        else:
            wanted = Found.RETRY if Found.RETRY in below else Found.MISS
            where = "a lower tier does not know" if wanted == Found.RETRY else "no tier has it"
            self.judge(
                rule, found == wanted, f"{_(key)} was {found}: {where}, so {wanted} is right"
            )
        if found in (Found.HIT, Found.PENDING):
            self.awaited.setdefault(who, set()).add(key)

    def _promoted(self, key: bytes, found: Found, tier: int) -> None:
        if found == Found.PENDING:
            self.tried["KV-TIER-20"] += 1
            self.pending[key], self.promoted[key] = None, tier
            self.reason.pop(key, None)
            self.used.append(key)
            return
        is_so = found == Found.MISS and not self.num_free and not self.evictable()
        problem = f"{_(key)} is in tier {tier} and there is room, but it was {found}"
        self.judge("KV-TIER-20", is_so, problem)

    def loads(self, keys: Sequence[bytes], places: Sequence[int]) -> None:
        """Judge the places of a load, and pin its keys."""
        wanted = [self.ready[key] for key in keys]
        problem = f"{_(*keys)} are at {wanted}, and were to be loaded from {list(places)}"
        self.judge("KV-TIER-10", list(places) == wanted, problem)
        self.pins.update(keys)
        self.use(keys)

    def loaded(self, keys: Sequence[bytes]) -> None:
        self.pins.subtract(keys)

    def stores(self, keys: Sequence[bytes], store: PreparedStore | None) -> None:
        """Judge a prepared store: what it takes, where to, and what gives way."""
        missing = [k for k in dict.fromkeys(keys) if k not in self.ready and k not in self.pending]
        room = self.evictable(keys)
        needed = max(0, len(missing) - self.num_free)
        if store is None:
            self.judge(
                "KV-TIER-13",
                needed > len(room),
                f"no room for {_(*missing)}, though {_(*room)} may go",
            )
            return
        self.judge(
            "KV-TIER-12",
            list(store.keys) == missing and len(store.places) == len(missing),
            f"of {_(*keys)} the missing are {_(*missing)}, and {_(*store.keys)} were to be stored",
        )
        for key in store.evicted:
            self._may_leave(key, keys)
        is_so = len(set(store.evicted)) == len(store.evicted) == needed
        self.judge("KV-TIER-13", is_so, f"{needed} had to give way, and {_(*store.evicted)} did")
        if "lru" in self.capabilities.orders and not self.num_lower:
            problem = f"{_(*store.evicted)} gave way, and the least recently used are "
            is_so = list(store.evicted) == room[:needed]
            self.judge("KV-TIER-16", is_so, problem + _(*room[:needed]))
        for key in store.evicted:
            self.leaves(key)
        for key, place in zip(store.keys, store.places, strict=True):
            self._takes(key, place, "KV-TIER-12")
        self.use(keys)

    def stored(self, keys: Sequence[bytes], *, success: bool) -> None:
        """Move keys from pending to ready, or drop them."""
        for key in keys:
            place = self.pending.pop(key)
            self.reason[key] = "KV-TIER-14"
            if success and place is not None:
                self.ready[key] = place
                self.pins[key] += self.num_lower
            else:
                self.used.remove(key)
        if success and keys:
            self.down += [(tier, tuple(keys)) for tier in range(self.num_lower)]

    def begins(self, transfers: Iterable[TierTransfer]) -> None:
        """Judge the transfers of a step against what was promoted and stored since the last."""
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
        is_so = not self.promoted
        self.judge("KV-TIER-20", is_so, f"{_(*self.promoted)} stay on their way: no transfer began")
        left = [key for (_tier, key), number in down.items() if number > 0]
        self.judge("KV-TIER-19", not left, f"{_(*left)} were not copied to a lower tier")
        self.down = []

    def moved(self, transfer: TierTransfer, failed: Collection[bytes]) -> None:
        """End a transfer."""
        for key in transfer.keys:
            if not transfer.is_promotion:
                self.pins[key] -= 1
                continue
            place = self.pending.pop(key)
            self.reason[key] = "KV-TIER-21"
            if key in failed or place is None:
                self.used.remove(key)
            else:
                self.ready[key] = place

    def use(self, keys: Sequence[bytes]) -> None:
        for key in reversed(keys):
            if key in self.used or key in self.ready or key in self.pending:
                self.used = [each for each in self.used if each != key] + [key]

    def leaves(self, key: bytes) -> None:
        del self.ready[key]
        self.used.remove(key)
        self.reason.pop(key, None)

    # What the manager says of itself, after each call.

    def told(self, events: Sequence[OffloadEvent], due: Collection[bytes]) -> None:
        """Judge events: removals of what may leave, and arrivals of exactly the keys `due`."""
        arrived: list[bytes] = []
        for event in events:
            if not event.is_removed:
                arrived += event.keys
        is_so = sorted(arrived) == sorted(due)
        self.judge("KV-TIER-17", is_so, f"{_(*due)} became ready, and events say {_(*arrived)}")

    def removed(self, events: Sequence[OffloadEvent], *, told: Collection[bytes]) -> None:
        """Judge removals; `told`: those that the call returned."""
        gone = [key for event in events if event.is_removed for key in event.keys]
        if told:
            is_so = sorted(gone) == sorted(told)
            self.judge("KV-TIER-17", is_so, f"{_(*told)} gave way, and events say {_(*gone)}")
            return
        is_so = len(gone) <= max(0, -self.num_free)
        self.judge("KV-TIER-13", is_so, f"{_(*gone)} gave way, and there was room")
        for key in gone:
            self._may_leave(key, ())
            self.leaves(key)
        is_so = self.num_free >= 0
        self.judge("KV-TIER-15", is_so, f"{-self.num_free} more chunks than places")

    def counted(self, manager: OffloadManager, rule: str) -> None:
        """Judge the manager's counts after a call that `rule` is about."""
        if not self.capabilities.has_counts:
            return
        pinned = sum(self.pins[key] > 0 for key in self.ready)
        evictable = len(self.ready) - pinned
        wanted = (self.num_free, evictable, pinned, len(self.pending))
        got = manager.counts()
        found = (got.num_free, got.num_evictable, got.num_pinned, got.num_pending)
        problem = "free, evictable, pinned and pending are {}, and were said to be {}"
        self.judge(rule, found == wanted, problem.format(wanted, found), "KV-TIER-15")

    def _may_leave(self, key: bytes, kept: Collection[bytes]) -> None:
        is_so = key in self.ready
        self.judge("KV-TIER-13", is_so, f"{_(key)} gave way, and was not ready")
        self.judge("KV-TIER-11", not self.pins[key], f"{_(key)} gave way while a copy reads it")
        self.judge("KV-TIER-13", key not in kept, f"{_(key)} gave way to others of its own call")

    def _takes(self, key: bytes, place: int, rule: str) -> None:
        """Judge a new chunk's place, and note it."""
        is_so = 0 <= place < self.num_chunks
        self.judge(rule, is_so, f"place {place}, of 0 … {self.num_chunks - 1}")
        others = [k for k, p in (*self.ready.items(), *self.pending.items()) if p == place]
        problem = f"place {place} is given to {_(key)}, and holds {_(*others)}"
        self.judge(rule, not others, problem)
        self.pending[key] = place
        self.reason.pop(key, None)
        if key not in self.used:
            self.used.append(key)


def _(*keys: bytes) -> str:
    """Return keys as text."""
    return "[" + " ".join(key.decode("latin-1") for key in keys) + "]"
