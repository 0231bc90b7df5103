"""The plan of a batched step, as vLLM's scheduler would have made it."""

from __future__ import annotations

from typing import Any

from vllm.v1.core.sched.output import CachedRequestData, NewRequestData, SchedulerOutput

from kvfast.engines.vllm.admissions import Admitted
from kvfast.engines.vllm.compiled import Chosen


def planned(scheduler: Any, chosen: Chosen, blocks: list[Any], admitted: Admitted) -> Any:
    """Return the plan, and make its changes in the scheduler and its requests.

    `blocks`: those that each of the running requests got, None for none.
    """
    s = scheduler
    scheduled = chosen.seats.scheduled(chosen)
    for request, count in zip(admitted.requests, admitted.counts, strict=True):
        scheduled[request.request_id] = count
    new, resumed = admitted.new, admitted.resumed
    if s.use_v2_model_runner:
        new, resumed = new + resumed, []
    told = [_new(s, request) for request in new]
    plan = SchedulerOutput(
        scheduled_new_reqs=told,
        scheduled_cached_reqs=_cached(s, chosen, blocks, resumed),
        num_scheduled_tokens=scheduled,
        total_num_scheduled_tokens=chosen.total + sum(admitted.counts),
        scheduled_spec_decode_tokens=chosen.drafts,
        scheduled_encoder_inputs=admitted.items,
        finished_req_ids=s.finished_req_ids,
        free_encoder_mm_hashes=s.encoder_cache_manager.get_freed_mm_hashes(),
        num_spec_tokens_to_schedule=s.num_spec_tokens,
        **s.batched_steps.told_besides(scheduled, told, chosen, admitted),
    )
    s.batched_steps.last, s.batched_steps.all_ran = scheduled, not chosen.skipped
    if s.defer_block_free and scheduled:
        s.sched_step_seq += 1
        for request in (*chosen.requests(), *admitted.requests):
            request.last_sched_seq = s.sched_step_seq
    _advance(s, chosen, admitted)
    s.finished_req_ids = set()
    return plan


def _new(scheduler: Any, request: Any) -> Any:
    """Return what workers need of a request that they do not know."""
    blocks = scheduler.kv_cache_manager.get_block_ids(request.request_id)
    known = (request._all_token_ids,) if scheduler.use_v2_model_runner else ()
    options = scheduler.batched_steps.new_options
    return NewRequestData.from_request(request, blocks, *known, **options)


def _cached(scheduler: Any, chosen: Chosen, blocks: list[Any], resumed: list[Any]) -> Any:
    """Return what workers need of requests that they know."""
    s = scheduler
    names, computed, outputs = chosen.names, chosen.computed, chosen.outputs
    for request in resumed:
        names.append(request.request_id)
        blocks.append(s.kv_cache_manager.get_blocks(request.request_id).get_block_ids(True))
        computed.append(request.num_computed_tokens)
        outputs.append(len(request._output_token_ids) + request.num_output_placeholders)
    told: dict[str, list[int]] = {}
    last, all_ran = s.batched_steps.last, s.batched_steps.all_ran and not resumed
    known = s.prev_step_scheduled_req_ids if last is None else last
    if not (s.use_v2_model_runner or all_ran or all(map(known.__contains__, names))):
        told = {each: s.requests[each]._all_token_ids.copy() for each in names if each not in known}
    return CachedRequestData(
        req_ids=names,
        resumed_req_ids={request.request_id for request in resumed},
        new_token_ids=[],
        all_token_ids=told,
        new_block_ids=blocks,
        num_computed_tokens=computed,
        num_output_tokens=outputs,
    )


def _advance(scheduler: Any, chosen: Chosen, admitted: Admitted) -> None:
    s, placeholders, eligible_at = scheduler, None, 0
    steps = s.batched_steps
    if steps.is_async:
        placeholders = s._spec_token_placeholders = [-1] * s.num_spec_tokens
        if s.use_v2_model_runner:
            eligible_at = s.current_step + steps.stagger
    seats, counts = chosen.seats, chosen.counts
    if admitted.requests:  # they have the last seats
        seats.read(len(seats.names) - len(admitted.counts), len(counts))
        counts = counts + admitted.counts
    seats.advance(counts, chosen.drafts, s._inflight_prefills, placeholders, eligible_at)
