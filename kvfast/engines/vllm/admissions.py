"""Waiting requests that a batched step takes in, one by one, as vLLM's scheduler does."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from vllm.v1.core.sched.request_queue import create_request_queue
from vllm.v1.engine import EngineCoreEventType
from vllm.v1.request import RequestStatus

from kvfast.engines.vllm.compiled import Chosen

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

    @property
    def names(self) -> list[str]:
        """The names of all of them."""
        return [request.request_id for request in self.requests]


@dataclass(frozen=True)
class Padding:
    """One token is padded to the length that decodes with drafts have, from vLLM 0.25 on.

    `is_beside`: others decode in the step; from 0.30 on it is enough that the request has a hit.
    `longest`: tokens of the longest sequence; from 0.29 on no token is padded where it would be
    longer, and before, its request waits.
    """

    num_tokens: int
    is_beside: bool
    longest: int
    release: int

    def fits(self, count: int, computed: int) -> bool:
        """Return whether `count` new tokens are padded after the computed ones."""
        if count != 1 or not self.num_tokens:
            return False
        if not self.is_beside and not (self.release >= 30 and computed > 0):
            return False
        return self.release < 29 or computed + 1 + self.num_tokens < self.longest


def padding_of(scheduler: Any, chosen: Chosen) -> Padding:
    """Return the padding of requests beside these, which run: none beside prompts."""
    release = scheduler.batched_steps.release
    num_tokens = scheduler.num_spec_tokens if release >= 25 else 0
    running = chosen.requests() if num_tokens else []
    if any(request.is_prefill_chunk for request in running):
        num_tokens = 0
    return Padding(num_tokens, bool(running), scheduler.max_model_len, release)


def admit(scheduler: Any, budget: int, now: float, chosen: Chosen) -> Admitted:
    """Take in what fits: into the tokens that are left, the running requests, and the pool.

    From vLLM 0.25 on sessions that wait for their users count as running.
    """
    admitted = Admitted()
    passed_over = create_request_queue(scheduler.policy)
    most, padding = scheduler.max_num_running_reqs, padding_of(scheduler, chosen)
    if scheduler.batched_steps.release >= 25:
        most -= scheduler.num_waiting_for_streaming_input
    while budget > 0 and len(scheduler.running) < most:
        queue = scheduler._select_waiting_queue_for_scheduling()
        if not queue:
            break
        request = queue.peek_request()
        is_blocked = scheduler._is_blocked_waiting_status(request.status)
        if (
            is_blocked and not scheduler._try_promote_blocked_waiting_request(request)
        ) or _awaits_output(request):
            passed_over.prepend_request(queue.pop_request())
            continue
        count, is_padded = _admit_one(scheduler, request, budget, padding)
        if count == 0:
            break
        if is_padded:
            chosen.drafts[request.request_id] = [-1] * padding.num_tokens
        budget -= count
        queue.pop_request()
        scheduler.running.append(request)
        if scheduler.log_stats:
            request.record_event(EngineCoreEventType.SCHEDULED, now)
        admitted.add(request, count)
        if request.num_computed_tokens + count < len(request._all_token_ids):
            scheduler._inflight_prefills.add(request)
    if passed_over:
        scheduler.skipped_waiting.prepend_requests(passed_over)
    scheduler.prefill_capacity_bound = bool(scheduler.waiting)
    return admitted


def _awaits_output(request: Any) -> bool:
    """Return whether outputs from before its preemption are still to come: from vLLM 0.27 on."""
    stale: int = getattr(request, "num_stale_output_tokens", 0)
    return stale > 0 and not request.drop_stale_output


def _admit_one(scheduler: Any, request: Any, budget: int, padding: Padding) -> tuple[int, bool]:
    """Return the new tokens of a request, 0 if it has to wait; whether some are draft placeholders.

    Its hit counts as computed.
    """
    manager, config = scheduler.kv_cache_manager, scheduler.scheduler_config
    hit, hit_length, computed = None, 0, request.num_computed_tokens
    if computed == 0:  # else a session that continues
        hit, hit_length, *junction = manager.get_computed_blocks(request)
        computed = hit_length
        if junction:  # since 0.26
            (request.shared_prefix_boundary,) = junction
        is_first = not junction or request.num_preemptions == 0
        if request.prefill_stats is not None and is_first:
            request.prefill_stats.set(
                num_prompt_tokens=request.num_prompt_tokens,
                num_local_cached_tokens=hit_length,
                num_external_cached_tokens=0,
            )
    count: int = len(request._all_token_ids) - computed
    is_padded = padding.fits(count, computed)
    if is_padded:
        count += padding.num_tokens
        if count > budget or computed + count > padding.longest:
            return 0, False
    if 0 < config.long_prefill_token_threshold < count:
        count = config.long_prefill_token_threshold
    if count > budget:
        if not config.enable_chunked_prefill:
            return 0, False
        count = budget
    granted = manager.allocate_slots(
        request,
        count,
        num_new_computed_tokens=hit_length,
        new_computed_blocks=hit,
        num_lookahead_tokens=scheduler.num_lookahead_tokens,
        full_sequence_must_fit=scheduler.scheduler_reserve_full_isl,
        has_scheduled_reqs=bool(scheduler.running),
    )
    if granted is None:
        return 0, False
    if scheduler.batched_steps.in_flight and request.num_computed_tokens == 0:
        manager.record_prefix_cache_stats(request, hit_length)
    request.num_computed_tokens = computed
    return count, is_padded
