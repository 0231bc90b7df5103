"""Waiting requests that a batched step takes in, one by one, as vLLM's scheduler does."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from time import monotonic
from typing import Any

from vllm.v1.engine import EngineCoreEventType
from vllm.v1.request import RequestStatus

from kvfast.engines.vllm.compiled import Chosen
from kvfast.engines.vllm.usual import replayed

WAITING, RUNNING = RequestStatus.WAITING, RequestStatus.RUNNING


@dataclass(slots=True)
class Admitted:
    """Requests that start or start again in a step, and new tokens of each, in their order.

    `items`: the images and sounds that the encoder reads, by the names of requests.
    """

    requests: list[Any] = field(default_factory=list)
    counts: list[int] = field(default_factory=list)
    new: list[Any] = field(default_factory=list)
    resumed: list[Any] = field(default_factory=list)
    items: dict[str, list[int]] = field(default_factory=dict)

    def add(self, request: Any, count: int) -> None:
        """Add a request that starts, or starts again; it is RUNNING from now on."""
        kind = self.new if request.status is WAITING else self.resumed
        kind.append(request)
        request.status = RUNNING
        self.requests.append(request)
        self.counts.append(count)


class Admission:
    """Taking waiting requests into one step, one by one, as vLLM's scheduler does.

    Those that are passed over go back to the front of a queue: `others`, or from 0.31 on `holding`
    of those that hold blocks.
    """

    def __init__(self, scheduler: Any, chosen: Chosen) -> None:
        self.scheduler = scheduler
        self.release = scheduler.batched_steps.release
        self.drafts = chosen.drafts
        self.window: int = getattr(scheduler, "prefix_replay_tokens", 0)  # since 0.31
        # One token is padded to the length that decodes with drafts have, from 0.25 on.
        self.padding: int = scheduler.num_spec_tokens if self.release >= 25 else 0
        beside = chosen.requests() if self.padding else []
        self.is_beside = bool(beside)
        if any(request.is_prefill_chunk for request in beside):
            self.padding = 0
        self.to_encode = scheduler.max_num_encoder_input_tokens
        self.holding: deque[Any] = deque()
        self.others: deque[Any] = deque()

    def admit(self, budget: int) -> Admitted:
        """Take in what fits: into the tokens that are left, the running requests, and the pool."""
        s, now, admitted = self.scheduler, monotonic(), Admitted()
        while budget > 0 and self.has_room():
            queue = self.queue()
            if not queue:
                break
            request = queue.peek_request()
            if not self.is_ready(request):
                self.pass_over(queue.pop_request())
                continue
            self.items: tuple[Any, ...] = ()
            count = self.admit_one(request, budget)
            if count == 0 and self.items:  # the encoder's turn has not come
                self.pass_over(queue.pop_request())
                continue
            if count == 0:
                break
            budget -= count
            queue.pop_request()
            if self.release >= 31:
                s.deferred_waiting.discard(request)
            s.running.append(request)
            if s.log_stats:
                request.record_event(EngineCoreEventType.SCHEDULED, now)
            admitted.add(request, count)
            if self.items:
                self.encode(request, admitted)
            if request.num_computed_tokens + count < len(request._all_token_ids):
                s._inflight_prefills.add(request)
        if self.holding:
            s.kv_holding_waiting.prepend_requests(self.holding)
        if self.others:
            rest = s.waiting if self.release >= 31 else s.skipped_waiting
            rest.prepend_requests(self.others)
        return admitted

    def has_room(self) -> bool:
        """Return whether one more may run; from 0.25 on, sessions that wait for users count."""
        s = self.scheduler
        num_active = len(s.running)
        if self.release >= 25:
            num_active += s.num_waiting_for_streaming_input
        most: int = s.max_num_active_reqs if self.release >= 31 else s.max_num_running_reqs
        return num_active < most

    def queue(self) -> Any:
        """Return the queue whose turn it is; an empty one, or None, if no request waits."""
        s = self.scheduler
        if self.release >= 31:
            return s.kv_holding_waiting or s.waiting
        return s._select_waiting_queue_for_scheduling()

    def is_ready(self, request: Any) -> bool:
        """Return whether it waits for nothing else, such as outputs from before a preemption."""
        s = self.scheduler
        if self.release >= 31:
            is_free = s._handle_blocked_waiting_request(request)
        else:
            is_free = not s._is_blocked_waiting_status(
                request.status
            ) or s._try_promote_blocked_waiting_request(request)
        awaits_output = getattr(request, "num_stale_output_tokens", 0) > 0  # since 0.27
        return bool(is_free and not (awaits_output and not request.drop_stale_output))

    def pass_over(self, request: Any) -> None:
        holds = False
        if self.release >= 31:
            self.scheduler.deferred_waiting.add(request)
            holds = self.scheduler._holds_kv_blocks(request)
        (self.holding if holds else self.others).appendleft(request)

    def admit_one(self, request: Any, budget: int) -> int:
        """New tokens of one request, 0 where it has to wait; its hit counts as computed."""
        s, manager = self.scheduler, self.scheduler.kv_cache_manager
        hit, hit_length, again, computed = None, 0, 0, request.num_computed_tokens
        is_looked_up = computed == 0  # else a session that continues
        if is_looked_up:
            if request.resumable and manager.requests.ahead:
                request.block_hashes.clear()  # one may cover a token that was discarded
                request.update_block_hashes()
            hit, hit_length, *junction = manager.get_computed_blocks(request)
            hit_length, again = replayed(self.window, hit_length)
            if hit_length == 0:
                hit = None
            if self.window:
                request.replay_start = hit_length - again
            computed = hit_length - again
            if junction:  # since 0.26
                (request.shared_prefix_boundary,) = junction
            is_first = not junction or request.num_preemptions == 0
            if request.prefill_stats is not None and is_first:
                request.prefill_stats.set(
                    num_prompt_tokens=request.num_prompt_tokens,
                    num_local_cached_tokens=hit_length,
                    num_external_cached_tokens=0,
                )
        count, is_padded = self.count_for(request, computed, budget)
        if count and request.mm_features:
            ahead = {"shift_computed_tokens": s.num_prefill_lookahead}
            given = (request, computed, count, self.to_encode)
            read, count, *self.items = s._try_schedule_encoder_inputs(*given, **ahead)
            self.items = (read, *self.items)
        if count == 0:
            return 0
        granted = manager.allocate_slots(
            request,
            max(count - again, 0),
            num_new_computed_tokens=hit_length,
            new_computed_blocks=hit,
            num_lookahead_tokens=s.num_lookahead_tokens,
            full_sequence_must_fit=s.scheduler_reserve_full_isl,
            has_scheduled_reqs=bool(s.running),
        )
        if granted is None:
            self.items = ()
            if request.mm_features:
                s.encoder_cache_manager.free(request)
            return 0
        if is_looked_up and s.batched_steps.in_flight:
            manager.record_prefix_cache_stats(request, hit_length)
        request.num_computed_tokens = computed
        if is_padded:
            self.drafts[request.request_id] = [-1] * s.num_spec_tokens
        return count

    def encode(self, request: Any, admitted: Admitted) -> None:
        """Take room in the encoder's cache for what the request needs of it."""
        read, self.to_encode, elsewhere, again = self.items
        if read:
            admitted.items[request.request_id] = read
        if read or elsewhere:
            self.scheduler._allocate_encoder_inputs(request, read + elsewhere, again)

    def count_for(self, request: Any, computed: int, budget: int) -> tuple[int, bool]:
        """Return new tokens of a request, 0 if it has to wait; whether some are draft
        placeholders.
        """
        s = self.scheduler
        count = len(request._all_token_ids) - computed
        # Others decode in the step, or from 0.30 on it has a hit. From 0.29 on no token is padded
        # where the sequence would be too long; before, its request waits.
        is_padded = (
            count == 1
            and self.padding > 0
            and (self.is_beside or (self.release >= 30 and computed > 0))
            and (self.release < 29 or computed + 1 + self.padding < s.max_model_len)
        )
        if is_padded:
            count += self.padding
            if count > budget:
                return 0, False
        threshold = s.batched_steps._threshold()
        if 0 < threshold < count:
            count = threshold
        if count > budget and not s.scheduler_config.enable_chunked_prefill:
            return 0, False
        count = min(count, budget)
        if s.batched_steps.seats.split is not None:
            hit = computed - request.num_computed_tokens
            count = s._mamba_block_aligned_split(request, count, hit)
            if is_padded and count not in (0, 1 + self.padding):
                return 1, False
        return count, is_padded
