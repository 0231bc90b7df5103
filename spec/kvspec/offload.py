"""A first tier of chunks in host memory, in front of lower tiers (KV-TIER-9 …).

A *chunk* is the content of one or several blocks, under a key. An `OffloadManager` keeps the books:
which chunks the first tier holds, at which places, and who copies them. It copies nothing itself.
Every copy has two ends: it is prepared, and later completed, or has failed; until then its chunks
stay where they are. Engines call it from their scheduler, step by step.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Annotated, Protocol, runtime_checkable

from kvspec.domains import Natural, Positive

ORDERS = ("lru", "lfu", "priority", "arc")
"""Orders of eviction that have a rule (KV-TIER-16, KV-TIER-29 to KV-TIER-31)."""

OPTIONS = ("store_after", "quotas", "write_back", "ttl_steps")
"""Members of `OffloadConfig` that a manager may do without."""

CALLS = ("flush", "forget")
"""Calls of `WholeOffloadManager` that a manager may do without."""


class Found(StrEnum):
    """The result of a look-up (KV-TIER-9)."""

    HIT = "hit"
    PENDING = "pending"
    RETRY = "retry"
    MISS = "miss"


class LowerTier(Protocol):
    """A tier behind the first one: a disk, a store elsewhere. It may lose chunks at any time."""

    def lookup(self, key: bytes) -> Found:
        """Return HIT, MISS, or RETRY for a key that it is still looking for."""


@dataclass(frozen=True)
class OffloadConfig:
    """`num_chunks` places of the first tier, numbered from 0, in front of these lower tiers.

    - `order`: the order of eviction, one of `ORDERS`.
    - `store_after`: a key is stored from this many offers on (KV-TIER-25).
    - `quotas`: the most chunks of a tenant; others have no limit (KV-TIER-26).
    - `write_back`: chunks are copied down when their places are needed (KV-TIER-27).
    - `ttl_steps`: chunks that were not used for so many steps are evicted; 0: never (KV-TIER-28).
    """

    num_chunks: Natural
    lower: tuple[LowerTier, ...] = ()
    order: Annotated[str, ORDERS] = "lru"
    store_after: Positive = 1
    quotas: Mapping[str, int] = field(default_factory=dict)
    write_back: bool = False
    ttl_steps: Natural = 0


@dataclass(frozen=True)
class PreparedStore:
    """Keys whose content is to be copied to these places, and keys that gave way (KV-TIER-12)."""

    keys: tuple[bytes, ...] = ()
    places: tuple[int, ...] = ()
    evicted: tuple[bytes, ...] = ()


@dataclass(frozen=True)
class TierTransfer:
    """Copies between the first tier's places and lower tier number `tier` (KV-TIER-19, KV-TIER-20).

    `is_promotion`: into the first tier. It ends by `finish_transfer(number)`.
    """

    number: int
    tier: int
    is_promotion: bool
    keys: tuple[bytes, ...]
    places: tuple[int, ...]


@dataclass(frozen=True)
class OffloadEvent:
    """Keys that became ready in the first tier, or left it (KV-TIER-17)."""

    keys: tuple[bytes, ...]
    is_removed: bool


@dataclass(frozen=True)
class OffloadCounts:
    """Places by their use; together all of them (KV-TIER-15).

    - `num_free`: without a chunk.
    - `num_evictable`: with a ready chunk that no copy uses.
    - `num_pinned`: with a ready chunk that is being copied elsewhere.
    - `num_pending`: with a chunk whose content is on its way.
    - `tenants`: how many chunks each tenant has, in the order of their names (KV-TIER-26).
    """

    num_free: int
    num_evictable: int
    num_pinned: int
    num_pending: int
    tenants: tuple[tuple[str, int], ...] = ()


class OffloadManager(Protocol):
    """Calls of a scheduler; errors leave the state as it was (KV-TIER-24)."""

    def new_request(self, request_id: str, *, tenant: str = "", priority: int = 0) -> None:
        """Begin a request; its id is in every later call for it.

        `tenant` and `priority` are given only where quotas and the order `priority` are declared.
        """

    def lookup(self, key: bytes, request_id: str) -> Found:
        """Look for a chunk; may begin a promotion from a lower tier (KV-TIER-9, KV-TIER-20)."""

    def prepare_load(self, keys: Sequence[bytes], request_id: str) -> tuple[int, ...]:
        """Pin ready chunks for a copy to the device; returns their places (KV-TIER-10)."""

    def complete_load(self, keys: Sequence[bytes], request_id: str) -> None:
        """End such a copy, successful or not (KV-TIER-11)."""

    def prepare_store(self, keys: Sequence[bytes], request_id: str) -> PreparedStore | None:
        """Make room for the chunks that are missing; None if there is none (KV-TIER-12)."""

    def complete_store(
        self, keys: Sequence[bytes], request_id: str, *, success: bool = True
    ) -> None:
        """End the copies of these chunks: they are ready, or gone (KV-TIER-14)."""

    def touch(self, keys: Sequence[bytes], request_id: str) -> None:
        """Note that these chunks were of use, on the device for example (KV-TIER-16)."""

    def end_step(self) -> tuple[TierTransfer, ...]:
        """End a scheduler's step; returns the transfers that begin now (KV-TIER-19)."""

    def finish_transfer(self, number: int, failed: Collection[bytes] = ()) -> None:
        """End a transfer, all of it but these keys with success (KV-TIER-21)."""

    def finish_request(self, request_id: str) -> None:
        """End a request: it looks up and prepares nothing more. Its copies may end later."""

    def reset(self) -> None:
        """Drop all chunks (KV-TIER-18)."""

    def take_events(self) -> tuple[OffloadEvent, ...]:
        """Return the events since the last call (KV-TIER-17)."""

    def counts(self) -> OffloadCounts:
        """Return how many places are used for what (KV-TIER-15)."""


class WholeOffloadManager(OffloadManager, Protocol):
    """With the calls that only some managers have (`CALLS`)."""

    def flush(self) -> None:
        """Let all dirty chunks be copied down, before a shutdown for example (KV-TIER-32)."""

    def forget(self, keys: Sequence[bytes]) -> None:
        """Evict chunks whose content is wrong (KV-TIER-33)."""


@dataclass(frozen=True)
class OffloadCapabilities:
    """The parts of an `OffloadManager` that a subject has, and the choices it declares.

    `orders`: the orders of eviction by name that it promises; a manager is made in one of them, or
    in "lru", which is then not judged. `options`: the `OPTIONS` and `CALLS` that it has.
    `checks_calls`: illegal calls are InvalidArgumentErrors (KV-TIER-24); else none is made.
    `has_lowest_places`: free places are given the lowest first (KV-TIER-12); else any will do.
    """

    has_lower_tiers: bool = True
    has_counts: bool = True
    checks_calls: bool = True
    has_lowest_places: bool = False
    orders: frozenset[str] = frozenset({"lru"})
    options: frozenset[str] = frozenset()


ALL_PARTS = OffloadCapabilities(
    has_lowest_places=True, orders=frozenset(ORDERS), options=frozenset(OPTIONS + CALLS)
)


@runtime_checkable
class OffloadImplementation(Protocol):
    """What `kvspec check --tier` needs of an implementation, or of an object that is none."""

    @property
    def offload_capabilities(self) -> OffloadCapabilities:
        """What the managers can do."""

    def make_offload(self, config: OffloadConfig) -> OffloadManager:
        """Make an empty manager. InvalidArgumentError for members outside of their domains."""
