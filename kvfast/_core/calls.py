"""The longer calls of a manager, with arguments that are already read (KV-MGR-*)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from kvfast.events import as_events
from kvspec.blocks import GroupHits, KVCacheBlocks, PrefixHit
from kvspec.domains import HELD_MAX
from kvspec.errors import BlockReleaseError, InvalidArgumentError, UnsupportedError
from kvspec.events import Event
from kvspec.inside import BlockCopies
from kvspec.request import Request
from kvspec.stats import PrefixCacheStats

from . import following, reports
from .checks import Checks
from .core import Core
from .extra_keys import extra_keys
from .request import FastRequest
from .turn import Turn


class Calls:
    """The calls of one manager.

    All checks of a call precede `turn.changes`. A result that is made after it is part of the
    change. `used`: the request of this call, if it has one.
    """

    def __init__(self, core: Core, checks: Checks, turn: Turn) -> None:
        self.core = core
        self.checks = checks
        self.turn = turn
        self.used: FastRequest | None = None

    def claim(self, request: Request) -> FastRequest:
        """Claim the request: no other call may use or change it until this one ends."""
        mine = self.checks.own(request)
        mine.is_used = True
        self.used = mine
        return mine

    def leave(self) -> None:
        """End a call."""
        if self.used is not None:
            self.used.is_used = False
            self.used = None
        self.turn.give_back()

    def look_up(self, request: FastRequest) -> PrefixHit:
        """Return the longest cached prefix, without the last token (KV-MGR-1, KV-MGR-2)."""
        core = self.core
        self.checks.check_scheduling(request)
        if not core.enable_caching or request.skips_reading:
            return core.not_looked_up
        tokens = core.longest_hit(request, max(request.num_tokens - core.num_last, 0))
        found = core.hit_found(tokens)
        if core.reports_asked and tokens > 0:  # KV-POL-25
            self.turn.changes()
            reports.report_hit(core.events, core.lookup, request, tokens)
            self.turn.changed()
        if core.log_stats and not core.counts_admitted:
            self.turn.changes()
            core.stats.count(request, tokens)
            self.turn.changed()
        return found

    def look_up_per_group(self, request: FastRequest, length: int) -> GroupHits:
        """Return each group's own longest hit; needs several groups and caching (KV-COORD-9)."""
        core = self.core
        if not core.plan.is_hybrid:
            raise UnsupportedError("per-group look-ups with fewer than two cached groups", "kvfast")
        length = min(length, max(request.num_tokens - core.shape.ahead, 0))  # KV-HASH-15
        if core.inside_lookup is not None:
            core.inside_lookup.hits_per_group(request, length)
            lengths = [core.inside_lookup.tokens_of(g) for g in range(core.num_groups)]
        else:
            core.lookup.hits_per_group(request, length)
            lengths = [
                core.lookup.hit_blocks[g] * core.shape.block_size[g] for g in range(core.num_groups)
            ]
        return GroupHits(core.blocks_of_hit(), tuple(lengths))

    # What enters a handler stays short: where CPython 3.11 may not allocate, it never gets into one
    # beyond the 256th instruction of a function. So arguments are read here.

    def allocate(
        self,
        request: Request,
        hits: KVCacheBlocks | None,
        new: object,
        new_computed: object,
        lookahead: object,
        external: object,
        encoder: object,
        reserved: object,
        delays: object,
        whole_must_fit: object,
        is_beside_others: object,
    ) -> KVCacheBlocks | None:
        """Run `allocate_slots` on unchecked arguments; each must have its type (KV-ERR-6)."""
        checks, asked = self.checks, self.core.asked
        self.core.ask_clock()
        checks.check_flag("delay_cache_blocks", delays)
        checks.check_flag("full_sequence_must_fit", whole_must_fit)
        checks.check_flag("has_scheduled_reqs", is_beside_others)
        mine, offered = self.claim(request), checks.copied_hits(hits)
        asked.new = checks.counted("num_new_tokens", new)
        num_hit = checks.counted("num_new_computed_tokens", new_computed)
        asked.lookahead = checks.counted("num_lookahead_tokens", lookahead)
        asked.external = checks.counted("num_external_computed_tokens", external)
        asked.encoder = checks.counted("num_encoder_tokens", encoder)
        asked.reserved = checks.counted("reserved_blocks", reserved)
        asked.whole_must_fit = whole_must_fit is True
        caches = self.core.enable_caching and delays is False
        return self.grant(mine, offered, num_hit, caches, is_beside_others is True)

    def need(
        self,
        request: Request,
        num_tokens: object,
        computed_tokens: object,
        main_tokens: object,
        encoder_tokens: object,
        is_capped: object,
    ) -> int:
        """Run `get_num_blocks_to_allocate` on unchecked arguments (KV-MGR-18)."""
        core, checks = self.core, self.checks
        tokens = checks.counted("num_tokens", num_tokens)
        computed = checks.counted("total_computed_tokens", computed_tokens)
        main = checks.counted("num_tokens_main_model", main_tokens)
        encoder = checks.counted("num_encoder_tokens", encoder_tokens)
        checks.check_flag("apply_admission_cap", is_capped)
        capped = is_capped is True
        mine = self.claim(request)
        row = core.rows.of(mine)
        core.lookup.clear()
        demand = core.demand.of(tokens, main, computed, 0, computed, encoder)
        needs: list[int] = []
        for g in range(core.num_groups):
            if core.inside is not None:
                needs.append(core.inside.need_of(g, row, mine, demand, capped))
            else:
                needs.append(core.allocator.need_of(g, row, demand, capped))
        return sum(needs)  # of many groups they may be more than 64 bits

    def grant(
        self,
        request: FastRequest,
        hits: list[Any] | None,
        new_computed: int,
        caches: bool,
        is_beside_others: bool,
    ) -> KVCacheBlocks | None:
        """Check the rest of what `core.asked` has, then allocate (KV-MGR-3 … KV-MGR-10)."""
        core, checks, asked = self.core, self.checks, self.core.asked
        new, external = asked.new, asked.external
        if new == 0 and external == 0 and not (core.shape.replays and new_computed > 0):  # KV-SW-10
            raise InvalidArgumentError("num_new_tokens", 0, "at least 1 without external tokens")
        num_hits = checks.offer(hits)
        checks.check_scheduling(request)
        computed = checks.computed_of(request)
        row = core.rows.of(request)
        checks.check_has_slots(row, request.num_prompt_tokens, computed)
        local = computed + new_computed
        most = core.max_len - min(local + external, core.max_len)
        if new > most:  # KV-MGR-4
            allowed = f"at most {most}: no token has a slot beyond {core.max_len}"
            raise InvalidArgumentError("num_new_tokens", new, allowed)
        skip_at = local + external
        if external > 0:
            # After a load the last token is computed again: its window must stay.
            skip_at = min(skip_at, request.num_tokens - 1)
        if row >= 0:
            checks.check_continues(row, num_hits, new_computed, external)
        if num_hits or new_computed:
            checks.check_hits(request, new_computed, external, skip_at)
        asked.local, asked.skip_at, asked.has_hits = local, skip_at, num_hits > 0
        asked.watermark = core.watermark_for(request) if is_beside_others else 0
        self.turn.changes()
        row = core.place(row, request, asked)
        answer = None
        if row >= 0:
            if caches:  # KV-MGR-10
                verified = min(min(local + external, core.max_len) + new, request.num_tokens)
                core.cache(row, request, min(verified, core.max_len), True)
            answer = core.new_blocks(row)
            request.look_again()
        self.turn.changed()
        return answer

    def follow(
        self, request: Request, num_tokens: int, hashes: Sequence[bytes], num_prompt: int | None
    ) -> None:
        """Set the counts and add the hashes of newly full blocks (KV-REQ-7)."""
        mine = self.claim(request)
        if not mine.is_followed:
            raise InvalidArgumentError("request", mine.request_id, "made by make_followed")
        following.follow_in(mine, num_tokens, hashes, num_prompt, self.turn)

    def cache(self, request: FastRequest, tokens: int) -> None:
        """Register full blocks after a delayed load (KV-MGR-11)."""
        core = self.core
        self.checks.check_junction(request)
        if core.cuts_caching:  # KV-POL-22
            tokens = min(tokens, request.num_tokens)
        row = core.rows.of(request)
        if not core.allocator.holds_blocks(row):
            return  # KV-ERR-4
        limit = request.num_tokens
        for g in range(core.num_groups):
            if core.shape.holds_tokens(g):
                held = core.tables.length[row * core.num_groups + g]
                limit = min(limit, held * core.shape.block_size[g])
        if tokens > limit:
            allowed = f"at most {limit}, the tokens that have slots"
            raise InvalidArgumentError("num_computed_tokens", tokens, allowed)
        if core.enable_caching:
            self.turn.changes()
            core.cache(row, request, tokens, False)
            self.turn.changed()

    def cache_partial(self, request: FastRequest, g: int, tokens: int) -> bool:
        """Make a block reachable at a finer boundary inside it (KV-PART-1)."""
        core = self.core
        if g >= core.num_groups:
            raise InvalidArgumentError("group", g, f"an int in 0 … {core.num_groups - 1}")
        size = core.shape.block_size[g]
        hash_size = core.hash_block_size
        if core.inside is not None and core.shape.is_mamba(g):
            raise InvalidArgumentError("group", g, "one of attention: its states are registered")
        if not core.enable_caching or not core.shape.is_cached(g) or size <= hash_size:
            allowed = "one with caching on and blocks longer than hash blocks"
            raise InvalidArgumentError("group", g, allowed)
        row = core.rows.of(request)
        slots = 0
        if row >= 0:
            slots = core.tables.length[row * core.num_groups + g] * size
        limit = min(request.num_hashes * hash_size, slots)
        if tokens % hash_size or tokens % size == 0 or tokens > limit:
            allowed = f"a multiple of {hash_size}, not of {size}, and at most {limit}"
            raise InvalidArgumentError("num_tokens", tokens, allowed)
        self.turn.changes()
        is_cached = core.allocator.cache_partial(row, request, g, tokens // hash_size - 1)
        self.turn.changed()
        return is_cached

    def reset(self) -> bool:
        core = self.core
        if core.pool.num_free != core.pool.num_blocks - 1 - len(core.reserved):
            return False
        self.turn.changes()
        core.pool.reset()
        core.stats.was_reset = True
        self.turn.changed()
        return True

    def free(self, request: FastRequest) -> None:
        self.turn.changes()
        self.core.release(request)
        self.turn.changed()

    def remove_skipped(self, request: FastRequest, computed: int) -> None:
        self.turn.changes()
        row = self.core.rows.of(request)
        self.core.allocator.remove_skipped(row, computed, request.num_prompt_tokens)
        self.turn.changed()

    def start_step(self) -> None:
        self.turn.changes()
        self.core.forget_step()
        self.turn.changed()

    def pop(self, request: FastRequest) -> tuple[int, ...]:
        """Forget the request, keep its references for `free_blocks` (KV-MGR-13)."""
        core = self.core
        row = core.rows.of(request)
        if row < 0:
            return ()
        ids: list[int] = []
        for g in range(core.num_groups):
            ids.extend(
                core.ids_of(row, g, 0 if core.shows_leading_nulls else core.first_held(row, g))
            )
        answer = tuple(ids)
        self.turn.changes()
        core.pop(request, row, ids)
        self.turn.changed()
        return answer

    def common_prefixes(self, request: FastRequest) -> tuple[int, ...]:
        """Count, per group, the leading blocks that all running requests share (KV-MGR-15)."""
        core = self.core
        row = core.rows.of(request)
        if not core.counts_common:  # KV-POL-15
            return (0,) * core.num_groups
        return tuple([core.num_common_prefix(row, g) for g in range(core.num_groups)])

    def unhashed(self, request: FastRequest) -> tuple[tuple[int, ...], ...]:
        pool = self.core.pool
        return tuple(
            [
                tuple([block for block in ids if block and not pool.is_cached(block)])
                for ids in self.core.lists_of(request).groups
            ]
        )

    def evict(self, blocks: list[int]) -> None:
        """Drop the cached identity of these blocks (KV-POOL-10)."""
        self.turn.changes()
        for block in blocks:
            if block:
                self.core.pool.forget(block)
        self.turn.changed()

    def hold_blocks(self, blocks: list[int]) -> None:
        """Take a reference to each, for `free_blocks` to give back (KV-POOL-19)."""
        popped = self.core.popped
        counts: dict[int, int] = {}
        for block in blocks:
            if block in self.core.reserved:
                raise InvalidArgumentError("block_ids", block, "one that is not set aside")
            if block:
                counts[block] = counts.get(block, 0) + 1
        for block, count in counts.items():
            if count + popped.get(block, 0) > HELD_MAX:  # KV-POOL-21
                raise InvalidArgumentError("block_ids", block, f"held at most {HELD_MAX} times")
        self.turn.changes()
        self.core.hold(blocks)
        self.turn.changed()

    def free_blocks(self, blocks: list[int]) -> None:
        """Return popped references, in one release call (KV-MGR-13, KV-POOL-9)."""
        popped = self.core.popped
        counts: dict[int, int] = {}
        for block in blocks:
            if block:
                counts[block] = counts.get(block, 0) + 1
        for block, count in counts.items():
            held = popped.get(block, 0)
            if count > held:
                raise BlockReleaseError(block, count, held)
        self.turn.changes()
        self.core.give_back(blocks, counts)
        self.turn.changed()

    def take_events(self) -> tuple[Event, ...]:
        """Return the events since the last call (KV-EVT-1)."""
        if self.core.events is None:
            return ()
        facts = self.core.events.facts
        taken = as_events(facts, self.core.plan.config, extra_keys)
        facts.clear()
        return taken

    def take_block_copies(self) -> BlockCopies:
        """Return and clear the copies since the last call (KV-INSIDE-4)."""
        self.turn.changes()
        copies = self.core.take_block_copies()
        self.turn.changed()
        return copies

    def take_new_block_ids(self) -> tuple[int, ...]:
        """Return and clear the blocks to be zeroed, group by group (KV-MGR-16)."""
        queued = self.core.allocator.to_zero.lists(self.core.num_groups)
        taken = tuple([block for blocks in queued for block in blocks])
        self.core.allocator.to_zero.size = 0
        return taken

    def take_stats(self) -> PrefixCacheStats | None:
        """Return and clear the look-up counters (KV-STAT-3)."""
        if not self.core.log_stats:
            return None
        stats = self.core.stats.shown()
        self.turn.changes()
        self.core.stats.clear()
        self.turn.changed()
        return stats

    def count_admitted(self, request: FastRequest, tokens: int) -> None:
        """Count a look-up whose request was admitted, where that is chosen (KV-POL-18)."""
        self.checks.check_scheduling(request)
        core = self.core
        is_read = core.enable_caching and not request.skips_reading
        if core.log_stats and is_read and core.counts_admitted:
            self.turn.changes()
            self.core.stats.count(request, tokens)
            self.turn.changed()
