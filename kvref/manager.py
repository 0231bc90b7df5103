"""The manager: admission, hits, allocation and release of whole requests (KV-MGR-*)."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import NoReturn

from kvref import arguments
from kvref.allocation import Allocator
from kvref.block_pool import BlockPool
from kvref.config_checks import checked
from kvref.configuration import build_coordinator, build_groups
from kvref.events import EventLog
from kvref.groups.base import Demand
from kvref.hashing import hasher_of, split_key
from kvref.inside import InsideAllocator
from kvref.request import Allocation, ReferenceRequest
from kvref.residency import ResidencyLog
from kvref.state import take_snapshot
from kvref.stats import LookupCounter
from kvspec.blocks import NULL_BLOCK, BlockFacts, GroupHits, KVCacheBlocks, PrefixHit
from kvspec.config import ManagerConfig
from kvspec.errors import InvalidArgumentError, UnsupportedError
from kvspec.events import Event
from kvspec.inside import BlockCopies, looks_inside
from kvspec.request import Request
from kvspec.snapshot import Snapshot
from kvspec.stats import PrefixCacheStats, ResidencySample
from kvspec.turn import Turn, in_turn


class ReferenceManager:
    """The reference manager, with the calls that `kvspec.interface.KVCacheManager` describes.

    `pool_class` is for tests with a broken one. `popped`: references that are not yet returned.

    Invariants: has_the_right_shape, references_are_accounted_for,
    nothing_is_cached_with_caching_off, errors_change_nothing, pure_calls_change_nothing.
    """

    def __init__(
        self,
        config: ManagerConfig,
        clock: Callable[[], int] | None = None,
        pool_class: type[BlockPool] = BlockPool,
    ) -> None:
        self.turn = Turn()
        self.config, specs = checked(config)
        if clock is not None and not callable(clock):
            raise InvalidArgumentError("clock", clock, "a function of nanoseconds, or None")
        self.hasher = hasher_of(self.config)
        self.event_log = EventLog(config.enable_events, config.int_event_hashes)
        self.residency: ResidencyLog | None = None
        if config.enable_caching and config.residency_sample_rate > 0:
            read = time.monotonic_ns if clock is None else clock
            self.residency = ResidencyLog(config.residency_sample_rate, read)
        self.pool = pool_class(
            config.kv_cache.num_blocks,
            events=self.event_log,
            residency=self.residency,
            unhashed_freed_to=config.policy.unhashed_freed_to,
            removed_event_per=config.policy.removed_event_per,
            order=config.order,
        )
        self._ask_clock()
        self.groups = build_groups(self.config, specs, self.pool, self.event_log)
        self.coordinator = build_coordinator(self.config, self.groups)
        allocator = InsideAllocator if looks_inside(self.config) else Allocator
        self.allocator = allocator(self.config, self.pool, self.coordinator, self.turn)
        self.lookups = LookupCounter()
        self.counts_admitted = config.policy.lookups_counted == "admitted"
        self.popped: list[int] = []

    def __copy__(self) -> NoReturn:
        """Refuse: a shallow copy would be a second manager of the same pool (KV-MGR-20)."""
        raise UnsupportedError("a shallow copy of a manager", "kvref")

    @property
    def none_hash(self) -> bytes:
        """Parent of every request's first block hash (KV-HASH-3)."""
        return self.hasher.none_hash

    @property
    def num_free_blocks(self) -> int:
        """Length of the free queue."""
        self.turn.check_sound()
        return self.pool.num_free_blocks

    @property
    def usage(self) -> float:
        """Share of the pool in use (KV-POOL-12)."""
        self.turn.check_sound()
        return self.pool.usage

    def _ask_clock(self) -> None:
        """Read the clock once for the whole call, before it changes anything (KV-STAT-6)."""
        if self.residency is not None:
            self.residency.ask()

    def own(self, request: Request) -> ReferenceRequest:
        """Claim and return the request of this call, which must fit managers like this one."""
        reference = arguments.made_here(request)
        self.turn.uses(reference)
        arguments.check_hashes(reference, self.config, self.hasher)
        return reference

    @in_turn
    def get_computed_blocks(self, request: Request) -> PrefixHit:
        """Return the longest cached prefix, without the last token (KV-MGR-1, KV-MGR-2)."""
        reference = self.own(request)
        arguments.check_scheduling(reference)
        if not self.config.enable_caching or reference.input.skip_reading_cache:
            return PrefixHit(KVCacheBlocks.empty(len(self.groups)), 0)
        length = max(reference.num_tokens - reference.num_last_tokens, 0)
        hit = self.coordinator.longest_hit(reference, length)
        if self.config.policy.hits_reported == "asked":  # KV-POL-25
            self.coordinator.report_hit(reference, hit.blocks, hit.hit_length_tokens)
        if self.config.log_stats and not self.counts_admitted:
            self.lookups.record(
                reference.num_tokens, hit.hit_length_tokens, reference.num_preemptions > 0
            )
        return hit

    @in_turn
    def find_longest_cache_hit_per_group(
        self, request: Request, max_hit_length_tokens: int
    ) -> GroupHits:
        """Return each group's own longest hit; needs several groups and caching (KV-COORD-9)."""
        (longest,) = arguments.check_counts(max_hit_length_tokens=max_hit_length_tokens)
        reference = self.own(request)
        length = min(longest, max(reference.num_tokens - self.config.hash_lookahead_tokens, 0))
        return self.coordinator.longest_hit_per_group(reference, length)

    @in_turn
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
        """Allocate room for tokens to be computed, or return None (KV-MGR-3 … KV-MGR-10)."""
        self._ask_clock()
        reference = self.own(request)
        arguments.check_flags(
            delay_cache_blocks=delay_cache_blocks,
            full_sequence_must_fit=full_sequence_must_fit,
            has_scheduled_reqs=has_scheduled_reqs,
        )
        hits = arguments.offered_hits(new_computed_blocks, len(self.groups), self.pool.num_blocks)
        new, hit, lookahead, external, encoder, reserved = arguments.check_counts(
            num_new_tokens=num_new_tokens,
            num_new_computed_tokens=num_new_computed_tokens,
            num_lookahead_tokens=num_lookahead_tokens,
            num_external_computed_tokens=num_external_computed_tokens,
            num_encoder_tokens=num_encoder_tokens,
            reserved_blocks=reserved_blocks,
        )
        return self.allocator.allocate(
            Allocation(
                request=reference,
                hits=hits,
                num_hit_tokens=hit,
                num_external_tokens=external,
                num_new_tokens=new,
                num_lookahead_tokens=lookahead,
                num_encoder_tokens=encoder,
                reserved_blocks=reserved,
                delay_cache_blocks=delay_cache_blocks,
                full_sequence_must_fit=full_sequence_must_fit,
                has_scheduled_reqs=has_scheduled_reqs,
            )
        )

    @in_turn
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
        slots, computed, main, encoder = arguments.check_counts(
            num_tokens=num_tokens,
            total_computed_tokens=total_computed_tokens,
            num_tokens_main_model=num_tokens_main_model,
            num_encoder_tokens=num_encoder_tokens,
        )
        arguments.check_flags(apply_admission_cap=apply_admission_cap)
        reference, no_hits = self.own(request), KVCacheBlocks.empty(len(self.groups))
        demand = Demand(
            num_slots_tokens=slots,
            num_main_tokens=main,
            num_local_tokens=computed,
            num_external_tokens=0,
            skip_at_tokens=computed,
            num_encoder_tokens=encoder,
            apply_admission_cap=apply_admission_cap,
            prefill_end_tokens=reference.prefill_end_tokens,
        )
        return self.coordinator.num_blocks_needed(reference.request_id, no_hits, demand)

    @in_turn
    def cache_blocks(self, request: Request, num_computed_tokens: int) -> None:
        """Register full blocks after a delayed load (KV-MGR-11)."""
        reference = self.own(request)
        (computed,) = arguments.check_counts(num_computed_tokens=num_computed_tokens)
        arguments.check_junction(reference)
        if self.config.policy.caching_beyond_tokens == "cut":  # KV-POL-22
            computed = min(computed, reference.num_tokens)
        arguments.check_caching(reference, computed, self.coordinator)
        self.turn.changes()
        if self.config.enable_caching and self.coordinator.holds_blocks(reference.request_id):
            self.coordinator.cache_blocks(reference, computed)

    @in_turn
    def cache_partial_block(self, request: Request, group: int, num_tokens: int) -> bool:
        """Make a block reachable at a finer boundary inside it (KV-PART-1)."""
        reference = self.own(request)
        number, tokens = arguments.check_counts(group=group, num_tokens=num_tokens)
        arguments.check_partial(reference, number, tokens, self.groups, self.config)
        self.turn.changes()
        return self.groups[number].cache_partial_block(reference, tokens)

    @in_turn
    def evict_blocks(self, block_ids: Sequence[int]) -> None:
        """Drop the cached identity of these blocks (KV-POOL-10)."""
        self._ask_clock()
        blocks = arguments.block_ids(block_ids, self.pool.num_blocks)
        self.turn.changes()
        for block in blocks:
            if block != NULL_BLOCK:
                self.pool.forget(block)

    @in_turn
    def withdraw(self, request: Request, num_computed_tokens: int) -> tuple[str, ...]:
        """Take back what was planned beyond the computed tokens (KV-MGR-23)."""
        self._ask_clock()
        name = self.own(request).request_id
        (computed,) = arguments.check_counts(num_computed_tokens=num_computed_tokens)
        if not self.config.enable_caching:
            return ()
        arguments.check_withdrawn(name, self.coordinator)
        self.turn.changes()
        return self.coordinator.withdraw(name, computed)

    @in_turn
    def reset_prefix_cache(self) -> bool:
        """Drop every hash, if no block is in use (KV-POOL-11)."""
        self.turn.changes()
        if not self.pool.reset():
            return False
        self.lookups.was_reset()
        return True

    # Releasing.

    @in_turn
    def free(self, request: Request) -> None:
        """Release all blocks of the request (KV-MGR-12)."""
        name = self.own(request).request_id
        self.turn.changes()
        self.coordinator.free(name)

    @in_turn
    def pop_blocks_for_free(self, request: Request) -> tuple[int, ...]:
        """Forget the request, keep its references for `free_blocks` (KV-MGR-13)."""
        name = self.own(request).request_id
        self.turn.changes()
        blocks = self.coordinator.pop(name)
        self.popped.extend(block for block in blocks if block != NULL_BLOCK)
        return tuple(blocks)

    @in_turn
    def hold_blocks(self, block_ids: Sequence[int]) -> None:
        """Take a reference to each, for `free_blocks` to give back (KV-POOL-19)."""
        self._ask_clock()
        blocks = arguments.block_ids(block_ids, self.pool.num_blocks)
        arguments.check_not_set_aside(blocks, self.pool.reserved)
        arguments.check_held(blocks, self.popped)
        self.turn.changes()
        self.pool.touch(blocks)
        self.popped.extend(block for block in blocks if block != NULL_BLOCK)

    @in_turn
    def get_block(self, block_id: int) -> BlockFacts:
        """Return the facts about a block (KV-POOL-20)."""
        (block,) = arguments.block_ids([block_id], self.pool.num_blocks)
        keys = self.pool.keys[block]
        block_hash, group = split_key(keys[0]) if keys else (None, None)
        return BlockFacts(self.pool.ref_counts[block], block_hash, group)

    @in_turn
    def free_blocks(self, block_ids: Sequence[int]) -> None:
        """Return popped references, in one release call (KV-MGR-13, KV-POOL-9)."""
        blocks = arguments.block_ids(block_ids, self.pool.num_blocks)
        arguments.check_popped(blocks, self.popped)
        self.turn.changes()
        for block in blocks:
            if block != NULL_BLOCK:
                self.popped.remove(block)
        self.pool.release(blocks)

    @in_turn
    def remove_skipped_blocks(self, request: Request, total_computed_tokens: int) -> None:
        """Release what attention no longer needs (KV-MGR-14)."""
        (computed,) = arguments.check_counts(total_computed_tokens=total_computed_tokens)
        own = self.own(request)
        self.turn.changes()
        self.coordinator.remove_skipped_blocks(own.request_id, computed, own.num_prompt_tokens)

    # Queries.

    @in_turn
    def get_num_common_prefix_blocks(self, request: Request) -> tuple[int, ...]:
        """Count per group leading blocks that all running requests share (KV-MGR-15)."""
        return self.coordinator.num_common_prefix_blocks(self.own(request).request_id)

    @in_turn
    def get_blocks(self, request: Request) -> KVCacheBlocks:
        return self._lists_of(request)

    def _lists_of(self, request: Request) -> KVCacheBlocks:
        name = self.own(request).request_id
        return KVCacheBlocks(tuple(group.blocks_of(name) for group in self.groups))

    @in_turn
    def get_unhashed_block_ids(self, request: Request) -> tuple[tuple[int, ...], ...]:
        """Return per group the blocks that are neither null nor cached."""
        return tuple(
            tuple(block for block in blocks if block != NULL_BLOCK and not self.pool.keys[block])
            for blocks in self._lists_of(request).groups
        )

    @in_turn
    def take_events(self) -> tuple[Event, ...]:
        """Return the events since the last call (KV-EVT-1)."""
        return self.event_log.take()

    @in_turn
    def take_new_block_ids(self) -> tuple[int, ...]:
        """Return and clear the blocks to be zeroed, group by group (KV-MGR-16)."""
        self.turn.changes()
        return tuple(block for group in self.groups for block in group.take_new_block_ids())

    @in_turn
    def take_block_copies(self) -> BlockCopies:
        """Return the copies to make before the step, and the references they keep (KV-INSIDE-4)."""
        self.turn.changes()
        pairs = tuple(pair for group in self.groups for pair in group.take_copies())
        retained = tuple(block for pair in pairs for block in pair)
        self.popped.extend(retained)
        return BlockCopies(pairs, retained)

    @in_turn
    def make_prefix_cache_stats(self) -> PrefixCacheStats | None:
        """Return the look-up counters since the last call (KV-STAT-3)."""
        return self.lookups.take() if self.config.log_stats else None

    @in_turn
    def record_prefix_cache_stats(self, request: Request, num_hit_tokens: int) -> None:
        """Count a look-up whose request was admitted, where that is chosen (KV-POL-18)."""
        reference = self.own(request)
        (hit,) = arguments.check_counts(num_hits=num_hit_tokens)
        arguments.check_scheduling(reference)
        config = self.config
        is_read = config.enable_caching and not reference.input.skip_reading_cache
        if config.log_stats and is_read and self.counts_admitted:
            self.turn.changes()
            self.lookups.record(reference.num_tokens, hit, reference.num_preemptions > 0)

    @in_turn
    def take_residency_samples(self) -> tuple[ResidencySample, ...]:
        """Return the lives of sampled blocks that ended (KV-STAT-6)."""
        return self.residency.take() if self.residency is not None else ()

    @in_turn
    def new_step_starts(self) -> None:
        """Let states registered in the last step be used (KV-MGR-19)."""
        self.turn.changes()
        self.pool.new_step_starts()
        for group in self.groups:
            group.new_step_starts()

    @in_turn
    def snapshot(self) -> Snapshot:
        return take_snapshot(self.pool, self.groups, self.popped, self.none_hash)
