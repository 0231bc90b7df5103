"""Batched steps for the schedulers of vLLM 0.31 to 0.33."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from time import monotonic
from typing import Any

from vllm.v1.engine import EngineCoreEventType

from kvfast.engines.vllm.admissions import Admitted, padding_of
from kvfast.engines.vllm.compiled import Chosen
from kvfast.engines.vllm.manager import KvfastManager
from kvfast.engines.vllm.middle_steps import MiddleSteps


class LaterSteps(MiddleSteps):
    """The batched path of a scheduler of 0.31 to 0.33."""

    def __init__(self, scheduler: Any, manager: KvfastManager) -> None:
        super().__init__(scheduler, manager)
        self.stagger = getattr(scheduler, "decode_stagger", 1)
        self.by_flight = self.takes_items = self.release >= 33
        if scheduler.need_mamba_block_aligned_split:
            self.seats.split = scheduler._mamba_block_aligned_split

    def _never(self) -> str | None:
        if getattr(self.scheduler, "local_prefill_interval", 1) > 1:  # since 0.33
            return "prefills that are held back"
        return super()._never()

    def _has_experts(self) -> bool:
        return self.scheduler.aux_output_connector is not None

    def _has_waiting(self) -> bool:
        return bool(self.scheduler.waiting or self.scheduler.kv_holding_waiting)

    def _threshold(self) -> int:
        s = self.scheduler
        threshold, number = super()._threshold(), sum(s.get_request_counts())
        if number <= 1 or threshold == 0:
            return 0  # no request would be delayed
        if s.adaptive_long_prefill_threshold:
            threshold = max(threshold, s.scheduler_config.max_num_batched_tokens // number)
        return threshold

    def _admitted(self, left: int, chosen: Chosen) -> Admitted:
        s = self.scheduler
        admitted = self.nobody
        if self._has_waiting():
            admitted = Admission(s, chosen).admit(left)
        s.prefill_capacity_bound = s.get_request_counts()[1] > len(s.deferred_waiting)
        return admitted

    def told_besides(
        self, scheduled: Mapping[str, int], new: list[Any], chosen: Chosen, admitted: Admitted
    ) -> dict[str, Any]:
        """Return the further members of the plan, and make their changes in the scheduler."""
        s = self.scheduler
        preempted, s.reset_preempted_req_ids = s.reset_preempted_req_ids, set()
        told: dict[str, Any] = {
            "preempted_req_ids": preempted,
            "new_block_ids_to_zero": s._get_new_block_ids_to_zero(),
            "ec_manager_metadata": s.encoder_cache_manager.get_manager_metadata(),
        }
        if s.has_mamba_layers:
            told["kv_cache_block_copies"] = self._copies()
        if self.release >= 33:
            s.num_executed_steps += bool(scheduled)
            # It examines every request.
            reads = any(each.mm_features for each in new) or any(
                s._pending_encoder_input_ids.values()
            )
            told["encoder_input_updates"] = (
                s._get_encoder_input_updates(scheduled, new, admitted.items) if reads else {}
            )
            told["skip_drafts"] = s.can_skip_drafts and not self._needs_drafts(chosen, admitted)
        if self.release < 32:
            told["num_common_prefix_blocks"] = self._common_prefix()
        return told

    def _copies(self) -> list[Any] | None:
        """Return the copies of blocks in which a hit ends, None for none; their ends are held."""
        s = self.scheduler
        copies, held = s.kv_cache_manager.take_kv_cache_block_copies()
        if copies:
            s._free_cow_retained_blocks(held, s.sched_step_seq + 1)
        return copies or None

    def _needs_drafts(self, chosen: Chosen, admitted: Admitted) -> bool:
        """Return whether any request may use the drafts that are made after the step."""
        unused = self.scheduler._drafts_unused
        rows = zip(chosen.requests(), chosen.computed, chosen.counts, strict=True)
        if not all(unused(*row) for row in rows):
            return True
        later = zip(admitted.requests, admitted.counts, strict=True)
        return not all(unused(one, one.num_computed_tokens, count) for one, count in later)

    def _is_usual(self, plan: Any, output: Any) -> bool:
        return (
            super()._is_usual(plan, output)
            and not output.prompt_token_id_logprobs_dict
            and not self.scheduler.encoder_cache_mismatch_reqs
        )


class Admission:
    """Taking waiting requests into one step, one by one, as vLLM's scheduler does.

    Those that are passed over go back to the front of their queues: `holding` of those that hold
    blocks, `others` of the rest.
    """

    def __init__(self, scheduler: Any, chosen: Chosen) -> None:
        self.scheduler = scheduler
        self.drafts = chosen.drafts
        self.padding = padding_of(scheduler, chosen)
        self.to_encode = scheduler.max_num_encoder_input_tokens
        self.holding: deque[Any] = deque()
        self.others: deque[Any] = deque()

    def admit(self, budget: int) -> Admitted:
        """Take in what fits: into the tokens that are left, the running requests, and the pool."""
        s, now, admitted = self.scheduler, monotonic(), Admitted()
        while budget > 0:
            queue = s.kv_holding_waiting or s.waiting
            num_active = len(s.running) + s.num_waiting_for_streaming_input
            if not queue or num_active >= s.max_num_active_reqs:
                break
            request = queue.peek_request()
            is_ready = s._handle_blocked_waiting_request(request)
            if not is_ready or (request.num_stale_output_tokens and not request.drop_stale_output):
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
            s.deferred_waiting.discard(queue.pop_request())
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
            s.waiting.prepend_requests(self.others)
        return admitted

    def pass_over(self, request: Any) -> None:
        """Leave a request to the next step."""
        self.scheduler.deferred_waiting.add(request)
        holds = self.scheduler._holds_kv_blocks(request)
        (self.holding if holds else self.others).appendleft(request)

    def admit_one(self, request: Any, budget: int) -> int:
        """New tokens of one request, 0 where it has to wait; its hit counts as computed."""
        s, manager = self.scheduler, self.scheduler.kv_cache_manager
        hit, hit_length, computed = None, 0, request.num_computed_tokens
        is_looked_up = computed == 0  # else a session that continues
        if is_looked_up:
            if request.resumable and manager.requests.ahead:
                request.block_hashes.clear()  # one may cover a token that was discarded
                request.update_block_hashes()
            hit, hit_length, request.shared_prefix_boundary = manager.get_computed_blocks(request)
            computed = hit_length
            if request.prefill_stats is not None and request.num_preemptions == 0:
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
            count,
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
        if is_looked_up:
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
        is_padded = self.padding.fits(count, computed)
        if is_padded:
            count += self.padding.num_tokens
            if count > budget:
                return 0, False
        threshold = s.batched_steps._threshold()
        if 0 < threshold < count:
            count = threshold
        if count > budget and not s.scheduler_config.enable_chunked_prefill:
            return 0, False
        count = min(count, budget)
        if s.need_mamba_block_aligned_split:
            hit = computed - request.num_computed_tokens
            count = s._mamba_block_aligned_split(request, count, hit)
            if is_padded and count not in (0, 1 + self.padding.num_tokens):
                return 1, False
        return count, is_padded
