"""The plan of a batched step, as vLLM's scheduler would have made it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from operator import add, attrgetter
from typing import Any, TypeAlias

from vllm.v1.core.sched.output import CachedRequestData, NewRequestData, SchedulerOutput

from kvfast.engines.vllm.admissions import Admitted
from kvfast.engines.vllm.chosen import Chosen

NewBlocks: TypeAlias = list[tuple[list[int], ...] | None]
"""The blocks that each of the running requests got, None for none."""
IS_CHUNK = attrgetter("is_prefill_chunk")


def planned(scheduler: Any, chosen: Chosen, blocks: NewBlocks, admitted: Admitted) -> Any:
    """The plan, and what making it changes in the scheduler and its requests."""
    s, manager, counts = scheduler, scheduler.kv_cache_manager, chosen.counts
    if isinstance(counts, int):
        scheduled = dict.fromkeys(chosen.names, counts)
    else:
        scheduled = dict(zip(chosen.names, counts, strict=True))
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
        for request in (*chosen.requests, *admitted.requests):
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


def _cached(scheduler: Any, chosen: Chosen, blocks: NewBlocks, resumed: list[Any]) -> Any:
    """What the workers are told of requests that they know."""
    s = scheduler
    names, computed = list(chosen.names), chosen.computed
    outputs = [len(request._output_token_ids) for request in chosen.requests]
    if chosen.placeholders is not None:
        outputs = list(map(add, outputs, chosen.placeholders))
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
    if scheduler.batched_steps.is_async:
        scheduler._spec_token_placeholders = [-1] * scheduler.num_spec_tokens
    if isinstance(chosen.counts, int):
        for request, tokens in zip(chosen.requests, chosen.tokens, strict=True):
            request.num_computed_tokens = tokens  # one token each, and none is of a prompt
        if any(map(IS_CHUNK, chosen.requests)):
            for request in chosen.requests:
                request.is_prefill_chunk = False
                scheduler._inflight_prefills.discard(request)
    else:
        _advance_each(scheduler, chosen.requests, chosen.counts, chosen.drafts)
    if admitted.requests:
        _advance_each(scheduler, admitted.requests, admitted.counts, {})


def _advance_each(
    scheduler: Any,
    requests: Sequence[Any],
    counts: Sequence[int],
    drafts: Mapping[str, Sequence[int]],
) -> None:
    """The same, request by request."""
    s, is_async = scheduler, scheduler.batched_steps.is_async
    for request, count in zip(requests, counts, strict=True):
        if request.spec_token_ids:
            request.spec_token_ids = []
        request.num_computed_tokens = after = request.num_computed_tokens + count
        later = request.num_output_placeholders
        request.is_prefill_chunk = is_chunk = after < len(request._all_token_ids) + later
        if is_chunk:
            continue
        s._inflight_prefills.discard(request)
        if is_async:
            num_drafts = len(drafts[request.request_id]) if request.request_id in drafts else 0
            request.num_output_placeholders = later + 1 + num_drafts
            request.spec_token_ids = s._spec_token_placeholders
            if s.use_v2_model_runner:
                request.next_decode_eligible_step = s.current_step + s.pp_size
