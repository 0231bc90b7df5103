"""The manager: the one boundary where calls are checked, and what each of them does (KV-MGR-*)."""

from __future__ import annotations

from collections.abc import Sequence

from kvfast.events import as_events
from kvspec._check import int_at_least, is_int
from kvspec.blocks import GroupHits, KVCacheBlocks, PrefixHit
from kvspec.errors import (
    BlockReleaseError,
    InvalidArgumentError,
    UnsupportedError,
)
from kvspec.events import Event
from kvspec.request import Request
from kvspec.snapshot import Snapshot
from kvspec.stats import PrefixCacheStats, ResidencySample

from .checked import Checked
from .core import blocks_of, hit_of
from .request import FastRequest
from .state import StateView


class FastManager(Checked):
    """See `kvspec.interface.KVCacheManager` for what each call promises."""

    # Looking up.

    def get_computed_blocks(self, request: Request) -> PrefixHit:
        """The longest cached prefix, the last token left out (KV-MGR-1, KV-MGR-2)."""
        mine = self.own(request)
        self.check_scheduling(mine)
        if not self.enable_caching or mine.input.skip_reading_cache:
            return self.not_looked_up
        tokens = self.lookup.longest_hit(mine, mine.num_tokens - 1)
        if self.log_stats:
            self.count_look_up(mine, tokens)
        uncached = None
        if self.num_groups > 1:
            uncached = self.lookup.longest_tokens - tokens
            if tokens == 0 and uncached > 0:
                return PrefixHit(self.no_blocks, 0, uncached)
        if tokens == 0:
            return self.no_hit
        return hit_of(self.blocks_of_hit(), tokens, uncached)

    def find_longest_cache_hit_per_group(
        self, request: Request, max_hit_length_tokens: int
    ) -> GroupHits:
        """Each group's own longest hit: only with several groups and caching (KV-COORD-9)."""
        length = self.counted("max_hit_length_tokens", max_hit_length_tokens)
        mine = self.own(request)
        if not self.plan.is_hybrid:
            raise UnsupportedError("per-group look-ups with fewer than two cached groups", "kvfast")
        self.lookup.hits_per_group(mine, min(length, mine.num_tokens))
        lengths = [
            self.lookup.hit_blocks[g] * self.shape.block_size[g] for g in range(self.num_groups)
        ]
        return GroupHits(self.blocks_of_hit(), tuple(lengths))

    # Allocating.

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
        """Room for tokens about to be computed, or None (KV-MGR-3 … KV-MGR-10)."""
        self.check_flag("delay_cache_blocks", delay_cache_blocks)
        self.check_flag("full_sequence_must_fit", full_sequence_must_fit)
        self.check_flag("has_scheduled_reqs", has_scheduled_reqs)
        return self.grant(
            self.own(request),
            new_computed_blocks,
            self.counted("num_new_tokens", num_new_tokens),
            self.counted("num_new_computed_tokens", num_new_computed_tokens),
            self.counted("num_lookahead_tokens", num_lookahead_tokens),
            self.counted("num_external_computed_tokens", num_external_computed_tokens),
            self.counted("num_encoder_tokens", num_encoder_tokens),
            self.counted("reserved_blocks", reserved_blocks),
            self.enable_caching and not delay_cache_blocks,
            full_sequence_must_fit,
            has_scheduled_reqs,
        )

    def grant(
        self,
        request: FastRequest,
        blocks: KVCacheBlocks | None,
        new: int,
        new_computed: int,
        lookahead: int,
        external: int,
        encoder: int,
        reserved: int,
        caches: bool,
        whole_must_fit: bool,
        is_beside_others: bool,
    ) -> KVCacheBlocks | None:
        """`allocate_slots` with C types: the rest of the checks, then the allocation."""
        if new == 0 and external == 0:  # KV-MGR-3
            raise InvalidArgumentError("num_new_tokens", 0, "at least 1 without external tokens")
        self.check_scheduling(request)
        computed = self.computed_of(request)
        row = self.row_of(request)
        self.check_has_slots(row, computed)
        num_hits = self.offer(blocks)
        local = computed + new_computed
        most = self.max_len - min(local + external, self.max_len)
        if new > most:  # KV-MGR-4
            allowed = f"at most {most}: no token has a slot beyond {self.max_len}"
            raise InvalidArgumentError("num_new_tokens", new, allowed)
        skip_at = local + external
        if external > 0:
            # After a load the last token is computed again: its window must stay.
            skip_at = min(skip_at, request.num_tokens - 1)
        if row >= 0:
            self.check_continues(row, num_hits, new_computed, external)
        if num_hits or new_computed:
            self.check_hits(request, new_computed, external, skip_at)
        watermark = self.watermark_for(request) if is_beside_others else 0
        row = self.place(
            row, request, new, lookahead, local, external, skip_at, encoder, num_hits > 0,
            whole_must_fit, reserved, watermark,
        )  # fmt: skip
        if row < 0:
            return None
        if caches:  # KV-MGR-10
            verified = min(min(local + external, self.max_len) + new, request.num_tokens)
            self.allocator.cache(row, request, min(verified, self.max_len))
        return self.new_blocks(row)

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
        """Free blocks the request would take, without a new hit (KV-MGR-18)."""
        tokens = self.counted("num_tokens", num_tokens)
        computed = self.counted("total_computed_tokens", total_computed_tokens)
        main = self.counted("num_tokens_main_model", num_tokens_main_model)
        encoder = self.counted("num_encoder_tokens", num_encoder_tokens)
        self.check_flag("apply_admission_cap", apply_admission_cap)
        capped = apply_admission_cap
        row = self.row_of(self.own(request))
        self.lookup.clear()
        self.allocator.ask_for(tokens, main, computed, 0, computed, encoder)
        # Of many groups they may be more than 64 bits.
        return sum([self.allocator.need_of(g, row, capped) for g in range(self.num_groups)])

    # Caching.

    def cache_blocks(self, request: Request, num_computed_tokens: int) -> None:
        """Register full blocks after a delayed load (KV-MGR-11)."""
        mine = self.own(request)
        tokens = self.counted("num_computed_tokens", num_computed_tokens)
        row = self.row_of(mine)
        if not self.allocator.holds_blocks(row):
            return  # KV-ERR-4
        limit = mine.num_tokens
        for g in range(self.num_groups):
            if self.shape.holds_tokens(g):
                held = self.tables.length[row * self.num_groups + g]
                limit = min(limit, held * self.shape.block_size[g])
        if tokens > limit:
            raise InvalidArgumentError(
                "num_computed_tokens", tokens, f"at most {limit}, the tokens that have slots"
            )
        if self.enable_caching:
            self.allocator.cache(row, mine, tokens)

    def cache_partial_block(self, request: Request, group: int, num_tokens: int) -> bool:
        """Make a block reachable at a finer boundary inside it (KV-PART-1)."""
        mine = self.own(request)
        if not is_int(group) or not 0 <= group < self.num_groups:
            raise InvalidArgumentError("group", group, f"an int in 0 … {self.num_groups - 1}")
        size = self.shape.block_size[group]
        hash_size = self.hash_block_size
        if not self.enable_caching or size <= hash_size:
            raise InvalidArgumentError(
                "group", group, "one with caching on and blocks longer than hash blocks"
            )
        row = self.row_of(mine)
        slots = 0
        if row >= 0:
            slots = self.tables.length[row * self.num_groups + group] * size
        limit = min(mine.num_hashes * hash_size, slots)
        int_at_least("num_tokens", num_tokens, 1, error=InvalidArgumentError)
        if num_tokens % hash_size or num_tokens % size == 0 or num_tokens > limit:
            raise InvalidArgumentError(
                "num_tokens",
                num_tokens,
                f"a multiple of {hash_size}, not of {size}, and at most {limit}",
            )
        return self.allocator.cache_partial(row, mine, group, num_tokens // hash_size - 1)

    def evict_blocks(self, block_ids: Sequence[int]) -> None:
        """Drop the cached identity of these blocks (KV-POOL-10)."""
        for block in self.checked_blocks(block_ids):
            if block:
                self.pool.forget(block)

    def reset_prefix_cache(self) -> bool:
        """Drop every hash, if no block is in use (KV-POOL-11)."""
        if self.pool.num_free != self.pool.num_blocks - 1 - len(self.reserved):
            return False
        self.pool.reset()
        self.was_reset = True
        return True

    # Releasing.

    def free(self, request: Request) -> None:
        """Release all blocks of the request (KV-MGR-12)."""
        row = self.forget_row(self.own(request))
        if row >= 0:
            self.allocator.free(row)
            self.tables.give_row(row)

    def pop_blocks_for_free(self, request: Request) -> tuple[int, ...]:
        """Forget the request, keep its references for `free_blocks` (KV-MGR-13)."""
        row = self.forget_row(self.own(request))
        if row < 0:
            return ()
        ids: list[int] = []
        for g in range(self.num_groups):
            ids.extend(self.ids_of(row, g, 0))
        for block in ids:
            if block:
                self.popped[block] = self.popped.get(block, 0) + 1
        self.tables.clear_row(row)
        self.tables.give_row(row)
        return tuple(ids)

    def free_blocks(self, block_ids: Sequence[int]) -> None:
        """Return popped references, in one release call (KV-MGR-13, KV-POOL-9)."""
        blocks = self.checked_blocks(block_ids)
        counts: dict[int, int] = {}
        for block in blocks:
            if block:
                counts[block] = counts.get(block, 0) + 1
        for block, count in counts.items():
            held = self.popped.get(block, 0)
            if count > held:
                raise BlockReleaseError(block, count, held)
        for block, count in counts.items():
            if self.popped[block] == count:
                del self.popped[block]
            else:
                self.popped[block] -= count
        left = 0
        for block in blocks:
            if block:
                left = self.pool.drop_ref(block, left)

    def remove_skipped_blocks(self, request: Request, total_computed_tokens: int) -> None:
        """Release what attention no longer needs (KV-MGR-14)."""
        computed = self.counted("total_computed_tokens", total_computed_tokens)
        self.allocator.remove_skipped(self.row_of(self.own(request)), computed)

    # Asking.

    def get_num_common_prefix_blocks(self, request: Request) -> tuple[int, ...]:
        """Per group, leading blocks that all running requests share (KV-MGR-15)."""
        row = self.row_of(self.own(request))
        if not self.enable_caching:
            return (0,) * self.num_groups
        return tuple([self.allocator.num_common_prefix(row, g) for g in range(self.num_groups)])

    def get_blocks(self, request: Request) -> KVCacheBlocks:
        """The block list per group."""
        row = self.row_of(self.own(request))
        if row < 0:
            return self.no_blocks
        return blocks_of(tuple([self.ids_of(row, g, 0) for g in range(self.num_groups)]))

    def get_unhashed_block_ids(self, request: Request) -> tuple[tuple[int, ...], ...]:
        """Per group, blocks that are neither null nor cached."""
        return tuple(
            [
                tuple([block for block in ids if block and not self.pool.is_cached(block)])
                for ids in self.get_blocks(request).groups
            ]
        )

    def take_events(self) -> tuple[Event, ...]:
        """Events since the last call (KV-EVT-1)."""
        if self.events is None:
            return ()
        return as_events(self.events.take(), self.plan)

    def take_new_block_ids(self) -> tuple[int, ...]:
        """Blocks to be zeroed, group by group (KV-MGR-16)."""
        taken = self.allocator.zero_queue()
        self.allocator.num_to_zero = 0
        return tuple([block for blocks in taken for block in blocks])

    def make_prefix_cache_stats(self) -> PrefixCacheStats | None:
        """Look-up counters since the last call (KV-STAT-3)."""
        if not self.log_stats:
            return None
        stats = PrefixCacheStats(
            self.was_reset,
            self.requests,
            self.queries,
            self.hits,
            self.again_requests,
            self.again_queries,
            self.again_hits,
        )
        self.clear_stats()
        return stats

    def take_residency_samples(self) -> tuple[ResidencySample, ...]:
        """Lives of sampled blocks that ended (KV-STAT-6)."""
        return self.residency.take() if self.residency is not None else ()

    def new_step_starts(self) -> None:
        """States registered in the last step may be used now (KV-MGR-19)."""
        self.allocator.forget_step()

    def append_tokens(self, request: Request, token_ids: Sequence[int]) -> None:
        """Append tokens to a request of this manager (KV-REQ-2)."""
        self.own(request).append(token_ids)

    # Copies.

    def clone(self) -> FastManager:
        """An independent copy, queued events and statistics included."""
        copy = FastManager(self.plan, None)
        copy.hasher = self.hasher
        if self.residency is not None:
            copy.residency = self.residency.copy()
            copy.pool.residency = copy.residency
        copy.take_over(self.snapshot())
        copy.hasher = self.hasher
        if self.events is not None and copy.events is not None:
            copy.events.facts = list(self.events.facts)
        copy.was_reset = self.was_reset
        copy.requests, copy.queries, copy.hits = self.requests, self.queries, self.hits
        copy.again_requests, copy.again_queries = self.again_requests, self.again_queries
        copy.again_hits = self.again_hits
        return copy

    def snapshot(self) -> Snapshot:
        """The whole abstract state."""
        return StateView(self.pool, self.tables, self.allocator).snapshot(
            self.rows,
            none_hash=self.hasher.none_hash,
            hash_block_size=self.hash_block_size,
            popped=self.popped,
            reserved=self.reserved,
        )
