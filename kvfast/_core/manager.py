"""The manager as callers have it (KV-MGR-*)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NoReturn

from kvspec.blocks import BlockFacts, GroupHits, KVCacheBlocks, PrefixHit
from kvspec.columns import Columns, snapshot_of
from kvspec.errors import InvalidArgumentError, UnsupportedError
from kvspec.events import Event
from kvspec.inside import BlockCopies
from kvspec.request import Request
from kvspec.snapshot import Snapshot
from kvspec.stats import PrefixCacheStats, ResidencySample

from . import withdrawing
from .calls import Calls
from .checks import Checks
from .core import Core
from .hashing import Hasher
from .plan import Plan
from .turn import Turn


class FastManager:
    """A `kvspec.interface.KVCacheManager`; each call takes and gives back the turn (KV-ERR-7)."""

    def __init__(
        self, plan: Plan, clock: Callable[[], int] | None = None, columns: Columns | None = None
    ) -> None:
        if self.is_ready():  # batches know the size of its tables
            raise InvalidArgumentError("manager", None, "one that is made once")
        if clock is not None and not callable(clock):
            raise InvalidArgumentError("clock", clock, "a function of no arguments, or None")
        self.turn = Turn()
        self.plan = plan
        self.config = plan.config
        self.core = Core(plan, clock)
        if columns is not None:
            self.core.adopt(columns)
        self.checks = Checks(self.core)
        self.calls = Calls(self.core, self.checks, self.turn)
        self.is_made = True

    def is_ready(self) -> bool:
        """Return whether `__init__` ran: after `__new__` alone there is no memory."""
        try:
            return self.is_made
        except AttributeError:  # uncompiled
            return False

    def check_sound(self) -> None:
        """Check that it was fully constructed and that no change broke off (KV-ERR-8)."""
        if not self.is_ready():
            raise InvalidArgumentError("manager", None, "made by `create`")
        if self.turn.is_spoilt():
            self.turn.refuse()

    def enter(self) -> None:
        """Begin a call."""
        if not self.is_ready():
            self.check_sound()
        self.turn.take()

    @property
    def hasher(self) -> Hasher:
        if not self.is_ready():
            self.check_sound()
        return self.core.hasher

    @property
    def none_hash(self) -> bytes:
        """Parent of every request's first block hash (KV-HASH-3)."""
        return self.hasher.none_hash

    @property
    def num_free_blocks(self) -> int:
        """Length of the free queue."""
        self.check_sound()
        return self.core.pool.num_free

    @property
    def usage(self) -> float:
        """Share of the pool in use (KV-POOL-12)."""
        self.check_sound()
        if self.core.pool.num_blocks == 1:
            return 0.0
        return 1.0 - float(self.core.pool.num_free) / (self.core.pool.num_blocks - 1)

    def get_computed_blocks(self, request: Request) -> PrefixHit:
        """Return the longest cached prefix, without the last token (KV-MGR-1, KV-MGR-2)."""
        self.enter()
        try:
            return self.calls.look_up(self.calls.claim(request))
        finally:
            self.calls.leave()

    def find_longest_cache_hit_per_group(
        self, request: Request, max_hit_length_tokens: int
    ) -> GroupHits:
        """Return each group's own longest hit; needs several groups and caching (KV-COORD-9)."""
        self.enter()
        try:
            length = self.checks.counted("max_hit_length_tokens", max_hit_length_tokens)
            return self.calls.look_up_per_group(self.calls.claim(request), length)
        finally:
            self.calls.leave()

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
        """Allocate slots for tokens about to be computed, or None (KV-MGR-3 … KV-MGR-10)."""
        self.enter()
        try:
            return self.calls.allocate(
                request,
                new_computed_blocks,
                num_new_tokens,
                num_new_computed_tokens,
                num_lookahead_tokens,
                num_external_computed_tokens,
                num_encoder_tokens,
                reserved_blocks,
                delay_cache_blocks,
                full_sequence_must_fit,
                has_scheduled_reqs,
            )
        finally:
            self.calls.leave()

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
            return self.calls.need(
                request,
                num_tokens,
                total_computed_tokens,
                num_tokens_main_model,
                num_encoder_tokens,
                apply_admission_cap,
            )
        finally:
            self.calls.leave()

    def cache_blocks(self, request: Request, num_computed_tokens: int) -> None:
        """Register full blocks after a delayed load (KV-MGR-11)."""
        self.enter()
        try:
            mine = self.calls.claim(request)
            self.calls.cache(mine, self.checks.counted("num_computed_tokens", num_computed_tokens))
        finally:
            self.calls.leave()

    def cache_partial_block(self, request: Request, group: int, num_tokens: int) -> bool:
        """Make a block reachable at a finer boundary inside it (KV-PART-1)."""
        self.enter()
        try:
            mine = self.calls.claim(request)
            tokens = self.checks.counted("num_tokens", num_tokens)
            return self.calls.cache_partial(mine, self.checks.counted("group", group), tokens)
        finally:
            self.calls.leave()

    def evict_blocks(self, block_ids: Sequence[int]) -> None:
        """Drop the cached identity of these blocks (KV-POOL-10)."""
        self.enter()
        try:
            self.core.ask_clock()
            self.calls.evict(self.checks.checked_blocks("block_ids", block_ids))
        finally:
            self.calls.leave()

    def withdraw(self, request: Request, num_computed_tokens: int) -> tuple[str, ...]:
        """Take back what was planned beyond the computed tokens (KV-MGR-23)."""
        self.enter()
        try:
            self.core.ask_clock()
            mine = self.calls.claim(request)
            tokens = self.checks.counted("num_computed_tokens", num_computed_tokens)
            return withdrawing.withdraw(self.core, self.turn, mine, tokens)
        finally:
            self.calls.leave()

    def reset_prefix_cache(self) -> bool:
        """Drop every hash, if no block is in use (KV-POOL-11)."""
        self.enter()
        try:
            return self.calls.reset()
        finally:
            self.calls.leave()

    def free(self, request: Request) -> None:
        """Release all blocks of the request (KV-MGR-12)."""
        self.enter()
        try:
            self.calls.free(self.calls.claim(request))
        finally:
            self.calls.leave()

    def pop_blocks_for_free(self, request: Request) -> tuple[int, ...]:
        """Forget the request, keep its references for `free_blocks` (KV-MGR-13)."""
        self.enter()
        try:
            return self.calls.pop(self.calls.claim(request))
        finally:
            self.calls.leave()

    def hold_blocks(self, block_ids: Sequence[int]) -> None:
        """Take a reference to each, for `free_blocks` to give back (KV-POOL-19)."""
        self.enter()
        try:
            self.core.ask_clock()
            self.calls.hold_blocks(self.checks.checked_blocks("block_ids", block_ids))
        finally:
            self.calls.leave()

    def get_block(self, block_id: int) -> BlockFacts:
        """Return the facts about a block (KV-POOL-20)."""
        self.enter()
        try:
            return self.core.facts_of(self.checks.checked_block(block_id))
        finally:
            self.calls.leave()

    def free_blocks(self, block_ids: Sequence[int]) -> None:
        """Return popped references, in one release call (KV-MGR-13, KV-POOL-9)."""
        self.enter()
        try:
            self.calls.free_blocks(self.checks.checked_blocks("block_ids", block_ids))
        finally:
            self.calls.leave()

    def remove_skipped_blocks(self, request: Request, total_computed_tokens: int) -> None:
        """Release what attention no longer needs (KV-MGR-14)."""
        self.enter()
        try:
            computed = self.checks.counted("total_computed_tokens", total_computed_tokens)
            self.calls.remove_skipped(self.calls.claim(request), computed)
        finally:
            self.calls.leave()

    def get_num_common_prefix_blocks(self, request: Request) -> tuple[int, ...]:
        """Count, per group, the leading blocks that all running requests share (KV-MGR-15)."""
        self.enter()
        try:
            return self.calls.common_prefixes(self.calls.claim(request))
        finally:
            self.calls.leave()

    def get_blocks(self, request: Request) -> KVCacheBlocks:
        self.enter()
        try:
            return self.core.lists_of(self.calls.claim(request))
        finally:
            self.calls.leave()

    def get_unhashed_block_ids(self, request: Request) -> tuple[tuple[int, ...], ...]:
        """Return, per group, the blocks that are neither null nor cached."""
        self.enter()
        try:
            return self.calls.unhashed(self.calls.claim(request))
        finally:
            self.calls.leave()

    def take_events(self) -> tuple[Event, ...]:
        """Return the events since the last call (KV-EVT-1)."""
        self.enter()
        try:
            return self.calls.take_events()
        finally:
            self.calls.leave()

    def take_block_copies(self) -> BlockCopies:
        """Return the copies to make before the step, since the last call (KV-INSIDE-4)."""
        self.enter()
        try:
            return self.calls.take_block_copies()
        finally:
            self.calls.leave()

    def take_new_block_ids(self) -> tuple[int, ...]:
        """Return and clear the blocks to be zeroed, group by group (KV-MGR-16)."""
        self.enter()
        try:
            return self.calls.take_new_block_ids()
        finally:
            self.calls.leave()

    def make_prefix_cache_stats(self) -> PrefixCacheStats | None:
        """Return and clear the look-up counters (KV-STAT-3)."""
        self.enter()
        try:
            return self.calls.take_stats()
        finally:
            self.calls.leave()

    def record_prefix_cache_stats(self, request: Request, num_hit_tokens: int) -> None:
        """Count a look-up whose request was admitted, where that is chosen (KV-POL-18)."""
        self.enter()
        try:
            mine = self.calls.claim(request)
            self.calls.count_admitted(mine, self.checks.counted("num_hits", num_hit_tokens))
        finally:
            self.calls.leave()

    def take_residency_samples(self) -> tuple[ResidencySample, ...]:
        """Return the lives of sampled blocks that ended (KV-STAT-6)."""
        self.enter()
        try:
            return self.core.residency.take() if self.core.residency is not None else ()
        finally:
            self.calls.leave()

    def new_step_starts(self) -> None:
        """Make states registered in the last step available (KV-MGR-19)."""
        self.enter()
        try:
            self.calls.start_step()
        finally:
            self.calls.leave()

    def append_tokens(self, request: Request, token_ids: Sequence[int]) -> None:
        """Append tokens to a request of this manager (KV-REQ-2)."""
        self.enter()
        try:
            self.checks.own(request).append_in(token_ids, self.turn)
        finally:
            self.calls.leave()

    def follow(
        self,
        request: Request,
        num_tokens: int,
        hashes: Sequence[bytes] = (),
        num_prompt_tokens: int | None = None,
    ) -> None:
        """Set a followed request's counts and add hashes of newly full blocks (KV-REQ-7)."""
        self.enter()
        try:
            self.calls.follow(request, num_tokens, hashes, num_prompt_tokens)
        finally:
            self.calls.leave()

    def __copy__(self) -> NoReturn:
        """Refuse: a shallow copy would be a second manager of the same pool (KV-MGR-20)."""
        raise UnsupportedError("a shallow copy of a manager", "kvfast")

    def __deepcopy__(self, memo: object) -> FastManager:
        return self.clone()

    def __reduce_ex__(self, protocol: object) -> NoReturn:
        """Refuse to pickle: use `snapshot` and `restore` (KV-MGR-20)."""
        raise UnsupportedError("pickling a manager", "kvfast")

    def clone(self) -> FastManager:
        """Make an independent copy, including queued events and statistics."""
        self.enter()
        try:
            copy = FastManager(self.plan, None)
            self.core.copy_into(copy.core)
            return copy
        finally:
            self.calls.leave()

    def snapshot(self) -> Snapshot:
        return snapshot_of(self.columns(), 8 * self.hasher.words_per_digest)

    def columns(self) -> Columns:
        """Return the whole abstract state as flat arrays (`kvspec.columns`)."""
        self.enter()
        try:
            return self.core.columns()
        finally:
            self.calls.leave()
