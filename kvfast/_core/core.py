"""The parts of a manager put together, and what calls do once they have been checked."""

from __future__ import annotations

import time
from array import array
from collections.abc import Callable, Sequence

from kvfast.residency import ResidencyLog
from kvspec._restorable import check_restorable
from kvspec.blocks import KVCacheBlocks, PrefixHit
from kvspec.config import ManagerConfig
from kvspec.errors import ConfigError, InvalidArgumentError
from kvspec.snapshot import Snapshot

from .allocator import Allocator
from .demand import Demand
from .event_log import EventLog
from .hashing import Hasher
from .lookup import Lookup
from .plan import Plan
from .pool import BlockPool
from .request import FastRequest
from .shape import Shape
from .state import StateView
from .tables import Tables
from .turn import Turn


class Core:
    """One pool, its groups, and the requests that hold something.

    `rows`: request id -> row of the tables. `holders`: the object that came when a row was taken,
    for which its name need not be looked up. `popped`: references per block that were handed out
    and not yet returned (KV-POOL-9). `used`: the request of the call under way, if it has one. The
    methods trust their arguments.
    """

    def __init__(self, plan: Plan, clock: Callable[[], int] | None = None) -> None:
        if self.is_ready():  # batches know the size of its tables
            raise InvalidArgumentError("manager", None, "one that is made once")
        config = plan.config
        if clock is not None and not callable(clock):
            raise InvalidArgumentError("clock", clock, "a function of no arguments, or None")
        self.turn = Turn()
        self.used: FastRequest | None = None
        self.plan = plan
        self.config: ManagerConfig = config
        self.hasher = hasher_of(config)
        self.num_groups = len(plan.groups)
        self.max_len = config.max_model_len_tokens
        self.enable_caching = config.enable_caching
        self.log_stats = config.log_stats
        self.watermark = int(config.watermark * config.kv_cache.num_blocks)  # KV-MGR-9
        self.hash_block_size = config.hash_block_size_tokens or 1
        self.events = EventLog() if config.enable_events else None
        self.residency: ResidencyLog | None = None
        if config.enable_caching and config.residency_sample_rate > 0:
            self.residency = ResidencyLog(config.residency_sample_rate, clock or time.monotonic_ns)
        self.shape = shape_of(plan)
        self.pool = BlockPool(
            config.kv_cache.num_blocks,
            self.hasher.words_per_digest,
            events=self.events,
            residency=self.residency,
            unhashed_to_front=config.policy.unhashed_freed_to == "front",
            removed_per_copy=config.policy.removed_event_per == "copy",
        )
        self.tables = Tables(self.num_groups)
        self.lookup = Lookup(self.shape, self.pool)
        self.allocator = Allocator(
            self.shape,
            self.pool,
            self.tables,
            self.lookup,
            self.events,
            rounds_down=plan.is_hybrid,
        )
        self.demand = Demand()
        self.rows: dict[str, int] = {}
        self.holders: list[FastRequest | None] = []
        self.popped: dict[int, int] = {}
        self.reserved: list[int] = []
        self.no_blocks = KVCacheBlocks.empty(self.num_groups)
        self.no_hit = PrefixHit(self.no_blocks, 0, 0 if plan.is_hybrid else None)
        self.not_looked_up = PrefixHit(self.no_blocks, 0)
        self.clear_stats()
        self.ask_clock()
        self.set_sinks_aside()
        self.is_made = True

    def is_ready(self) -> bool:
        """Whether it was made: where only `__new__` was called, there is no memory."""
        try:
            return self.is_made
        except AttributeError:  # uncompiled
            return False

    def check_sound(self) -> None:
        """It was made whole, and no change broke off (KV-ERR-8)."""
        if not self.is_ready():
            raise InvalidArgumentError("manager", None, "made by `create`")
        if self.turn.is_spoilt():
            self.turn.refuse()

    def enter(self) -> None:
        """Begin a call."""
        if not self.is_ready():
            self.check_sound()
        self.turn.take()

    def leave(self) -> None:
        """End a call."""
        if self.used is not None:
            self.used.is_used = False
            self.used = None
        self.turn.give_back()

    def ask_clock(self) -> None:
        """What time it is for all that this call does; before anything is changed (KV-STAT-6)."""
        if self.residency is not None:
            self.residency.ask()

    def clear_stats(self) -> None:
        """Start counting look-ups anew (KV-STAT-3)."""
        self.was_reset = False
        self.requests = self.queries = self.hits = 0
        self.again_requests = self.again_queries = self.again_hits = 0

    def set_sinks_aside(self) -> None:
        """Take blocks for good, before any request comes (KV-FULL-8)."""
        for group in self.plan.groups:
            free = self.pool.num_free
            if group.num_sink_blocks > free:
                raise ConfigError("sink_len", group.num_sink_blocks, f"at most {free} blocks")
            for _ in range(group.num_sink_blocks):
                self.reserved.append(self.pool.take())

    @property
    def none_hash(self) -> bytes:
        """The parent of first blocks (KV-HASH-3); making requests reads it at any time."""
        if not self.is_ready():
            self.check_sound()
        return self.hasher.none_hash

    def row_of(self, request: FastRequest) -> int:
        """The row of the request; -1 while it holds nothing."""
        row = request.row
        if 0 <= row < len(self.holders) and self.holders[row] is request:
            return row
        return self.rows.get(request.request_id, -1)

    def forget_row(self, request: FastRequest) -> int:
        """The row of the request, which has none from now on; -1 where it had none."""
        row = self.rows.pop(request.request_id, -1)
        if 0 <= row < len(self.holders):
            self.holders[row] = None
        return row

    def new_row(self, request: FastRequest) -> int:
        """A row for a request that has none."""
        row = self.tables.take_row()
        self.rows[request.request_id] = row
        while len(self.holders) <= row:
            self.holders.append(None)
        self.holders[row] = request
        request.row = row
        return row

    # Looking up.

    def count_look_up(self, request: FastRequest, tokens: int) -> None:
        """Statistics; those of preempted requests apart (KV-STAT-1, KV-STAT-2)."""
        if request.preemptions > 0:
            self.again_requests += 1
            self.again_queries += request.num_tokens
            self.again_hits += tokens
        else:
            self.requests += 1
            self.queries += request.num_tokens
            self.hits += tokens

    def blocks_of_hit(self) -> KVCacheBlocks:
        """The hits of the last look-up."""
        found = []
        for g in range(self.num_groups):
            n = self.lookup.hit_blocks[g]
            ids = array("i", bytes(4 * n))
            view = ids
            for i in range(n):
                view[i] = self.lookup.hits[g * self.lookup.stride + i]
            found.append(ids)
        return blocks_of(tuple(found))

    def hit_found(self, tokens: int) -> PrefixHit:
        """The answer of the last look-up, which found so many tokens."""
        uncached = None
        if self.num_groups > 1:
            uncached = self.lookup.longest_tokens - tokens
            if tokens == 0 and uncached > 0:
                return PrefixHit(self.no_blocks, 0, uncached)
        if tokens == 0:
            return self.no_hit
        return hit_of(self.blocks_of_hit(), tokens, uncached)

    # Allocating.

    def place(
        self,
        row: int,
        request: FastRequest,
        new: int,
        lookahead: int,
        local: int,
        external: int,
        skip_at: int,
        encoder: int,
        has_hits: bool,
        whole_must_fit: bool,
        reserved: int,
        watermark: int,
    ) -> int:
        """Give the request its slots: its row, or -1 where there is no room (KV-MGR-4 …)."""
        total = min(local + external, self.max_len)
        main = total + new
        slots = min(main + lookahead, self.max_len)
        is_running = self.allocator.is_running(row)
        if external > 0 and not is_running:
            slots = max(slots, local + external)  # taken beyond the longest sequence too
        free = self.pool.num_free
        if whole_must_fit:  # KV-MGR-5
            whole = min(request.num_tokens, self.max_len)
            at = min(skip_at, self.max_len)
            demand = self.demand.of(whole, whole, local, external, at, encoder)
            if self.allocator.num_needed(row, demand, True) + watermark > free:
                return -1
        self.allocator.remove_skipped(row, min(total, skip_at))  # KV-MGR-6
        demand = self.demand.of(slots, main, local, external, skip_at, encoder)
        needed = self.allocator.num_needed(row, demand, False)
        if needed + watermark > self.pool.num_free - reserved:  # KV-MGR-7
            return -1
        if row < 0:
            row = self.new_row(request)
        if (has_hits or external > 0) and not is_running:
            self.allocator.take_hits(row, demand)
        self.allocator.take_new(row, demand)
        return row

    def new_blocks(self, row: int) -> KVCacheBlocks:
        """What the last allocation appended to the lists of the row."""
        total = 0
        for g in range(self.num_groups):
            total += self.tables.length[row * self.num_groups + g] - self.allocator.new_from[g]
        if total == 0:
            return self.no_blocks
        taken = []
        for g in range(self.num_groups):
            taken.append(self.ids_of(row, g, self.allocator.new_from[g]))
        return blocks_of(tuple(taken))

    def ids_of(self, row: int, g: int, first: int) -> Sequence[int]:
        """The blocks of a list from index `first` on, as an array of 32-bit ints."""
        if row < 0:
            return ()
        at = row * self.num_groups + g
        n = self.tables.length[at] - first
        if n <= 0:
            return ()
        start = self.tables.start[at] + first
        ids = array("i", bytes(4 * n))
        view = ids
        for i in range(n):
            view[i] = self.tables.arena[start + i]
        return ids

    def lists_of(self, request: FastRequest) -> KVCacheBlocks:
        """The block list per group."""
        row = self.row_of(request)
        if row < 0:
            return self.no_blocks
        return blocks_of(tuple([self.ids_of(row, g, 0) for g in range(self.num_groups)]))

    # The whole state.

    def snapshot_now(self) -> Snapshot:
        """The whole abstract state."""
        return StateView(self.pool, self.tables, self.allocator).snapshot(
            self.rows,
            none_hash=self.hasher.none_hash,
            hash_block_size=self.hash_block_size,
            popped=self.popped,
            reserved=self.reserved,
        )

    def copy_into(self, copy: Core) -> None:
        """Let a fresh manager be an independent copy, with what is queued and counted."""
        copy.hasher = self.hasher
        if self.residency is not None:
            copy.residency = self.residency.copy()
            copy.pool.residency = copy.residency
        copy.adopt(self.snapshot_now())
        copy.hasher = self.hasher
        if self.events is not None and copy.events is not None:
            copy.events.facts = list(self.events.facts)
        copy.was_reset = self.was_reset
        copy.requests, copy.queries, copy.hits = self.requests, self.queries, self.hits
        copy.again_requests, copy.again_queries = self.again_requests, self.again_queries
        copy.again_hits = self.again_hits

    def take_over(self, snapshot: Snapshot) -> None:
        """Take over a state in which every invariant holds; this manager is as it was made."""
        self.enter()
        try:
            check_restorable(self.config, snapshot)
            if self.tables.num_rows:
                num_rows = self.tables.num_rows
                raise InvalidArgumentError("manager", num_rows, "one that was not used yet")
            self.turn.changes()
            self.adopt(snapshot)
            self.turn.changed()
        finally:
            self.leave()

    def adopt(self, snapshot: Snapshot) -> None:
        """`take_over` of what a manager showed itself."""
        if snapshot.none_hash != self.hasher.none_hash:
            self.hasher = hasher_of(self.config)
            self.hasher.set_none_hash(snapshot.none_hash)
        view = StateView(self.pool, self.tables, self.allocator)
        self.rows = view.restore(snapshot, self.hash_block_size)
        for block in snapshot.popped_blocks:
            self.popped[block] = self.popped.get(block, 0) + 1


def blocks_of(groups: tuple[Sequence[int], ...]) -> KVCacheBlocks:
    """`KVCacheBlocks(groups)`, whose own way of being made takes longer than a short look-up."""
    made = KVCacheBlocks.__new__(KVCacheBlocks)
    made.__dict__["groups"] = groups
    return made


def hit_of(blocks: KVCacheBlocks, length_tokens: int, uncached_tokens: int | None) -> PrefixHit:
    """`PrefixHit`, for the same reason."""
    made = PrefixHit.__new__(PrefixHit)
    fields = made.__dict__
    fields["blocks"] = blocks
    fields["hit_length_tokens"] = length_tokens
    fields["uncached_common_prefix_tokens"] = uncached_tokens
    return made


def hasher_of(config: ManagerConfig) -> Hasher:
    """The hasher that a configuration asks for (KV-POL-10)."""
    tags = config.policy.extra_keys == "tagged"
    return Hasher(config.hash_function, config.hash_seed, tags)


def shape_of(plan: Plan) -> Shape:
    """The groups as the core sees them."""
    retention = plan.config.retention_interval_tokens
    return Shape(
        plan.groups,
        plan.attention,
        alignment=plan.alignment_tokens,
        retention=-1 if retention is None else retention,
        null_prefix_is_hit=plan.config.policy.chunked_null_prefix_is_hit,
    )
