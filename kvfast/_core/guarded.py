"""The manager as callers have it: every call takes the turn, and gives it back (KV-ERR-7)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NoReturn

from kvspec.blocks import GroupHits, KVCacheBlocks, PrefixHit
from kvspec.errors import UnsupportedError
from kvspec.events import Event
from kvspec.request import Request
from kvspec.snapshot import Snapshot
from kvspec.stats import PrefixCacheStats, ResidencySample

from .manager import FastManager


class GuardedManager(FastManager):
    """A `kvspec.interface.KVCacheManager`."""

    @property
    def num_free_blocks(self) -> int:
        """Length of the free queue; read at any time."""
        self.check_sound()
        return self.pool.num_free

    @property
    def usage(self) -> float:
        """Share of the pool in use (KV-POOL-12); read at any time."""
        self.check_sound()
        if self.pool.num_blocks == 1:
            return 0.0
        return 1.0 - float(self.pool.num_free) / (self.pool.num_blocks - 1)

    def get_computed_blocks(self, request: Request) -> PrefixHit:
        """The longest cached prefix, the last token left out (KV-MGR-1, KV-MGR-2)."""
        self.enter()
        try:
            return self.do_get_computed_blocks(request)
        finally:
            self.leave()

    def find_longest_cache_hit_per_group(
        self, request: Request, max_hit_length_tokens: int
    ) -> GroupHits:
        """Each group's own longest hit: only with several groups and caching (KV-COORD-9)."""
        self.enter()
        try:
            return self.do_find_longest_cache_hit_per_group(request, max_hit_length_tokens)
        finally:
            self.leave()

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
        self.enter()
        try:
            return self.do_allocate_slots(
                request,
                num_new_tokens,
                num_new_computed_tokens,
                new_computed_blocks,
                num_lookahead_tokens,
                num_external_computed_tokens,
                delay_cache_blocks,
                num_encoder_tokens,
                full_sequence_must_fit,
                reserved_blocks,
                has_scheduled_reqs,
            )
        finally:
            self.leave()

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
        self.enter()
        try:
            return self.do_get_num_blocks_to_allocate(
                request,
                num_tokens,
                total_computed_tokens,
                num_tokens_main_model,
                num_encoder_tokens,
                apply_admission_cap,
            )
        finally:
            self.leave()

    def cache_blocks(self, request: Request, num_computed_tokens: int) -> None:
        """Register full blocks after a delayed load (KV-MGR-11)."""
        self.enter()
        try:
            self.do_cache_blocks(request, num_computed_tokens)
        finally:
            self.leave()

    def cache_partial_block(self, request: Request, group: int, num_tokens: int) -> bool:
        """Make a block reachable at a finer boundary inside it (KV-PART-1)."""
        self.enter()
        try:
            return self.do_cache_partial_block(request, group, num_tokens)
        finally:
            self.leave()

    def evict_blocks(self, block_ids: Sequence[int]) -> None:
        """Drop the cached identity of these blocks (KV-POOL-10)."""
        self.enter()
        try:
            self.do_evict_blocks(block_ids)
        finally:
            self.leave()

    def reset_prefix_cache(self) -> bool:
        """Drop every hash, if no block is in use (KV-POOL-11)."""
        self.enter()
        try:
            return self.do_reset_prefix_cache()
        finally:
            self.leave()

    def free(self, request: Request) -> None:
        """Release all blocks of the request (KV-MGR-12)."""
        self.enter()
        try:
            self.do_free(request)
        finally:
            self.leave()

    def pop_blocks_for_free(self, request: Request) -> tuple[int, ...]:
        """Forget the request, keep its references for `free_blocks` (KV-MGR-13)."""
        self.enter()
        try:
            return self.do_pop_blocks_for_free(request)
        finally:
            self.leave()

    def free_blocks(self, block_ids: Sequence[int]) -> None:
        """Return popped references, in one release call (KV-MGR-13, KV-POOL-9)."""
        self.enter()
        try:
            self.do_free_blocks(block_ids)
        finally:
            self.leave()

    def remove_skipped_blocks(self, request: Request, total_computed_tokens: int) -> None:
        """Release what attention no longer needs (KV-MGR-14)."""
        self.enter()
        try:
            self.do_remove_skipped_blocks(request, total_computed_tokens)
        finally:
            self.leave()

    def get_num_common_prefix_blocks(self, request: Request) -> tuple[int, ...]:
        """Per group, leading blocks that all running requests share (KV-MGR-15)."""
        self.enter()
        try:
            return self.do_get_num_common_prefix_blocks(request)
        finally:
            self.leave()

    def get_blocks(self, request: Request) -> KVCacheBlocks:
        """The block list per group."""
        self.enter()
        try:
            return self.do_get_blocks(request)
        finally:
            self.leave()

    def get_unhashed_block_ids(self, request: Request) -> tuple[tuple[int, ...], ...]:
        """Per group, blocks that are neither null nor cached."""
        self.enter()
        try:
            return self.do_get_unhashed_block_ids(request)
        finally:
            self.leave()

    def take_events(self) -> tuple[Event, ...]:
        """Events since the last call (KV-EVT-1)."""
        self.enter()
        try:
            return self.do_take_events()
        finally:
            self.leave()

    def take_new_block_ids(self) -> tuple[int, ...]:
        """Blocks to be zeroed, group by group (KV-MGR-16)."""
        self.enter()
        try:
            return self.do_take_new_block_ids()
        finally:
            self.leave()

    def make_prefix_cache_stats(self) -> PrefixCacheStats | None:
        """Look-up counters since the last call (KV-STAT-3)."""
        self.enter()
        try:
            return self.do_make_prefix_cache_stats()
        finally:
            self.leave()

    def take_residency_samples(self) -> tuple[ResidencySample, ...]:
        """Lives of sampled blocks that ended (KV-STAT-6)."""
        self.enter()
        try:
            return self.do_take_residency_samples()
        finally:
            self.leave()

    def new_step_starts(self) -> None:
        """States registered in the last step may be used now (KV-MGR-19)."""
        self.enter()
        try:
            self.do_new_step_starts()
        finally:
            self.leave()

    def append_tokens(self, request: Request, token_ids: Sequence[int]) -> None:
        """Append tokens to a request of this manager (KV-REQ-2)."""
        self.enter()
        try:
            self.do_append_tokens(request, token_ids)
        finally:
            self.leave()

    def __copy__(self) -> NoReturn:
        """Two managers of one pool (KV-MGR-20)."""
        raise UnsupportedError("a shallow copy of a manager", "kvfast")

    def __deepcopy__(self, memo: object) -> GuardedManager:
        """See `clone`."""
        return self.clone()

    def __reduce_ex__(self, protocol: object) -> NoReturn:
        """`snapshot` shows the whole state, and `restore` takes it (KV-MGR-20)."""
        raise UnsupportedError("pickling a manager", "kvfast")

    def clone(self) -> GuardedManager:
        """An independent copy, queued events and statistics included."""
        self.enter()
        try:
            copy = GuardedManager(self.plan, None)
            self.copy_into(copy)
            return copy
        finally:
            self.leave()

    def snapshot(self) -> Snapshot:
        """The whole abstract state."""
        self.enter()
        try:
            return self.do_snapshot()
        finally:
            self.leave()
