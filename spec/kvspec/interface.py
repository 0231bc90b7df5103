"""The protocols of implementations and managers.

An engine talks to a `KVCacheManager`. Everything around it (making managers and requests, saying
what is supported, planning, cloning for exploration) is the `Implementation`. Implementations are
found by the entry-point group `kvspec.implementations` or as `package.module:factory`; the factory
takes no arguments and returns an `Implementation`.

Conventions of every call: an illegal call raises a typed error and changes nothing (KV-ERR-2); lack
of space is reported by None or False, never by an exception (KV-ERR-1); a call during another one
raises BusyError (KV-ERR-7), and after one that failed during a change every call raises SpoiltError
(KV-ERR-8); unknown request ids hold nothing (KV-ERR-4); results are ids.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from types import MappingProxyType
from typing import Protocol, runtime_checkable

from kvspec.blocks import BlockFacts, GroupHits, KVCacheBlocks, PrefixHit
from kvspec.config import ManagerConfig
from kvspec.editions import FIRST
from kvspec.events import Event
from kvspec.planning import Planner
from kvspec.policy import EXTRA_KEY_FORMS
from kvspec.request import Request, RequestInput
from kvspec.snapshot import Snapshot
from kvspec.specs import LayerSpec
from kvspec.stats import PrefixCacheStats, ResidencySample


class Feature(StrEnum):
    """The optional features of an implementation.

    The base, which all have: a pool for one full-attention group, requests made and extended,
    `get_computed_blocks`, `allocate_slots` for the tokens of a request, `free`, `get_blocks` and
    `num_free_blocks`. Calls of a missing feature are not made, or raise UnsupportedError.
    """

    PREFIX_CACHING = "prefix_caching"
    MULTIPLE_GROUPS = "multiple_groups"
    EAGLE = "eagle"
    CONTEXT_PARALLEL = "context_parallel"
    EXTERNAL_TOKENS = "external_tokens"
    DELAYED_CACHING = "delayed_caching"
    DEFERRED_FREE = "deferred_free"
    HOLDING = "holding"
    """`hold_blocks`; it comes with `deferred_free`, whose `free_blocks` ends it."""
    BLOCK_FACTS = "block_facts"
    """`get_block`."""
    PARTIAL_BLOCKS = "partial_blocks"
    RETENTION = "retention"
    EVENTS = "events"
    STATISTICS = "statistics"
    RESIDENCY = "residency"
    CUSTOM_SPECS = "custom_specs"
    PLANNING = "planning"
    CLONE = "clone"
    RESTORE = "restore"
    CACHE_SALT = "cache_salt"
    LORA = "lora"
    MULTIMODAL = "multimodal"
    PROMPT_EMBEDDINGS = "prompt_embeddings"
    SKIP_READING = "skip_reading"
    """Requests with `skip_reading_cache`."""
    DRAFTING = "drafting"
    """Slots for drafts: more new tokens than the request has left, and lookahead tokens."""
    ADMISSION = "admission"
    """`full_sequence_must_fit`, `reserved_blocks` and the watermark."""
    EVICTION_BY_ID = "eviction_by_id"
    RESET = "reset"
    SKIPPED_REMOVAL = "skipped_removal"
    """`remove_skipped_blocks` as a call; an allocation that passes a window always removes."""
    HITS_PER_GROUP = "hits_per_group"
    UNEQUAL_HITS = "unequal_hits"
    """Beside a load, lists of hits of unequal length (KV-MGR-22)."""
    COMMON_PREFIX = "common_prefix"
    UNHASHED_BLOCKS = "unhashed_blocks"
    NEED = "need"
    """`get_num_blocks_to_allocate`."""
    NEW_BLOCK_IDS = "new_block_ids"
    STABLE_LISTS = "stable_lists"
    """Block lists keep their entries (KV-GRP-1); else one of equal content may replace one."""
    SNAPSHOT = "snapshot"
    """Without it only safety and behaviour can be checked, and safety from outside alone."""
    GIVEN_HASHES = "given_hashes"
    """Requests whose tokens and hashes the engine keeps: `kvspec.following`."""
    JUNCTIONS = "junctions"
    """Requests whose `junction_tokens` is not 0 (KV-RET-7)."""
    IN_FLIGHT = "in_flight"
    """Requests whose `num_in_flight_tokens` is not 0 (KV-MGR-21)."""
    LATER_CHOICES = "later_choices"
    """The choices of `kvspec.policy.LATER`, and `record_prefix_cache_stats`."""
    HASH_LOOKAHEAD = "hash_lookahead"
    """Configurations whose `hash_lookahead_tokens` is not 0 (KV-HASH-14)."""
    HIT_REPORTS = "hit_reports"
    """Requests whose `reports_hits` is True (KV-EVT-11)."""
    EVICTION_ORDERS = "eviction_orders"
    """Configurations whose `eviction_order` is not LRU, requests whose `priority` is not 0."""
    HITS_INSIDE_BLOCKS = "hits_inside_blocks"
    """Hits that end inside a block, and copies on write: `kvspec.inside.CopyingManager`."""
    WITHDRAWAL = "withdrawal"
    """`withdraw`."""
    BATCHED = "batched"
    """Its own whole steps over arrays: `kvspec.batched.BatchedImplementation`."""


@dataclass(frozen=True)
class Capabilities:
    """The declaration of an implementation.

    `spec_types`: the spec classes its groups may have. `hash_functions`: names it can compute;
    empty if it identifies prefixes in another way (then only its safety can be checked).
    `min_block_size_tokens`: smaller blocks are refused. `extra_key_forms`: the values of
    `Policy.extra_keys` that it supports; under another one it refuses requests with extra keys.
    `values`: the supported values of members of configurations, all if a member is absent;
    `limits`: the largest supported ones. Both use the names of `kvspec.requirements`. `edition`:
    the edition of the contract it was written for (`kvspec.editions`); later rules do not bind it.
    """

    name: str
    version: str
    spec_types: frozenset[type[LayerSpec]]
    hash_functions: frozenset[str]
    features: frozenset[Feature]
    min_block_size_tokens: int = 1
    extra_key_forms: frozenset[str] = frozenset(EXTRA_KEY_FORMS)
    values: Mapping[str, frozenset[str]] = field(
        default_factory=lambda: MappingProxyType({}), hash=False
    )
    limits: Mapping[str, int] = field(default_factory=lambda: MappingProxyType({}), hash=False)
    edition: str = FIRST


@runtime_checkable
class KVCacheManager(Protocol):
    """Blocks of one pool for the requests of one engine.

    The life of a request: `get_computed_blocks`, `allocate_slots` with that hit, then
    `allocate_slots` for each chunk and each decode step, `free` at the end. One call at a time: a
    nested one, or one of another thread, is refused (KV-ERR-7).
    """

    @property
    def config(self) -> ManagerConfig:
        """The configuration, with derived block sizes filled in (KV-CFG-4, KV-CFG-5)."""

    @property
    def none_hash(self) -> bytes:
        """The parent of every request's first block hash (KV-HASH-3)."""

    @property
    def num_free_blocks(self) -> int:
        """Length of the free queue, cached but unreferenced blocks included."""

    @property
    def usage(self) -> float:
        """1 - free / (num_blocks - 1); 0.0 when there is only the null block (KV-POOL-12)."""

    def get_computed_blocks(self, request: Request) -> PrefixHit:
        """Return the longest cached prefix, at most `request.num_tokens - 1` tokens (KV-MGR-1).

        Reads: the cache map and `request.block_hashes`. Changes: statistics only. The hit takes no
        reference: it is valid until the next call that allocates, evicts or resets. Empty when
        caching is off or the request skips reading the cache (then not counted either).
        """

    def find_longest_cache_hit_per_group(
        self, request: Request, max_hit_length_tokens: int
    ) -> GroupHits:
        """Return every group's own longest hit up to a length, not reconciled (KV-COORD-9). Pure.

        `allocate_slots` accepts these lists together with external tokens (KV-MGR-22).

        Raises UnsupportedError with fewer than two groups or with caching off.
        """

    def allocate_slots(
        self,
        request: Request,
        num_new_tokens: int,
        *,
        num_new_computed_tokens: int = 0,
        new_computed_blocks: KVCacheBlocks | None = None,
        num_lookahead_tokens: int = 0,
        num_external_computed_tokens: int = 0,
        delay_cache_blocks: bool = False,
        num_encoder_tokens: int = 0,
        full_sequence_must_fit: bool = False,
        reserved_blocks: int = 0,
        has_scheduled_reqs: bool = True,
    ) -> KVCacheBlocks | None:
        """Make room for tokens about to be computed (KV-MGR-3 … KV-MGR-10).

        - `num_new_tokens`: tokens to compute now, drafts included.
        - `num_new_computed_tokens`, `new_computed_blocks`: the hit of a look-up made just before;
          only for a request that holds nothing yet. Beside external tokens the lists may be each
          group's own hit, with the greatest of their lengths (KV-MGR-22).
        - `num_lookahead_tokens`: further slots for a drafter; never cached.
        - `num_external_computed_tokens`: tokens after the hit whose KV another store brings; in a
          group whose list of hits is shorter than others it also loads what the list lacks.
        - `delay_cache_blocks`: register no hashes now; a later `cache_blocks` does.
        - `num_encoder_tokens`: tokens of cross attention.
        - `full_sequence_must_fit`: refuse unless the whole current sequence would fit.
        - `reserved_blocks`: free blocks to leave for others.
        - `has_scheduled_reqs`: others run in this step, so the watermark applies to a WAITING or
          PREEMPTED request.

        Returns the newly allocated blocks per group (hits and external blocks not among them), or
        None when there is no room: then nothing changed, except that blocks which fell out of the
        window may have been released (KV-MGR-6).
        """

    def cache_blocks(self, request: Request, num_computed_tokens: int) -> None:
        """Register the hashes of the full blocks among the first tokens (KV-MGR-11).

        `num_computed_tokens` counts from the start. Nothing happens with caching off.
        """

    def cache_partial_block(self, request: Request, group: int, num_tokens: int) -> bool:
        """Make the block that holds token `num_tokens - 1` reachable at that boundary (KV-PART-1).

        For a group whose block size is a larger multiple of the hash block size h; `num_tokens` is
        a multiple of h and not of the block size. True if the key is registered now or was before,
        False for a null block.
        """

    def free(self, request: Request) -> None:
        """Release all blocks of the request, last block first, group by group (KV-MGR-12)."""

    def pop_blocks_for_free(self, request: Request) -> tuple[int, ...]:
        """Forget the request but keep its blocks referenced (KV-MGR-13).

        Returns their ids, groups concatenated, in allocation order, null ones included. The caller
        returns them later through `free_blocks`, in reverse order.
        """

    def free_blocks(self, block_ids: Sequence[int]) -> None:
        """Return popped or held blocks, in one release call, in the given order (KV-MGR-13).

        Raises UnknownBlockError for an id out of range and BlockReleaseError for one that is not
        (or no longer) popped or held; null entries are ignored.
        """

    def hold_blocks(self, block_ids: Sequence[int]) -> None:
        """Take a reference to each of these blocks, cached or not, in use or free (KV-POOL-19).

        A held block is not allocated before `free_blocks` has returned it. A block named twice is
        held twice; null entries are ignored. Raises UnknownBlockError for an id out of range and
        InvalidArgumentError for a block reserved at start.
        """

    def get_block(self, block_id: int) -> BlockFacts:
        """Return the facts about a block (KV-POOL-20). Raises UnknownBlockError."""

    def remove_skipped_blocks(self, request: Request, total_computed_tokens: int) -> None:
        """Replace blocks that attention no longer needs by null and release them (KV-MGR-14)."""

    def evict_blocks(self, block_ids: Sequence[int]) -> None:
        """Drop the cached identity of these blocks, in this order; keep their owners (KV-POOL-10).

        Raises UnknownBlockError for an id out of range; null and unhashed blocks are ignored.
        """

    def withdraw(self, request: Request, num_computed_tokens: int) -> tuple[str, ...]:
        """Take back what was planned for a request beyond its computed tokens (KV-MGR-23).

        For a step that did not run: no block that is not computed to its end keeps a key. Returns
        the ids, sorted, of other requests that hold such blocks: their hits are void. Raises
        InvalidArgumentError for a request that holds nothing; with caching off nothing happens.
        """

    def reset_prefix_cache(self) -> bool:
        """Drop every hash if no block is in use, and return True; else return False."""

    def get_num_common_prefix_blocks(self, request: Request) -> tuple[int, ...]:
        """Count per group the leading blocks that all running requests share (KV-MGR-15)."""

    def get_blocks(self, request: Request) -> KVCacheBlocks:
        """Return the request's block list per group; empty lists if it holds nothing."""

    def get_unhashed_block_ids(self, request: Request) -> tuple[tuple[int, ...], ...]:
        """Return per group the request's blocks that are neither null nor cached, in list order."""

    def get_num_blocks_to_allocate(
        self,
        request: Request,
        *,
        num_tokens: int,
        total_computed_tokens: int,
        num_tokens_main_model: int,
        num_encoder_tokens: int = 0,
        apply_admission_cap: bool = False,
    ) -> int:
        """Free blocks the request would take to have `num_tokens` slots, without a new hit. Pure.

        `num_tokens_main_model`: the same without lookahead. `apply_admission_cap`: count windowed
        groups with the most they can hold at once.
        """

    def take_events(self) -> tuple[Event, ...]:
        """Return the events since the last call, in order, and empty the queue (KV-EVT-1)."""

    def take_new_block_ids(self) -> tuple[int, ...]:
        """Return and clear the new blocks that must be zeroed, by group (KV-MGR-16)."""

    def make_prefix_cache_stats(self) -> PrefixCacheStats | None:
        """Return the look-up counters since the last call, reset; None when `log_stats` is off."""

    def record_prefix_cache_stats(self, request: Request, num_hit_tokens: int) -> None:
        """Count the look-up of a request that was admitted with this hit (KV-POL-18).

        Nothing happens with caching off, or where look-ups are counted when they are asked.
        """

    def take_residency_samples(self) -> tuple[ResidencySample, ...]:
        """Return the lives of sampled blocks that ended since the last call (KV-STAT-6)."""

    def new_step_starts(self) -> None:
        """Begin a scheduling step: states registered before it may be used (KV-MAMBA-2).

        Under the order `ttl` cached blocks age, and lose their keys when too old (KV-ORD-5).
        """

    def snapshot(self) -> Snapshot:
        """Return the whole abstract state. Pure; O(pool)."""


@runtime_checkable
class HitRateWindow(Protocol):
    """Hit rate over the most recent requests (KV-STAT-4)."""

    def observe(self, stats: PrefixCacheStats) -> None:
        """Take in one update; a `reset` flag clears the window first."""

    @property
    def num_requests(self) -> int:
        """Number of requests in the window."""

    @property
    def hit_rate(self) -> float:
        """Hit tokens / queried tokens in the window; 0.0 when nothing was queried."""


@runtime_checkable
class Implementation(Protocol):
    """The factory of managers and requests, and the other calls of an implementation."""

    @property
    def capabilities(self) -> Capabilities: ...

    def create(
        self,
        config: ManagerConfig,
        *,
        check_invariants: bool = True,
        clock: Callable[[], int] | None = None,
    ) -> KVCacheManager:
        """Make a manager with a fresh pool.

        `check_invariants`: audit the state after every operation, where the implementation can.
        `clock`: nanoseconds, for residency samples; None is `time.monotonic_ns`. Raises ConfigError
        (or UnsupportedError for what it lacks); then nothing was created.
        """

    def make_request(self, manager: KVCacheManager, request: RequestInput) -> Request:
        """Make a request with the hashes of its prompt's full blocks. The manager is not changed.

        Hashes depend only on the manager's hash function, seed and hash block size, so a request
        may be used with every manager that has the same three.
        """

    def append_tokens(
        self, manager: KVCacheManager, request: Request, token_ids: Sequence[int]
    ) -> None:
        """Append generated tokens to the request and hash the blocks they complete."""

    def make_hit_rate_window(self, max_requests: int = 1000) -> HitRateWindow:
        """Make an empty window over the most recent `max_requests` requests."""

    @property
    def planner(self) -> Planner | None:
        """Planning functions (KV-PLAN-*), or None."""

    def clone(self, manager: KVCacheManager) -> KVCacheManager:
        """Make an independent copy, including queued events and statistics (KV-MGR-20).

        Raises UnsupportedError without Feature.CLONE.
        """

    def restore(self, config: ManagerConfig, snapshot: Snapshot) -> KVCacheManager:
        """Make a manager in the state of `snapshot`, without events or statistics (KV-MGR-20).

        Every later result equals that of the manager the snapshot was taken from. Raises
        UnsupportedError without Feature.RESTORE.
        """
