"""The plan of a batched step, as vLLM's scheduler would have made it."""

from __future__ import annotations

from typing import Any

from vllm.v1.core.sched.output import CachedRequestData, NewRequestData, SchedulerOutput

from kvfast.engines.vllm.admissions import Admitted
from kvfast.engines.vllm.compiled import Chosen, Seats


def planned(scheduler: Any, chosen: Chosen, blocks: list[Any], admitted: Admitted) -> Any:
    """The plan, and what making it changes in the scheduler and its requests.

    `blocks`: those that each of the running requests got, None for none.
    """
    s, manager = scheduler, scheduler.kv_cache_manager
    scheduled = chosen.seats.scheduled(chosen)
    for request, count in zip(admitted.requests, admitted.counts, strict=True):
        scheduled[request.request_id] = count
    common = [0] * manager.num_kv_cache_groups
    if s.running:
        common = manager.get_num_common_prefix_blocks(s.running[0].request_id)
    new, resumed = admitted.new, admitted.resumed
    if s.use_v2_model_runner:
        new, resumed = new + resumed, []
    plan = SchedulerOutput(
        scheduled_new_reqs=[_new(s, request) for request in new],
        scheduled_cached_reqs=_cached(s, chosen, blocks, resumed),
        num_scheduled_tokens=scheduled,
        total_num_scheduled_tokens=sum(scheduled.values()),
        scheduled_spec_decode_tokens=chosen.drafts,
        scheduled_encoder_inputs={},
        num_common_prefix_blocks=common,
        finished_req_ids=s.finished_req_ids,
        free_encoder_mm_hashes=s.encoder_cache_manager.get_freed_mm_hashes(),
        preempted_req_ids=set(),
        new_block_ids_to_zero=(manager.take_new_block_ids() or None)
        if s.needs_kv_cache_zeroing
        else None,
        num_spec_tokens_to_schedule=s.num_spec_tokens,
    )
    if not s.use_v2_model_runner and s.prev_step_scheduled_req_ids != scheduled.keys():
        s.prev_step_scheduled_req_ids.clear()
        s.prev_step_scheduled_req_ids.update(scheduled)
    if s.defer_block_free and scheduled:
        s.sched_step_seq += 1
        for request in (*chosen.seats.requests, *admitted.requests):
            request.last_sched_seq = s.sched_step_seq
    _advance(s, chosen, admitted)
    s.finished_req_ids = set()
    return plan


def _new(scheduler: Any, request: Any) -> Any:
    """What the workers are told of a request that they do not know."""
    blocks = scheduler.kv_cache_manager.get_block_ids(request.request_id)
    if scheduler.use_v2_model_runner:
        return NewRequestData.from_request(request, blocks, request._all_token_ids)
    return NewRequestData.from_request(request, blocks)


def _cached(scheduler: Any, chosen: Chosen, blocks: list[Any], resumed: list[Any]) -> Any:
    """What the workers are told of requests that they know."""
    s = scheduler
    names, computed, outputs = chosen.seats.names.copy(), chosen.computed, chosen.outputs
    for request in resumed:
        names.append(request.request_id)
        blocks.append(s.kv_cache_manager.get_blocks(request.request_id).get_block_ids(True))
        computed.append(request.num_computed_tokens)
        outputs.append(len(request._output_token_ids) + request.num_output_placeholders)
    told: dict[str, list[int]] = {}
    if not s.use_v2_model_runner and not s.prev_step_scheduled_req_ids.issuperset(names):
        for name in names:
            if name not in s.prev_step_scheduled_req_ids:
                told[name] = s.requests[name]._all_token_ids.copy()
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
    """The requests as they are once the step is planned."""
    s, placeholders, eligible_at = scheduler, None, 0
    if s.batched_steps.is_async:
        placeholders = s._spec_token_placeholders = [-1] * s.num_spec_tokens
        if s.use_v2_model_runner:
            eligible_at = s.current_step + s.pp_size
    prefills = s._inflight_prefills
    chosen.seats.advance(chosen.counts, chosen.drafts, prefills, placeholders, eligible_at)
    if admitted.requests:
        seats = Seats(admitted.requests, [], [], [])
        seats.read()
        seats.advance(admitted.counts, {}, prefills, placeholders, eligible_at)
