"""The parts of a manager put together, and what calls do once they have been checked."""

from __future__ import annotations

import time
from array import array
from collections.abc import Callable, Sequence

from kvfast.residency import ResidencyLog
from kvspec.blocks import BlockFacts, KVCacheBlocks, PrefixHit
from kvspec.columns import Columns
from kvspec.config import ManagerConfig
from kvspec.errors import ConfigError
from kvspec.inside import BlockCopies
from kvspec.policy import NONE_HASH_TEXT

from . import reports
from .allocator import Allocator
from .columns import PoolColumns
from .demand import Asked, Demand
from .event_log import EventLog
from .hashing import Hasher
from .inside import Inside
from .inside_lookup import InsideLookup
from .lookup import Lookup
from .plan import Plan
from .pool import BlockPool
from .request import FastRequest
from .rows import Rows
from .shape import shape_of
from .state import StateView
from .stats import LookUpStats
from .tables import Tables


class Core:
    """One pool, its groups, and the requests that hold something. It trusts its callers.

    `popped`: references per block that were popped or held, and not yet returned
    (KV-POOL-9, KV-POOL-19).
    `reserved`: blocks that were taken for good.
    """

    def __init__(self, plan: Plan, clock: Callable[[], int] | None) -> None:
        config: ManagerConfig = plan.config
        self.plan = plan
        self.hasher = hasher_of(config)
        self.is_given = self.hasher.is_given
        self.num_groups = len(plan.groups)
        self.max_len = config.max_model_len_tokens
        self.enable_caching = config.enable_caching
        self.watermark = int(config.watermark * config.kv_cache.num_blocks)  # KV-MGR-9
        self.hash_block_size = config.hash_block_size_tokens or 1
        self.num_last = max(1, config.hash_lookahead_tokens)  # KV-HASH-15
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
            order=config.order,
        )
        self.tables = Tables(self.num_groups)
        self.rows = Rows(self.tables)
        self.lookup = Lookup(self.shape, self.pool)
        self.allocator = Allocator(
            self.shape,
            self.pool,
            self.tables,
            self.lookup,
            self.events,
            rounds_down=plan.is_hybrid,
        )
        self.inside: Inside | None = None
        self.inside_lookup: InsideLookup | None = None
        if plan.looks_inside:
            unit = self.hash_block_size
            steps = [group.export_step_tokens for group in plan.groups]
            self.inside = Inside(self.allocator, steps, unit)
            self.inside_lookup = InsideLookup(self.shape, self.pool, self.lookup, unit)
        self.asked = Asked()
        self.demand = Demand()
        self.stats = LookUpStats()
        self.log_stats = config.log_stats
        self.reports_asked = config.enable_events and config.policy.hits_reported == "asked"
        self.reports_admitted = config.enable_events and not self.reports_asked
        self.counts_admitted = config.policy.lookups_counted == "admitted"
        self.cuts_caching = config.policy.caching_beyond_tokens == "cut"
        self.shows_leading_nulls = config.policy.popped_leading_nulls
        self.counts_common = config.enable_caching and config.policy.counts_common_prefix
        self.popped: dict[int, int] = {}
        self.reserved: list[int] = []
        self.no_blocks = KVCacheBlocks.empty(self.num_groups)
        self.no_hit = PrefixHit(self.no_blocks, 0, 0 if plan.is_hybrid else None)
        self.not_looked_up = PrefixHit(self.no_blocks, 0)
        self.ask_clock()
        self.set_sinks_aside()

    def ask_clock(self) -> None:
        """Read the clock once for the whole call, before it changes anything (KV-STAT-6)."""
        if self.residency is not None:
            self.residency.ask()

    def set_sinks_aside(self) -> None:
        """Take blocks for good, before the first request (KV-FULL-8)."""
        for group in self.plan.groups:
            free = self.pool.num_free
            if group.num_sink_blocks > free:
                raise ConfigError("sink_len", group.num_sink_blocks, f"at most {free} blocks")
            for _ in range(group.num_sink_blocks):
                self.reserved.append(self.pool.take())

    # Looking up.

    def blocks_of_hit(self) -> KVCacheBlocks:
        """Return the hits of the last look-up."""
        found = []
        for g in range(self.num_groups):
            n = self.lookup.hit_blocks[g]
            ids = array("i", bytes(4 * n))
            view = ids
            for i in range(n):
                view[i] = self.lookup.hits[g * self.lookup.stride + i]
            found.append(ids)
        return blocks_of(tuple(found))

    def longest_hit(self, request: FastRequest, max_tokens: int) -> int:
        """Return the longest hit in tokens; its blocks are in the look-up."""
        if self.inside_lookup is not None:
            return self.inside_lookup.longest_hit(request, max_tokens)
        return self.lookup.longest_hit(request, max_tokens)

    def hit_found(self, tokens: int) -> PrefixHit:
        """Return the result of the last look-up, which found `tokens` tokens."""
        uncached = None
        if self.num_groups > 1:
            uncached = self.lookup.longest_tokens - tokens
            if tokens == 0 and uncached > 0:
                return PrefixHit(self.no_blocks, 0, uncached)
        if tokens == 0:
            return self.no_hit
        return hit_of(self.blocks_of_hit(), tokens, uncached)

    # Allocating and releasing.

    def forget_step(self) -> None:
        """Make blocks registered and written by the last step available (KV-MGR-19)."""
        self.allocator.forget_step()
        if self.inside is not None:
            self.inside.written.clear()
        if self.pool.order is not None and self.pool.order.num_steps:  # KV-ORD-5
            self.pool.order.now += 1
            block = self.pool.order.too_old()
            while block:
                self.pool.drop_keys(block)
                block = self.pool.order.too_old()

    def watermark_for(self, request: FastRequest) -> int:
        """Return the blocks to keep free when this request is admitted beside others (KV-MGR-9)."""
        if self.watermark == 0 or request.state is request.running:
            return 0
        return 0 if request.state == request.running else self.watermark

    def place(self, row: int, request: FastRequest, asked: Asked) -> int:
        """Allocate the request's slots; returns its row, or -1 if there is no room (KV-MGR-4 …)."""
        local, external, skip_at = asked.local, asked.external, asked.skip_at
        total = min(local + external, self.max_len)
        main = total + asked.new
        slots = min(main + asked.lookahead, self.max_len)
        is_running = self.allocator.is_running(row)
        if external > 0 and not is_running:
            slots = max(slots, local + external)  # taken beyond the longest sequence too
        free = self.pool.num_free
        if asked.whole_must_fit:  # KV-MGR-5
            whole = min(request.num_tokens, self.max_len)
            at = min(skip_at, self.max_len)
            demand = self.demand.of(whole, whole, local, external, at, asked.encoder)
            if self.num_needed(row, request, demand, True) + asked.watermark > free:
                return -1
        processed = max(min(total, skip_at) - request.in_flight, 0)  # KV-MGR-21
        self.allocator.remove_skipped(row, processed, request.num_prompt_tokens)  # KV-MGR-6
        demand = self.demand.of(slots, main, local, external, skip_at, asked.encoder)
        needed = self.num_needed(row, request, demand, False)
        if needed + asked.watermark > self.pool.num_free - asked.reserved:  # KV-MGR-7
            return -1
        if asked.has_hits and self.reports_admitted:  # KV-EVT-12
            reports.report_hit(self.events, self.lookup, request, local)
        if row < 0:
            row = self.rows.add(request)
        takes_hits = (asked.has_hits or external > 0) and not is_running
        if self.inside is not None:
            self.inside.take(row, request, demand, takes_hits)
            return row
        if takes_hits:
            self.allocator.take_hits(row, demand, request.priority)
        self.allocator.take_new(row, demand)
        return row

    def num_needed(self, row: int, request: FastRequest, demand: Demand, capped: bool) -> int:
        """Free blocks that all groups together would take, or more than there are; pure."""
        if self.inside is not None:
            return self.inside.num_needed(row, request, demand, capped)
        return self.allocator.num_needed(row, demand, capped)

    def cache(self, row: int, request: FastRequest, tokens: int, allocates: bool) -> None:
        """Register what is full among the first tokens (KV-GRP-11).

        `allocates`: it is the call of the allocation that took the blocks.
        """
        if self.inside is not None:
            self.inside.cache(row, request, tokens, allocates)
        else:
            self.allocator.cache(row, request, tokens)

    def release(self, request: FastRequest) -> None:
        """Release all blocks of the request (KV-MGR-12)."""
        row = self.rows.forget(request)
        if row >= 0:
            self.allocator.free(row)
            self.tables.give_row(row)

    def pop(self, request: FastRequest, row: int, ids: list[int]) -> None:
        """Forget the request, whose row has these blocks; keep its references (KV-MGR-13)."""
        for block in ids:
            if block:
                self.popped[block] = self.popped.get(block, 0) + 1
        self.rows.forget(request)
        self.tables.clear_row(row)
        self.tables.give_row(row)

    def hold(self, blocks: list[int]) -> None:
        """Take a reference to each of these blocks (KV-POOL-19)."""
        pool = self.pool
        for block in blocks:
            if block == 0:
                continue
            if pool.refs(block) == 0:
                if pool.order is not None:
                    pool.order.leave(block)
                pool.unlink(block)
            pool.set_refs(block, pool.refs(block) + 1)
            if self.residency is not None:
                self.residency.touched(block)
            self.popped[block] = self.popped.get(block, 0) + 1

    def facts_of(self, block: int) -> BlockFacts:
        """Return the facts about a block (KV-POOL-20)."""
        keys = self.pool.keys
        if not keys.is_added(block):
            return BlockFacts(self.pool.refs(block), None, None)
        return BlockFacts(self.pool.refs(block), keys.hash_of(block), keys.group_of(block))

    def give_back(self, blocks: list[int], counts: dict[int, int]) -> None:
        """Return popped references, `counts` of each block, in one release call (KV-POOL-9)."""
        for block, count in counts.items():
            if self.popped[block] == count:
                del self.popped[block]
            else:
                self.popped[block] -= count
        left = 0
        for block in blocks:
            if block:
                left = self.pool.drop_ref(block, left)

    # Results.

    def new_blocks(self, row: int) -> KVCacheBlocks:
        """Return the blocks that the last allocation appended to the row's lists, or copied to."""
        total = 0
        for g in range(self.num_groups):
            total += self.tables.length[row * self.num_groups + g] - self.allocator.new_from[g]
        if total == 0 and self.inside is None:
            return self.no_blocks
        taken = []
        for g in range(self.num_groups):
            taken.append(self.ids_of(row, g, self.allocator.new_from[g]))
        if self.inside is not None:
            self.inside.put_first(taken)
        return blocks_of(tuple(taken))

    def take_block_copies(self) -> BlockCopies:
        """Return the copies since the last call; the caller releases their ends."""
        return BlockCopies() if self.inside is None else self.inside.take_copies(self.popped)

    def first_held(self, row: int, g: int) -> int:
        """Return the index of the first entry of a list that is not null (KV-POL-14)."""
        at = row * self.num_groups + g
        i = 0
        while i < self.tables.length[at] and self.tables.arena[self.tables.start[at] + i] == 0:
            i += 1
        return i

    def num_common_prefix(self, row: int, g: int) -> int:
        """Count the leading blocks referenced once by every request of the group (KV-FULL-7)."""
        if row < 0 or not self.shape.is_full(g):
            return 0
        at = row * self.num_groups + g
        start = self.tables.start[at]
        count = 0
        while (
            count < self.tables.length[at]
            and self.tables.arena[start + count]  # R-SWA has null after the prompt
            and self.pool.refs(self.tables.arena[start + count]) == self.tables.num_nonempty[g]
        ):
            count += 1
        return count

    def ids_of(self, row: int, g: int, first: int) -> Sequence[int]:
        """Return the blocks of a list from index `first` on, as an array of 32-bit ints."""
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
        """Return the block list per group."""
        row = self.rows.of(request)
        if row < 0:
            return self.no_blocks
        return blocks_of(tuple([self.ids_of(row, g, 0) for g in range(self.num_groups)]))

    # The whole state.

    def columns(self) -> Columns:
        """Return the whole abstract state as columns."""
        view = StateView(self.pool, self.tables, self.allocator, self.inside)
        rest = view.rest(self.rows.by_id, self.hasher.none_hash, self.popped, self.reserved)
        return PoolColumns(self.pool, self.tables, self.hash_block_size).shown(rest)

    def copy_into(self, copy: Core) -> None:
        """Let a fresh one be an independent copy, with what is queued and counted."""
        copy.hasher = self.hasher
        if self.residency is not None:
            copy.residency = self.residency.copy()
            copy.pool.residency = copy.residency
        copy.adopt(self.columns())
        if self.events is not None and copy.events is not None:
            copy.events.facts = list(self.events.facts)
        copy.stats.copy_from(self.stats)

    def adopt(self, columns: Columns) -> None:
        """Take over a state; this one is as it was made. Blocks and references are checked."""
        rest = columns.rest
        if rest.none_hash != self.hasher.none_hash:
            self.hasher = hasher_of(self.plan.config)
            self.hasher.set_none_hash(rest.none_hash)
        view = StateView(self.pool, self.tables, self.allocator, self.inside)
        self.rows.by_id = view.restore_rest(rest)
        for block in rest.popped_blocks:
            self.popped[block] = self.popped.get(block, 0) + 1
        filled = PoolColumns(self.pool, self.tables, self.hash_block_size)
        filled.fill(columns, self.popped, self.reserved)


def blocks_of(groups: tuple[Sequence[int], ...]) -> KVCacheBlocks:
    """Make `KVCacheBlocks(groups)`, whose constructor is slower than a short look-up."""
    made = KVCacheBlocks.__new__(KVCacheBlocks)
    made.__dict__["groups"] = groups
    return made


def hit_of(blocks: KVCacheBlocks, length_tokens: int, uncached_tokens: int | None) -> PrefixHit:
    """Make a `PrefixHit`, for the same reason."""
    made = PrefixHit.__new__(PrefixHit)
    fields = made.__dict__
    fields["blocks"] = blocks
    fields["hit_length_tokens"] = length_tokens
    fields["uncached_common_prefix_tokens"] = uncached_tokens
    return made


def hasher_of(config: ManagerConfig) -> Hasher:
    """Return the hasher that a configuration asks for (KV-POL-10, KV-POL-12)."""
    policy, seed = config.policy, config.hash_seed
    is_cryptographic = config.hash_function.startswith("sha256")
    if seed is None and is_cryptographic and policy.none_hash_without_seed == "fixed":
        seed = NONE_HASH_TEXT
    tags = policy.extra_keys == "tagged"
    return Hasher(config.hash_function, seed, tags, config.hash_lookahead_tokens)
