"""The definition of a batch as single calls, one after another (KV-BATCH-1).

`SequentialManager` works with any implementation and any of its managers. It is written to be read
beside the rules and compared with; it is no faster than the single calls.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from typing import cast

from kvspec.arrays import delta_rows
from kvspec.batched import (
    Array,
    BatchedImplementation,
    BatchedManager,
    Ints,
    StepOutput,
    StepPlan,
    StepResult,
)
from kvspec.checks import batch as checks
from kvspec.config import span_tokens
from kvspec.domains import COUNT_MAX, count, exact
from kvspec.errors import InvalidArgumentError, UnsupportedError
from kvspec.following import FollowingImplementation
from kvspec.interface import Feature, Implementation, KVCacheManager
from kvspec.request import Request, RequestStatus
from kvspec.turn import Turn, in_turn


def batched_of(implementation: Implementation, manager: KVCacheManager) -> BatchedManager:
    """Return whole steps on `manager`, with no request registered yet.

    The implementation's own with `Feature.BATCHED`, otherwise a `SequentialManager`.
    """
    if Feature.BATCHED in implementation.capabilities.features:
        return cast(BatchedImplementation, implementation).batched(manager)
    return SequentialManager(implementation, manager)


class SequentialManager:
    """A `kvspec.batched.BatchedManager`, whose docstrings specify each call.

    - `requests[h]`: the request of handle h; `reported[h][g]`: how many entries of its block list
      in group g have been reported (KV-BATCH-10).
    - `released`: handles to be given out again, the one released longest ago first (KV-BATCH-4).
    - `turn`: of batched calls; the manager is free between the single calls of one.
    """

    def __init__(self, implementation: Implementation, manager: KVCacheManager) -> None:
        self.implementation = implementation
        self.requests: dict[int, Request] = {}
        self.reported: dict[int, list[int]] = {}
        self.released: list[int] = []
        self._manager = manager
        self.turn = Turn()

    @property
    def manager(self) -> KVCacheManager:
        """The manager it works on."""
        return self._manager

    # Requests and their handles.

    @in_turn
    def register(self, request: Request) -> int:
        """Give the request a handle (KV-BATCH-4)."""
        checks.check_registration(self.manager, request, self.requests.values())
        self.turn.changes()
        handle = self.released.pop(0) if self.released else len(self.requests)
        self.requests[handle] = request
        self._nothing_reported(handle)
        return handle

    @in_turn
    def unregister(self, handles: Ints) -> None:
        """Forget requests that hold nothing (KV-BATCH-4)."""
        chosen = checks.handles_of("handles", handles, self.requests)
        for place, handle in enumerate(chosen):
            if not self.manager.get_blocks(self.requests[handle]).is_empty:
                raise InvalidArgumentError(f"handles[{place}]", handle, "one that holds no blocks")
        self.turn.changes()
        for handle in chosen:
            del self.requests[handle], self.reported[handle]
            self.released.append(handle)

    @in_turn
    def request_of(self, handle: int) -> Request:
        """Return the registered request."""
        return self.requests[checks.registered("handle", handle, self.requests)]

    @in_turn
    def append(self, handles: Ints, token_ids: Ints, counts: Ints | int = 1) -> None:
        """Append tokens to each request (KV-BATCH-12)."""
        chosen = checks.handles_of("handles", handles, self.requests)
        if chosen and self.manager.config.given_hash_bytes:  # KV-REQ-6
            raise InvalidArgumentError("handles[0]", chosen[0], "one of a request with tokens")
        texts = checks.tokens_of(token_ids, counts, len(chosen))
        self.turn.changes()
        for handle, tokens in zip(chosen, texts, strict=True):
            self.implementation.append_tokens(self.manager, self.requests[handle], tokens)

    @in_turn
    def follow(
        self,
        handles: Ints,
        num_tokens: Ints | int,
        hashes: Sequence[bytes] = (),
        *,
        num_prompt_tokens: Ints | int | None = None,
    ) -> None:
        """Report how many tokens each followed request has now (KV-BATCH-14)."""
        checks.check_follows(self.manager.config, self.implementation.capabilities)
        chosen = checks.handles_of("handles", handles, self.requests)
        requests = [self.requests[handle] for handle in chosen]
        config = self.manager.config
        told = checks.follows_of(requests, num_tokens, num_prompt_tokens, hashes, config)
        self.turn.changes()
        for request, each in zip(requests, told, strict=True):
            cast(FollowingImplementation, self.implementation).follow(
                self.manager,
                request,
                each.num_tokens,
                each.hashes,
                num_prompt_tokens=each.num_prompt_tokens,
            )

    @in_turn
    def rewind(self, handles: Ints, num_tokens: Ints | int) -> None:
        """Take back computed tokens of each request (KV-BATCH-12)."""
        chosen = checks.handles_of("handles", handles, self.requests)
        rewinds = checks.rewinds_of(chosen, num_tokens, self.requests)
        self.turn.changes()
        for handle, num in zip(chosen, rewinds, strict=True):
            self.requests[handle].num_computed_tokens -= num

    @in_turn
    def lookup(self, handles: Ints) -> array[int]:
        """Hit lengths in tokens (KV-BATCH-12)."""
        chosen = checks.handles_of("handles", handles, self.requests)
        for place, handle in enumerate(chosen):
            checks.check_scheduling(f"handles[{place}]", self.requests[handle])
        self.turn.changes()
        hits = [self.manager.get_computed_blocks(self.requests[handle]) for handle in chosen]
        return array("q", [hit.hit_length_tokens for hit in hits])

    # Steps.

    def admit(
        self,
        handles: Ints,
        max_new_tokens: Ints | int = COUNT_MAX,
        *,
        token_budget: int = COUNT_MAX,
        num_lookahead_tokens: int = 0,
        full_sequence_must_fit: bool = False,
        reserved_blocks: int = 0,
        stops_at_refusal: bool = False,
        output: StepOutput | None = None,
    ) -> StepResult:
        """Make a step of new requests only."""
        plan = StepPlan(
            new=handles,
            max_new_tokens=max_new_tokens,
            token_budget=token_budget,
            num_lookahead_tokens=num_lookahead_tokens,
            full_sequence_must_fit=full_sequence_must_fit,
            reserved_blocks=reserved_blocks,
            stops_at_refusal=stops_at_refusal,
            starts_step=False,
        )
        return self.step(plan, output)

    def decode(
        self,
        handles: Ints,
        num_new_tokens: Ints | int = 1,
        *,
        num_lookahead_tokens: int = 0,
        output: StepOutput | None = None,
    ) -> StepResult:
        """Make a step of decoding requests only."""
        plan = StepPlan(
            decoding=handles,
            decode_tokens=num_new_tokens,
            num_lookahead_tokens=num_lookahead_tokens,
            starts_step=False,
        )
        return self.step(plan, output)

    def free(self, handles: Ints) -> None:
        """Make a step of finished requests only."""
        self.step(StepPlan(finished=handles, starts_step=False))

    def preempt(self, handles: Ints) -> None:
        """Make a step of preempted requests only."""
        self.step(StepPlan(preempted=handles, starts_step=False))

    @in_turn
    def step(self, plan: StepPlan, output: StepOutput | None = None) -> StepResult:
        """Handle finished, preempted, decoding, prefilling, new in turn (KV-BATCH-1)."""
        step = checks.check_step(self, plan, output)
        self.turn.changes()
        config = self.manager.config
        may_change = config.order[0] == "ttl" or any(s.is_state for s in config.managed_specs)
        if plan.starts_step and may_change:  # KV-MGR-19; else a manager may lack the call
            self.manager.new_step_starts()
        for handle in step.finished:
            self._release(handle, RequestStatus.WAITING)
        for handle in step.preempted:
            self._release(handle, RequestStatus.PREEMPTED)
            self.requests[handle].num_preemptions += 1
        written = _Written(self, step)
        scheduled, hits = array("q"), array("q")
        for handle, num_tokens in step.running:
            scheduled.append(self._continue(handle, num_tokens, plan))
            written.granted(handle, scheduled[-1])
        budget = max(0, exact(plan.token_budget) - sum(scheduled))  # KV-BATCH-8
        refused = False
        for handle, most in step.new:
            hit = num_tokens = 0
            if budget > 0 and not (refused and plan.stops_at_refusal):
                beside_others = any(scheduled)
                hit, num_tokens = self._start(handle, min(most, budget), plan, beside_others)
                refused = refused or num_tokens == 0
            budget -= num_tokens
            hits.append(hit)
            scheduled.append(num_tokens)
            written.granted(handle, num_tokens)
        return StepResult(scheduled, hits, sum(scheduled), written.num_rows, written.num_rows_left)

    def _release(self, handle: int, status: RequestStatus) -> None:
        """Release all blocks of a request and reset it (KV-BATCH-5)."""
        request = self.requests[handle]
        self.manager.free(request)
        request.num_computed_tokens = 0
        request.status = status
        self._nothing_reported(handle)

    def _continue(self, handle: int, num_tokens: int, plan: StepPlan) -> int:
        """Allocate a running request's next tokens; returns how many (KV-BATCH-6)."""
        request = self.requests[handle]
        blocks = self.manager.allocate_slots(
            request, num_tokens, num_lookahead_tokens=plan.num_lookahead_tokens
        )
        if blocks is None:
            return 0
        request.num_computed_tokens += num_tokens
        return num_tokens

    def _start(
        self, handle: int, most: int, plan: StepPlan, beside_others: bool
    ) -> tuple[int, int]:
        """Look a new request up and admit it: hit and new tokens, 0 and 0 if refused (KV-BATCH-7).

        `most`: new tokens that it may have.
        """
        request = self.requests[handle]
        hit = self.manager.get_computed_blocks(request)
        num_tokens = min(most, request.num_tokens - hit.hit_length_tokens)
        blocks = self.manager.allocate_slots(
            request,
            num_tokens,
            num_new_computed_tokens=hit.hit_length_tokens,
            new_computed_blocks=hit.blocks,
            num_lookahead_tokens=plan.num_lookahead_tokens,
            full_sequence_must_fit=plan.full_sequence_must_fit,
            reserved_blocks=plan.reserved_blocks,
            has_scheduled_reqs=beside_others,
        )
        if blocks is None:
            return 0, 0
        config = self.manager.config
        if config.log_stats and config.policy.lookups_counted == "admitted":  # KV-POL-18
            self.manager.record_prefix_cache_stats(request, hit.hit_length_tokens)
        request.num_computed_tokens = hit.hit_length_tokens + num_tokens
        request.status = RequestStatus.RUNNING
        self._nothing_reported(handle)
        return hit.hit_length_tokens, num_tokens

    # The reporting of block lists.

    @in_turn
    def take_deltas(self, block_deltas: Array) -> int:
        """Report what was not reported yet, of all requests (KV-BATCH-11)."""
        rows = delta_rows("block_deltas", block_deltas)
        self.turn.changes()
        num_rows = 0
        for handle in sorted(self.requests):
            num_rows = self.report(handle, rows, num_rows)
        return num_rows

    @in_turn
    def num_pending_deltas(self) -> int:
        """Count entries of all requests that were not reported yet."""
        return sum(self.num_unreported(handle) for handle in self.requests)

    @in_turn
    def next_free_blocks(self, num_blocks: int, after: int | None = None) -> array[int]:
        """Return the front of the free queue, or what follows (KV-BATCH-13, KV-BATCH-15)."""
        number = count("num_blocks", num_blocks)
        if Feature.SNAPSHOT not in self.implementation.capabilities.features:
            raise UnsupportedError("next_free_blocks", self.implementation.capabilities.name)
        queue = self.manager.snapshot().free_queue
        start = 0 if after is None else checks.place_in_queue(queue, after, self.manager.config) + 1
        return array("i", queue[start : start + number])

    @in_turn
    def list_lengths(self, handles: Ints) -> array[int]:
        """Return lengths of block lists, handle after handle, group after group (KV-BATCH-13)."""
        chosen = checks.handles_of("handles", handles, self.requests)
        lists = [self.manager.get_blocks(self.requests[handle]).groups for handle in chosen]
        return array("i", [len(blocks) for groups in lists for blocks in groups])

    def num_unreported(self, handle: int) -> int:
        """Count entries of one request's lists that were not reported yet (KV-BATCH-10)."""
        lists = self.manager.get_blocks(self.requests[handle]).groups
        return sum(
            max(0, len(blocks) - reported)
            for blocks, reported in zip(lists, self.reported[handle], strict=True)
        )

    def report(self, handle: int, rows: memoryview, num_rows: int) -> int:
        """Write the request's unreported entries after `num_rows` rows, while there is room.

        How many rows there are then.
        """
        reported = self.reported[handle]
        for group, blocks in enumerate(self.manager.get_blocks(self.requests[handle]).groups):
            while reported[group] < len(blocks) and num_rows < len(rows):
                index = reported[group]
                for column, value in enumerate((handle, group, index, int(blocks[index]))):
                    rows[num_rows, column] = value
                reported[group] += 1
                num_rows += 1
        return num_rows

    def _nothing_reported(self, handle: int) -> None:
        self.reported[handle] = [0] * len(self.manager.config.kv_cache.groups)


class _Written:
    """The outputs that a step has written so far."""

    def __init__(self, batched: SequentialManager, step: checks.CheckedStep) -> None:
        self.batched = batched
        self.step = step
        self.num_slots = 0
        self.num_rows = 0
        self.num_rows_left = 0

    def granted(self, handle: int, num_tokens: int) -> None:
        """Write the slots of the request's last tokens, and its new entries, if it was granted any.

        The token at position p has slot blocks[p // S] * S + p % S, S the span of a block
        (KV-BATCH-9).
        """
        if num_tokens == 0:
            return
        manager, request = self.batched.manager, self.batched.requests[handle]
        lists = manager.get_blocks(request).groups
        first = request.num_computed_tokens - num_tokens
        for group, slots in enumerate(self.step.slots):
            if slots is None:
                continue
            span = span_tokens(manager.config, group)
            for number in range(num_tokens):
                index, offset = divmod(first + number, span)
                slots[self.num_slots + number] = lists[group][index] * span + offset
        self.num_slots += num_tokens
        if self.step.rows is not None:
            self.num_rows = self.batched.report(handle, self.step.rows, self.num_rows)
            self.num_rows_left += self.batched.num_unreported(handle)
