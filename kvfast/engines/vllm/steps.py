"""Steps of running requests in one call of kvfast, with the plan that vLLM's scheduler would make.

A step is examined before anything changes. An unusual one is left to vLLM's own `schedule` as a
whole, and counted by its reason.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from vllm.v1.core.sched.async_scheduler import AsyncScheduler
from vllm.v1.core.sched.interface import PauseState
from vllm.v1.core.sched.scheduler import Scheduler

from kvfast.engines.vllm.admissions import Admission, Admitted
from kvfast.engines.vllm.compiled import Chosen, Seats
from kvfast.engines.vllm.manager import NO_HANDLE, KvfastManager
from kvfast.engines.vllm.plans import planned
from kvfast.engines.vllm.updates import QUEUES
from kvfast.engines.vllm.usual import is_usual
from kvfast.engines.vllm.versions import release
from kvspec.batched import StepOutput

ROWS = 1024
HOOKS = (
    "_update_after_schedule",
    "_make_cached_request_data",
    "_preempt_request",
    "_update_request_with_output",
)
"""Methods whose work is done here for all requests at once, unless a subclass changed them."""
UNUSUAL = "structured output, or pooling or images before 0.33"


class BatchedSteps:
    """The batched path of one scheduler.

    `by_flight`: all tokens but those in flight are final. `stagger`: steps from one decode of a
    request to the next. `pools`: all end with a pooled output. `new_options`: further members of a
    new one. `seats`: the running requests, kept from step to step. `unusual`: names of requests
    whose steps are all left to vLLM's scheduler; `odd`: one is unexpected. `last`: tokens of a
    batched step, if it was the last; `all_ran`: all that have a seat since then ran in it.
    """

    def __init__(self, scheduler: Any, manager: KvfastManager) -> None:
        self.scheduler = scheduler
        self.manager = manager
        self.batched = manager.batched
        self.is_async = isinstance(scheduler, AsyncScheduler)
        self.release = release()
        self.by_flight = self.release >= 33
        self.pools = self.by_flight and scheduler.vllm_config.model_config.runner_type == "pooling"
        groups = scheduler.kv_cache_config.kv_cache_groups
        self.block_sizes = [group.kv_cache_spec.block_size for group in groups]
        self.smallest = min(self.block_sizes, default=1)
        self.never = self.never_updates = self._never()
        if self.never is None and scheduler.has_mamba_layers and self.release < 33:
            self.never = "Mamba layers before 0.33"
        config = scheduler.scheduler_config
        self.budget = min(scheduler.max_num_scheduled_tokens, config.max_num_batched_tokens)
        self.stagger: int = getattr(scheduler, "decode_stagger", getattr(scheduler, "pp_size", 1))
        is_told = hasattr(scheduler, "model_uses_mrope")  # since 0.29
        self.new_options = {"uses_mrope": scheduler.model_uses_mrope} if is_told else {}
        self.nobody = Admitted()
        self.seats = Seats(
            scheduler.max_model_len,
            manager.requests.hash_block_size,
            manager.requests.ahead,
            scheduler.num_spec_tokens > 0,
            self.is_async,
            scheduler.num_sampled_tokens_per_step,
        )
        self.seats.batch, self.seats.in_flight = self.batched, self.in_flight
        self.seats.staggers = scheduler.use_v2_model_runner
        self.odd = False
        self.last: dict[str, int] | None = None
        self.all_ran = False
        self.unusual: set[str] = set()
        self.num_singles = -1
        self._make_rows(ROWS)

    @property
    def in_flight(self) -> bool:
        """Whether the scheduler counts tokens of steps that were planned and not updated."""
        return self.release >= 26

    def _never(self) -> str | None:
        """Why no step of this scheduler is batched; most parts came after 0.24."""
        s, spec = self.scheduler, self.scheduler.vllm_config.speculative_config
        stock = AsyncScheduler if self.is_async else Scheduler
        members = vars(s)
        later = members if self.in_flight else {}
        reasons = {
            "a scheduler with methods of its own": any(
                getattr(type(s), name) is not getattr(stock, name) for name in HOOKS
            ),
            "a model that is no plain decoder": s.is_encoder_decoder
            or not (s.num_sampled_tokens_per_step == 1 or self.pools),
            "pipelines, routed experts or drafts of changing length": s.use_pp
            or members.get("enable_return_routed_experts")  # up to 0.30
            or members.get("aux_output_connector")
            or s.dynamic_sd_lookup is not None,
            "drafts that take slots of the step": later
            and spec is not None
            and spec.max_num_new_slots_for_drafting > 0,
            "details of each step in the log": later
            and s.observability_config.enable_logging_iteration_details,
            "an encoder alone, or masks of samples": later.get("is_mm_encoder_only")
            or later.get("return_sampling_mask"),
            "figures of drafts for each request": later.get("spec_decode_metrics_level", "none")
            != "none",
            "replayed windows beside states": later.get("prefix_replay_tokens")
            and s.has_mamba_layers,
            "prefills that are held back": later.get("local_prefill_interval", 1) > 1,
        }
        return next((why for why, is_so in reasons.items() if is_so), None)

    def _make_rows(self, num_rows: int) -> None:
        self.num_rows = num_rows
        self.rows = memoryview(bytearray(16 * num_rows)).cast("i", [num_rows, 4])
        self.output = StepOutput(block_deltas=self.rows)

    def schedule(self) -> Any:
        """vLLM's plan of the step; why not, as a text, where vLLM's scheduler has to make it."""
        s = self.scheduler
        waits = any(getattr(s, queue, None) for queue in QUEUES)
        if reason := self._reason(waits):
            return reason
        if not self._are_seated():
            return UNUSUAL
        chosen = self._chosen()
        if chosen is None:
            return "an image or a sound in a chunk, or tokens beyond the longest sequence"
        if chosen.total and not self._fits(chosen):
            return "the pool is nearly full"
        s.current_step += 1
        self.manager.fast.new_step_starts()
        blocks: list[Any] = self._granted(chosen) if chosen.total else []
        admitted = self._admitted(waits * (self.budget - chosen.total), chosen)
        self._join(admitted.requests)
        return planned(s, chosen, blocks, admitted)

    def _admitted(self, left: int, chosen: Chosen) -> Admitted:
        """Admit requests beside the running ones, with the rest of the token budget."""
        s = self.scheduler
        admitted = self.nobody
        if left:
            admitted = Admission(s, chosen).admit(left)
        s.prefill_capacity_bound = bool(s.waiting)
        if self.release >= 31:
            s.prefill_capacity_bound = s.get_request_counts()[1] > len(s.deferred_waiting)
        return admitted

    def told_besides(
        self, scheduled: Mapping[str, int], new: list[Any], chosen: Chosen, admitted: Admitted
    ) -> dict[str, Any]:
        """Return the further members of the plan, and make their changes in the scheduler."""
        s, manager = self.scheduler, self.manager
        zeroed = manager.take_new_block_ids() or None
        told: dict[str, Any] = {
            "preempted_req_ids": set(),
            "new_block_ids_to_zero": zeroed if s.needs_kv_cache_zeroing else None,
        }
        if self.release >= 25:  # by a reset between steps
            told["preempted_req_ids"], s.reset_preempted_req_ids = s.reset_preempted_req_ids, set()
        if self.release < 32:
            told["num_common_prefix_blocks"] = self._common_prefix()
        if self.release >= 27:
            told["ec_manager_metadata"] = s.encoder_cache_manager.get_manager_metadata()
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

    def _common_prefix(self) -> list[int]:
        running, manager = self.scheduler.running, self.manager
        if not running:
            return [0] * manager.num_kv_cache_groups
        return manager.get_num_common_prefix_blocks(running[0].request_id)

    def _reason(self, waits: bool) -> str | None:
        """Why this step is not batched, as far as that is seen without its requests."""
        s = self.scheduler
        if self.never is not None:
            return self.never
        if s.connector is not None or s.ec_connector is not None:
            return "connectors"
        if s._pause_state is not PauseState.UNPAUSED:
            return "paused"
        if self._has_unusual():
            return UNUSUAL
        if waits:
            return "adapters" if s.lora_config else None
        return None if s.running else "nothing to do"

    def _has_unusual(self) -> bool:
        """Return whether any request, and with it each step, is left to vLLM's scheduler."""
        if self.unusual:
            self.unusual.intersection_update(self.scheduler.requests)
        return bool(self.unusual)

    def may_update(self, plan: Any, output: Any) -> bool:
        """Return whether the model's output can be applied by the short way."""
        may = self.never_updates is None and not self._has_unusual()
        if may and is_usual(self.scheduler, plan, output) and self._are_seated():
            return True
        self.seats.forget_plain()
        return False

    def tell_last(self) -> None:
        """Write what the last step computed where vLLM's scheduler reads and changes it."""
        if self.last is not None:
            self.scheduler.prev_step_scheduled_req_ids = set(self.last)
            self.last, self.all_ran = None, False

    def is_unusual(self, request: Any) -> bool:
        takes_items = self.release >= 33 and not self.scheduler.is_encoder_decoder
        return (
            (bool(request.mm_features) and not takes_items)
            or request.structured_output_request is not None
            or (request.pooling_params is not None and not self.pools)
        )

    # What runs.

    def _are_seated(self) -> bool:
        """Seat those that run; return False if any of them is unusual."""
        running, forgotten = self.scheduler.running, self.manager.forgotten
        if self.odd or forgotten or running != self.seats.requests:
            came = running[self.seats.keep(running, forgotten) :]
            self.odd = any(map(self.is_unusual, came))
            if not self.odd:
                self._join(came)
            self.all_ran = self.all_ran and not came
        return not self.odd

    def _join(self, came: list[Any]) -> None:
        """Note what stays as it is while these run, beside the others."""
        manager = self.manager
        handles = manager.handles
        mine = [manager.requests.current(request) for request in came]
        names = [request.request_id for request in came]
        for name, one in zip(names, mine, strict=True):
            if name not in handles:
                # Where no step is batched, the blocks noted for it would never be taken.
                handles[name] = NO_HANDLE if self.never else self.batched.register(one)
                self.num_singles = -1
        self.seats.join(came, [handles[name] for name in names], mine)

    def _chosen(self) -> Chosen | None:
        """Choose what each computes, before asking the pool."""
        s = self.scheduler
        is_split = s.need_mamba_block_aligned_split
        self.seats.split = s._mamba_block_aligned_split if is_split else None
        return self.seats.choose(self.budget, self._threshold(), s.current_step + 1)

    def _threshold(self) -> int:
        """Return the most tokens of a prompt in one step; 0: any number."""
        s = self.scheduler
        threshold = int(s.scheduler_config.long_prefill_token_threshold)
        if self.release < 31 or threshold == 0:
            return threshold
        number = sum(s.get_request_counts())
        if number <= 1:
            return 0  # no request would be delayed
        if s.adaptive_long_prefill_threshold:
            threshold = max(threshold, s.scheduler_config.max_num_batched_tokens // number)
        return threshold

    def _fits(self, chosen: Chosen) -> bool:
        """Return whether the pool has the needed blocks, and the rows room to report them."""
        ahead = self.scheduler.num_lookahead_tokens
        num_lists = len(chosen.counts) * len(self.block_sizes)
        free: int = self.manager.fast.num_free_blocks
        rows: int = num_lists * ((chosen.most + ahead) // self.smallest + 2)
        bound = rows
        if self.scheduler.has_mamba_layers:
            bound += num_lists  # a state may be copied before it is overwritten
        if bound > free:
            bound = self._needed(chosen, ahead)
        if rows > self.num_rows:
            self._make_rows(2 * rows)
        return bound <= free

    def _needed(self, chosen: Chosen, ahead: int) -> int:
        """Return the most blocks that they may take; of states, lengths do not say it."""
        rows, needed = zip(chosen.computed, chosen.counts, strict=True), 0
        if self.scheduler.has_mamba_layers:
            ask, known = self.manager.fast.get_num_blocks_to_allocate, self.manager.requests
            for one, (done, count) in zip(chosen.requests(), rows, strict=True):
                end = done + count
                slots = min(end + ahead, self.scheduler.max_model_len)
                counts = {"total_computed_tokens": done, "num_tokens_main_model": end}
                needed += ask(known.current(one), num_tokens=slots, **counts)
            return needed
        held = iter(self.batched.list_lengths(chosen.handles))
        for computed, count in rows:
            for size in self.block_sizes:
                needed += max(0, (computed + count + ahead + size - 1) // size - next(held))
        return needed

    # What kvfast does.

    def _make_equal(self, chosen: Chosen) -> None:
        """Send kvfast the computed tokens and newly due hashes."""
        manager = self.manager
        due = self.seats.make_equal(chosen)
        if due[0]:
            self.batched.follow(*due)
        if manager.num_singles != self.num_singles:
            while self.batched.take_deltas(self.rows) == self.num_rows:
                pass
            self.num_singles = manager.num_singles

    def _granted(self, chosen: Chosen) -> list[tuple[list[int], ...] | None]:
        self._make_equal(chosen)
        result = self.batched.decode(
            chosen.handles,
            chosen.same or chosen.counts,
            num_lookahead_tokens=self.scheduler.num_lookahead_tokens,
            output=self.output,
        )
        return chosen.granted(self.rows, result.num_deltas, len(self.block_sizes))
