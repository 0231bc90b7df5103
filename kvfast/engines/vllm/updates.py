"""Add the model's sampled tokens to requests, without the work that usual outputs do not need.

Tokens of an unusual output, or of an unusual scheduler, are left to vLLM's `update_from_output`.
"""

from __future__ import annotations

from time import time
from typing import Any

from vllm.distributed.kv_events import KVEventBatch
from vllm.v1.core.sched.utils import check_stop, remove_all
from vllm.v1.engine import EngineCoreOutput, EngineCoreOutputs
from vllm.v1.request import RequestStatus

from kvfast.engines.vllm.compiled import Taker

QUEUES = ("waiting", "skipped_waiting", "kv_holding_waiting")
"""Of waiting requests; the second up to 0.30, the third since then."""
RUNNING, PREEMPTED = RequestStatus.RUNNING, RequestStatus.PREEMPTED


class Update:
    """One update of a scheduler. `logprobs`: of the sampled tokens, None for none.

    `going_on`: sessions that continue; from 0.33 on they wait after all others.
    """

    logprobs: Any = None

    def __init__(self, scheduler: Any) -> None:
        manager, steps = scheduler.kv_cache_manager, scheduler.batched_steps
        self.scheduler = scheduler
        self.going_on: list[Any] = []
        self.stopped: set[Any] = set()
        self.stopped_waiting: set[Any] = set()
        self.taker = Taker(
            RUNNING,
            PREEMPTED,
            EngineCoreOutput,
            self.told,
            check_stop,
            self.stop,
            manager.cache_blocks if self.caches() else None,
            steps.in_flight,
            steps.by_flight,
            scheduler.num_spec_tokens > 0,
            steps.release >= 25,
            self.prefilled if steps.in_flight else None,
        )
        if steps.in_flight:
            self.taker.let_go = scheduler._free_encoder_inputs

    def take(self, plan: Any, output: Any) -> dict[int, Any]:
        """Return the outputs for each client, and make their changes in the scheduler."""
        self.logprobs = output.logprobs
        self.taker.pooled = output.pooler_output or None
        outputs = self.taker.take_all(
            self.scheduler.batched_steps.seats,
            plan.num_scheduled_tokens,
            self.scheduler.requests,
            output.sampled_token_ids,
            output.req_id_to_index,
            plan.scheduled_spec_decode_tokens,
        )
        self.remove_stopped()
        return self.answer(outputs, output)

    def told(self, request: Any, new: list[int], finish_reason: Any, place: int) -> Any:
        """Make the output of a request with more than tokens."""
        logprobs, pooled = None, self.taker.pooled
        if place >= 0 and self.logprobs:
            logprobs = self.logprobs.slice_request(place, len(new))
        return EngineCoreOutput(
            request.request_id,
            new,
            new_logprobs=logprobs,
            pooling_output=pooled and pooled[place],
            finish_reason=finish_reason,
            stop_reason=request.stop_reason,
            events=request.take_events(),
            prefill_stats=request.take_prefill_stats(),
            trace_headers=request.trace_headers,
            num_nans_in_logits=request.num_nans_in_logits,
        )

    def caches(self) -> bool:
        """Return whether an update may fill a block that the next step would not cache."""
        s = self.scheduler
        return bool(s.batched_steps.is_async or (s.batched_steps.by_flight and s.num_spec_tokens))

    def prefilled(self, request: Any) -> None:
        """Say what of the prompt is cached at its first output, before its blocks may go."""
        manager = self.scheduler.kv_cache_manager
        request.prefill_stats.finalize(manager.estimate_cached_tokens(request))

    def stop(self, request: Any, status: Any) -> Any:
        """Why the request has ended; its blocks go back unless it is a session that waits."""
        if request.pooling_params is not None:
            request.status = RequestStatus.FINISHED_STOPPED
        reason = request.get_finished_reason()
        if (
            status is RequestStatus.WAITING_FOR_STREAMING_REQ
            and not self.scheduler.batched_steps.by_flight
        ):
            request.status = status  # an output in flight: vLLM's method would queue it twice
            return reason
        if self.scheduler._handle_stopped_request(request):
            self.scheduler._free_request(request)
        elif self.scheduler.batched_steps.by_flight:
            self.going_on.append(request)
        (self.stopped if status is RUNNING else self.stopped_waiting).add(request)
        return reason

    def remove_stopped(self) -> None:
        """Take those that ended out of the queues."""
        self.remove_running()
        release = self.scheduler.batched_steps.release
        # Before 0.27 a session that ended stays among the skipped, where it waits for its user.
        for queue in (QUEUES if release >= 27 else QUEUES[:1]) if self.stopped_waiting else ():
            if hasattr(self.scheduler, queue):
                getattr(self.scheduler, queue).remove_requests(self.stopped_waiting)
        if self.stopped_waiting and release >= 31:
            self.scheduler.deferred_waiting.difference_update(self.stopped_waiting)
        for request in self.going_on:
            self.scheduler._enqueue_waiting_request(request)

    def remove_running(self) -> None:
        """Take those that ended out of the running ones, and out of their seats."""
        s, steps = self.scheduler, self.scheduler.batched_steps
        if len(self.taker.ended) < len(self.stopped):
            s.running = remove_all(s.running, self.stopped)
            return
        for place in reversed(self.taker.ended):
            del s.running[place]
            steps.seats.drop(place, s.kv_cache_manager.forgotten)

    def answer(self, outputs: dict[int, list[Any]], output: Any) -> dict[int, Any]:
        s = self.scheduler
        if events := s.kv_cache_manager.take_events():
            s.kv_event_publisher.publish(KVEventBatch(ts=time(), events=events))
        answer = {client: EngineCoreOutputs(outputs=made) for client, made in outputs.items()}
        ended = s.finished_req_ids_dict
        if ended:
            for client, names in ended.items():
                answer.setdefault(client, EngineCoreOutputs()).finished_requests = names
            ended.clear()
        stats = s.make_stats(self.drafting(), None, output.cudagraph_stats, None)
        if stats is not None:
            if not answer:
                answer[0] = EngineCoreOutputs()
            next(iter(answer.values())).scheduler_stats = stats
        return answer

    def drafting(self) -> Any:
        """Count accepted drafts as vLLM does one by one; None if it does not count."""
        stats = None
        for (num_drafts, num_right), times in self.taker.num_rewound.items():
            stats = self.scheduler.make_spec_decoding_stats(stats, num_drafts, num_right, None, "")
            if stats is None:
                break
            more = times - 1
            stats.num_drafts += more
            stats.num_draft_tokens += more * num_drafts
            stats.num_accepted_tokens += more * num_right
            for i in range(num_right):
                stats.num_accepted_tokens_per_pos[i] += more
            for i in range(num_drafts):
                stats.num_draft_tokens_per_pos[i] += more
        return stats
