"""The manager: the one boundary where calls are checked, and what each of them does (KV-MGR-*)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from kvfast.events import as_events
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
from .extra_keys import extra_keys
from .request import FastRequest


class FastManager(Checked):
    """What each call does; `kvspec.interface.KVCacheManager` says what, `guarded` makes it public.

    All checks of a call, and what is read of its arguments, come before `turn.changes`. An answer
    that is made after it is part of the change.
    """

    # Looking up.

    def do_get_computed_blocks(self, request: Request) -> PrefixHit:
        """The longest cached prefix, the last token left out (KV-MGR-1, KV-MGR-2)."""
        mine = self.claim(request)
        self.check_scheduling(mine)
        if not self.enable_caching or mine.input.skip_reading_cache:
            return self.not_looked_up
        tokens = self.lookup.longest_hit(mine, mine.num_tokens - 1)
        found = self.hit_found(tokens)
        if self.log_stats:
            self.turn.changes()
            self.count_look_up(mine, tokens)
            self.turn.changed()
        return found

    def do_find_longest_cache_hit_per_group(
        self, request: Request, max_hit_length_tokens: int
    ) -> GroupHits:
        """Each group's own longest hit: only with several groups and caching (KV-COORD-9)."""
        length = self.counted("max_hit_length_tokens", max_hit_length_tokens)
        mine = self.claim(request)
        if not self.plan.is_hybrid:
            raise UnsupportedError("per-group look-ups with fewer than two cached groups", "kvfast")
        self.lookup.hits_per_group(mine, min(length, mine.num_tokens))
        lengths = [
            self.lookup.hit_blocks[g] * self.shape.block_size[g] for g in range(self.num_groups)
        ]
        return GroupHits(self.blocks_of_hit(), tuple(lengths))

    # Allocating.

    def do_allocate_slots(
        self,
        request: Request,
        num_new_tokens: int,
        num_new_computed_tokens: int,
        new_computed_blocks: KVCacheBlocks | None,
        num_lookahead_tokens: int,
        num_external_computed_tokens: int,
        delay_cache_blocks: bool,
        num_encoder_tokens: int,
        full_sequence_must_fit: bool,
        reserved_blocks: int,
        has_scheduled_reqs: bool,
    ) -> KVCacheBlocks | None:
        """Room for tokens about to be computed, or None (KV-MGR-3 … KV-MGR-10)."""
        self.ask_clock()
        self.check_flag("delay_cache_blocks", delay_cache_blocks)
        self.check_flag("full_sequence_must_fit", full_sequence_must_fit)
        self.check_flag("has_scheduled_reqs", has_scheduled_reqs)
        return self.grant(
            self.claim(request),
            self.copied_hits(new_computed_blocks),
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
        hits: list[Any] | None,
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
        num_hits = self.offer(hits)
        self.check_scheduling(request)
        computed = self.computed_of(request)
        row = self.row_of(request)
        self.check_has_slots(row, computed)
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
        self.turn.changes()
        row = self.place(
            row, request, new, lookahead, local, external, skip_at, encoder, num_hits > 0,
            whole_must_fit, reserved, watermark,
        )  # fmt: skip
        answer = None
        if row >= 0:
            if caches:  # KV-MGR-10
                verified = min(min(local + external, self.max_len) + new, request.num_tokens)
                self.allocator.cache(row, request, min(verified, self.max_len))
            answer = self.new_blocks(row)
        self.turn.changed()
        return answer

    def do_get_num_blocks_to_allocate(
        self,
        request: Request,
        num_tokens: int,
        total_computed_tokens: int,
        num_tokens_main_model: int,
        num_encoder_tokens: int,
        apply_admission_cap: bool,
    ) -> int:
        """Free blocks the request would take, without a new hit (KV-MGR-18)."""
        tokens = self.counted("num_tokens", num_tokens)
        computed = self.counted("total_computed_tokens", total_computed_tokens)
        main = self.counted("num_tokens_main_model", num_tokens_main_model)
        encoder = self.counted("num_encoder_tokens", num_encoder_tokens)
        self.check_flag("apply_admission_cap", apply_admission_cap)
        capped = apply_admission_cap
        row = self.row_of(self.claim(request))
        self.lookup.clear()
        demand = self.demand.of(tokens, main, computed, 0, computed, encoder)
        # Of many groups they may be more than 64 bits.
        return sum([self.allocator.need_of(g, row, demand, capped) for g in range(self.num_groups)])

    # Caching.

    def do_cache_blocks(self, request: Request, num_computed_tokens: int) -> None:
        """Register full blocks after a delayed load (KV-MGR-11)."""
        mine = self.claim(request)
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
            self.turn.changes()
            self.allocator.cache(row, mine, tokens)
            self.turn.changed()

    def do_cache_partial_block(self, request: Request, group: int, num_tokens: int) -> bool:
        """Make a block reachable at a finer boundary inside it (KV-PART-1)."""
        mine = self.claim(request)
        tokens = self.counted("num_tokens", num_tokens)
        g = self.counted("group", group)
        if g >= self.num_groups:
            raise InvalidArgumentError("group", group, f"an int in 0 … {self.num_groups - 1}")
        size = self.shape.block_size[g]
        hash_size = self.hash_block_size
        if not self.enable_caching or size <= hash_size:
            raise InvalidArgumentError(
                "group", group, "one with caching on and blocks longer than hash blocks"
            )
        row = self.row_of(mine)
        slots = 0
        if row >= 0:
            slots = self.tables.length[row * self.num_groups + g] * size
        limit = min(mine.num_hashes * hash_size, slots)
        if tokens % hash_size or tokens % size == 0 or tokens > limit:
            raise InvalidArgumentError(
                "num_tokens",
                num_tokens,
                f"a multiple of {hash_size}, not of {size}, and at most {limit}",
            )
        self.turn.changes()
        is_cached = self.allocator.cache_partial(row, mine, g, tokens // hash_size - 1)
        self.turn.changed()
        return is_cached

    def do_evict_blocks(self, block_ids: Sequence[int]) -> None:
        """Drop the cached identity of these blocks (KV-POOL-10)."""
        self.ask_clock()
        blocks = self.checked_blocks("block_ids", block_ids)
        self.turn.changes()
        for block in blocks:
            if block:
                self.pool.forget(block)
        self.turn.changed()

    def do_reset_prefix_cache(self) -> bool:
        """Drop every hash, if no block is in use (KV-POOL-11)."""
        if self.pool.num_free != self.pool.num_blocks - 1 - len(self.reserved):
            return False
        self.turn.changes()
        self.pool.reset()
        self.was_reset = True
        self.turn.changed()
        return True

    # Releasing.

    def do_free(self, request: Request) -> None:
        """Release all blocks of the request (KV-MGR-12)."""
        mine = self.claim(request)
        self.turn.changes()
        row = self.forget_row(mine)
        if row >= 0:
            self.allocator.free(row)
            self.tables.give_row(row)
        self.turn.changed()

    def do_pop_blocks_for_free(self, request: Request) -> tuple[int, ...]:
        """Forget the request, keep its references for `free_blocks` (KV-MGR-13)."""
        mine = self.claim(request)
        row = self.row_of(mine)
        if row < 0:
            return ()
        ids: list[int] = []
        for g in range(self.num_groups):
            ids.extend(self.ids_of(row, g, 0))
        answer = tuple(ids)
        self.turn.changes()
        for block in ids:
            if block:
                self.popped[block] = self.popped.get(block, 0) + 1
        self.forget_row(mine)
        self.tables.clear_row(row)
        self.tables.give_row(row)
        self.turn.changed()
        return answer

    def do_free_blocks(self, block_ids: Sequence[int]) -> None:
        """Return popped references, in one release call (KV-MGR-13, KV-POOL-9)."""
        blocks = self.checked_blocks("block_ids", block_ids)
        counts: dict[int, int] = {}
        for block in blocks:
            if block:
                counts[block] = counts.get(block, 0) + 1
        for block, count in counts.items():
            held = self.popped.get(block, 0)
            if count > held:
                raise BlockReleaseError(block, count, held)
        self.turn.changes()
        for block, count in counts.items():
            if self.popped[block] == count:
                del self.popped[block]
            else:
                self.popped[block] -= count
        left = 0
        for block in blocks:
            if block:
                left = self.pool.drop_ref(block, left)
        self.turn.changed()

    def do_remove_skipped_blocks(self, request: Request, total_computed_tokens: int) -> None:
        """Release what attention no longer needs (KV-MGR-14)."""
        computed = self.counted("total_computed_tokens", total_computed_tokens)
        row = self.row_of(self.claim(request))
        self.turn.changes()
        self.allocator.remove_skipped(row, computed)
        self.turn.changed()

    # Asking.

    def do_get_num_common_prefix_blocks(self, request: Request) -> tuple[int, ...]:
        """Per group, leading blocks that all running requests share (KV-MGR-15)."""
        row = self.row_of(self.claim(request))
        if not self.enable_caching:
            return (0,) * self.num_groups
        return tuple([self.allocator.num_common_prefix(row, g) for g in range(self.num_groups)])

    def do_get_blocks(self, request: Request) -> KVCacheBlocks:
        """The block list per group."""
        return self.lists_of(self.claim(request))

    def do_get_unhashed_block_ids(self, request: Request) -> tuple[tuple[int, ...], ...]:
        """Per group, blocks that are neither null nor cached."""
        return tuple(
            [
                tuple([block for block in ids if block and not self.pool.is_cached(block)])
                for ids in self.lists_of(self.claim(request)).groups
            ]
        )

    def do_take_events(self) -> tuple[Event, ...]:
        """Events since the last call (KV-EVT-1)."""
        if self.events is None:
            return ()
        facts = self.events.facts
        taken = as_events(facts, self.config, extra_keys)
        facts.clear()
        return taken

    def do_take_new_block_ids(self) -> tuple[int, ...]:
        """Blocks to be zeroed, group by group (KV-MGR-16)."""
        queued = self.allocator.zero_queue()
        taken = tuple([block for blocks in queued for block in blocks])
        self.allocator.num_to_zero = 0
        return taken

    def do_make_prefix_cache_stats(self) -> PrefixCacheStats | None:
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
        self.turn.changes()
        self.clear_stats()
        self.turn.changed()
        return stats

    def do_take_residency_samples(self) -> tuple[ResidencySample, ...]:
        """Lives of sampled blocks that ended (KV-STAT-6)."""
        return self.residency.take() if self.residency is not None else ()

    def do_new_step_starts(self) -> None:
        """States registered in the last step may be used now (KV-MGR-19)."""
        self.turn.changes()
        self.allocator.forget_step()
        self.turn.changed()

    def do_append_tokens(self, request: Request, token_ids: Sequence[int]) -> None:
        """Append tokens to a request of this manager (KV-REQ-2)."""
        self.own(request).append_in(token_ids, self.turn)

    # Copies.

    def do_snapshot(self) -> Snapshot:
        """The whole abstract state."""
        return self.snapshot_now()
