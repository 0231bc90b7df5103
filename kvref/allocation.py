"""`allocate_slots` in its order: check · release · need · take · cache (KV-MGR-3 … KV-MGR-10)."""

from __future__ import annotations

from dataclasses import replace

from kvref.arguments import check_allocation
from kvref.block_pool import BlockPool
from kvref.coordinator import Coordinator
from kvref.groups.base import Demand
from kvref.request import Allocation
from kvspec.blocks import KVCacheBlocks
from kvspec.config import ManagerConfig
from kvspec.domains import exact
from kvspec.request import RequestStatus
from kvspec.turn import Turn


class Allocator:
    """Gives requests room for their next tokens, or refuses.

    Invariants: a_refusal_only_releases.
    """

    def __init__(
        self, config: ManagerConfig, pool: BlockPool, coordinator: Coordinator, turn: Turn
    ) -> None:
        self.config = config
        self.longest = config.max_model_len_tokens
        self.pool = pool
        self.coordinator = coordinator
        self.turn = turn

    def allocate(self, asked: Allocation) -> KVCacheBlocks | None:
        """Return the new blocks of each group, or None if the request does not fit."""
        self.check(asked)
        demand = self.demand(asked)
        watermark = self.watermark(asked)
        if asked.full_sequence_must_fit and not self.whole_fits(asked, demand, watermark):
            return None
        self.turn.changes()
        self.release(asked, demand)
        if self.need(asked, demand) + watermark > self.pool.num_free_blocks - asked.reserved_blocks:
            return None  # KV-MGR-7
        if self.config.policy.hits_reported == "admitted":  # KV-EVT-12
            self.coordinator.report_hit(asked.request, asked.hits, asked.num_hit_tokens)
        new_blocks = self.take(asked, demand)
        if self.config.enable_caching and not asked.delay_cache_blocks:
            self.cache(asked, demand)
        return new_blocks

    def check(self, asked: Allocation) -> None:
        """Raise an error for an illegal call (KV-MGR-3, KV-MGR-4, KV-MGR-8)."""
        check_allocation(asked, self.coordinator, self.longest)

    def release(self, asked: Allocation, demand: Demand) -> None:
        """Release blocks that the request no longer reads, even if it does not fit (KV-MGR-6)."""
        total = min(demand.num_computed_tokens, self.longest)
        in_flight = exact(asked.request.num_in_flight_tokens)
        processed = min(total, demand.skip_at_tokens) - in_flight  # KV-MGR-21
        prompt = asked.request.num_prompt_tokens
        self.coordinator.remove_skipped_blocks(asked.name, max(processed, 0), prompt)

    def need(self, asked: Allocation, demand: Demand) -> int:
        """Free blocks that all groups together would take (KV-MGR-7)."""
        return self.coordinator.num_blocks_needed(asked.name, asked.hits, demand)

    def take(self, asked: Allocation, demand: Demand) -> KVCacheBlocks:
        """Take hits, then blocks for external tokens, then new ones (KV-MGR-7)."""
        if not asked.hits.is_empty or asked.has_load:
            self.coordinator.take_hits(asked.name, asked.hits, demand)
        return self.coordinator.allocate_new(asked.name, demand)

    def cache(self, asked: Allocation, demand: Demand) -> None:
        """Cache full blocks of finalised tokens, not of drafts and lookahead (KV-MGR-10)."""
        total = min(demand.num_computed_tokens, self.longest)
        verified = min(total + asked.num_new_tokens, asked.request.num_tokens, self.longest)
        self.coordinator.cache_blocks(asked.request, verified)

    # The amounts that the steps use.

    def demand(self, asked: Allocation) -> Demand:
        """Compute the demand of the call on every group (KV-MGR-4, KV-MGR-7)."""
        local, external = asked.num_local_tokens, asked.num_external_tokens
        main = min(local + external, self.longest) + asked.num_new_tokens
        slots = min(main + asked.num_lookahead_tokens, self.longest)
        skip_at = local + external
        if asked.has_load:
            # After a load the last token is computed again: its window must stay.
            skip_at = min(skip_at, asked.request.num_tokens - 1)
            if not self.coordinator.is_running(asked.name):
                slots = max(slots, local + external)  # taken beyond max_model_len too
        return Demand(
            slots,
            main,
            local,
            external,
            skip_at,
            asked.num_encoder_tokens,
            priority=asked.request.input.priority,
        )

    @property
    def watermark_blocks(self) -> int:
        """Blocks kept free when a request is admitted while others run (KV-MGR-9)."""
        return int(self.config.watermark * self.config.kv_cache.num_blocks)

    def watermark(self, asked: Allocation) -> int:
        """Return the watermark for a new request that others run beside, else 0 (KV-MGR-9)."""
        newcomer = asked.request.status in (RequestStatus.WAITING, RequestStatus.PREEMPTED)
        return self.watermark_blocks if newcomer and asked.has_scheduled_reqs else 0

    def whole_fits(self, asked: Allocation, demand: Demand, watermark: int) -> bool:
        """Return whether the whole current sequence would fit before any release (KV-MGR-5)."""
        whole = min(asked.request.num_tokens, self.longest)
        demand = replace(
            demand,
            num_slots_tokens=whole,
            num_main_tokens=whole,
            skip_at_tokens=min(demand.skip_at_tokens, self.longest),
            apply_admission_cap=True,
        )
        return self.need(asked, demand) + watermark <= self.pool.num_free_blocks
