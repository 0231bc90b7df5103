"""What the model sampled, taken into requests: usual outputs without what they do not need.

A token of an unusual output, or of an unusual scheduler, is left to vLLM's `update_from_output`.
"""

from __future__ import annotations

from time import time
from typing import Any

from vllm.distributed.kv_events import KVEventBatch
from vllm.v1.core.sched.utils import check_stop, remove_all
from vllm.v1.engine import EngineCoreOutput, EngineCoreOutputs
from vllm.v1.request import RequestStatus

RUNNING, PREEMPTED = RequestStatus.RUNNING, RequestStatus.PREEMPTED


def is_usual(scheduler: Any, output: Any) -> bool:
    """Whether the output has sampled tokens alone, and nobody else is to be told of them."""
    return (
        bool(output.sampled_token_ids)
        and output.logprobs is None
        and not output.prompt_logprobs_dict
        and not output.pooler_output
        and output.kv_connector_output is None
        and output.num_nans_in_logits is None
        and output.routed_experts is None
        and scheduler.connector is None
        and scheduler.perf_metrics is None
        and not scheduler.defer_block_free
    )


def updated(scheduler: Any, plan: Any, output: Any) -> dict[int, Any]:
    """The outputs for each client, and what the tokens change in the scheduler and its requests."""
    s, step = scheduler, Update(scheduler)
    sampled, index, drafts_of = (
        output.sampled_token_ids,
        output.req_id_to_index,
        plan.scheduled_spec_decode_tokens,
    )
    outputs: dict[int, list[Any]] = {}
    for name in plan.num_scheduled_tokens:
        request = s.requests.get(name)
        if request is None:
            continue
        status = request.status
        if status is not RUNNING and status > PREEMPTED:
            continue  # it was aborted in the meantime
        new = sampled[index[name]]
        if drafts_of and new and (drafts := drafts_of.get(name)):
            step.rewind(plan, request, len(drafts), len(new))
        if request.mm_features:
            s._free_encoder_inputs(request)
        if not new:
            continue
        if step.is_async:
            if request.async_tokens_to_discard > 0:
                request.async_tokens_to_discard -= 1
                continue  # sampled before the cache was reset
            stops = step.take_later(request, new)
        else:
            stops = step.take(request, new)
        finish_reason = step.stop(request, status) if stops else None
        made = (
            EngineCoreOutput(name, new)
            if finish_reason is None and _says_nothing_else(request)
            else EngineCoreOutput(
                name,
                new,
                finish_reason=finish_reason,
                stop_reason=request.stop_reason,
                events=request.take_events(),
                prefill_stats=request.take_prefill_stats(),
                trace_headers=request.trace_headers,
                num_nans_in_logits=request.num_nans_in_logits,
            )
        )
        client = request.client_index
        if client in outputs:
            outputs[client].append(made)
        else:
            outputs[client] = [made]
    step.remove_stopped()
    return step.answer(outputs, output)


def _says_nothing_else(request: Any) -> bool:
    """Whether a request that goes on has only tokens to tell."""
    return (
        not request.events
        and request.prefill_stats is None
        and request.stop_reason is None
        and request.trace_headers is None
        and not request.num_nans_in_logits
    )


class Update:
    """One update of a scheduler."""

    def __init__(self, scheduler: Any) -> None:
        self.scheduler = scheduler
        self.is_async = scheduler.batched_steps.is_async
        self.longest = scheduler.max_model_len
        self.hash_size = scheduler.kv_cache_manager.requests.hash_block_size
        self.spec_stats: Any = None
        self.stopped: set[Any] = set()
        self.stopped_waiting: set[Any] = set()

    def rewind(self, plan: Any, request: Any, num_drafts: int, num_sampled: int) -> None:
        """Take back the drafts that were wrong."""
        num_right = num_sampled - 1
        if request.num_computed_tokens > 0:
            request.num_computed_tokens -= num_drafts - num_right
        if request.num_output_placeholders > 0:
            request.num_output_placeholders -= num_drafts - num_right
        self.spec_stats = self.scheduler.make_spec_decoding_stats(
            self.spec_stats, num_drafts, num_right, plan.num_invalid_spec_tokens, request.request_id
        )

    def take(self, request: Any, new: list[int]) -> bool:
        """Append tokens up to one that ends the request, and drop those behind it."""
        tokens, outputs = request._all_token_ids, request._output_token_ids
        params, size = request.sampling_params, self.hash_size
        for number, token in enumerate(new, 1):
            outputs.append(token)
            tokens.append(token)
            # vLLM's hasher is asked for each token, and mostly has nothing to hash.
            if len(tokens) - len(request.block_hashes) * size >= size:
                request.update_block_hashes()
            if (
                token == params.eos_token_id
                or len(outputs) >= request.max_tokens
                or len(tokens) >= self.longest
                or (params.stop_token_ids and token in params.stop_token_ids)
                or params.repetition_detection is not None
            ) and check_stop(request, self.longest):
                del new[number:]
                return True
        return False

    def take_later(self, request: Any, new: list[int]) -> bool:
        """The same for tokens that were counted when their step was planned."""
        before = len(request._all_token_ids)
        is_running = request.status is RUNNING
        stops = self.take(request, new)
        request.num_output_placeholders -= len(new)
        if is_running and self.hash_size:
            done = request.num_computed_tokens - request.num_output_placeholders
            # The last step cached what was known then, and an update what was final.
            if done // self.hash_size > (before - 1) // self.hash_size:
                self.scheduler.kv_cache_manager.cache_blocks(request, done)
        return stops

    def stop(self, request: Any, status: Any) -> Any:
        """Why the request has ended; its blocks go back unless it is a session that waits."""
        reason = request.get_finished_reason()
        if self.scheduler._handle_stopped_request(request):
            self.scheduler._free_request(request)
        (self.stopped if status is RUNNING else self.stopped_waiting).add(request)
        return reason

    def remove_stopped(self) -> None:
        """Take those that ended out of the queues."""
        if self.stopped:
            self.scheduler.running = remove_all(self.scheduler.running, self.stopped)
        if self.stopped_waiting:
            self.scheduler.waiting.remove_requests(self.stopped_waiting)

    def answer(self, outputs: dict[int, list[Any]], output: Any) -> dict[int, Any]:
        """What each client gets; events are published."""
        s = self.scheduler
        if events := s.kv_cache_manager.take_events():
            s.kv_event_publisher.publish(KVEventBatch(ts=time(), events=events))
        answer = {client: EngineCoreOutputs(outputs=made) for client, made in outputs.items()}
        ended = s.finished_req_ids_dict
        if ended:
            for client, names in ended.items():
                answer.setdefault(client, EngineCoreOutputs()).finished_requests = names
            ended.clear()
        stats = s.make_stats(self.spec_stats, None, output.cudagraph_stats, None)
        if stats is not None:
            if not answer:
                answer[0] = EngineCoreOutputs()
            next(iter(answer.values())).scheduler_stats = stats
        return answer
