"""Steps of running requests in one call of kvfast, with the plan that vLLM's scheduler would make.

A step is looked at before anything changes. What is unusual about it goes to vLLM's own `schedule`
as a whole, and is counted by its reason.
"""

from __future__ import annotations

from operator import attrgetter, sub
from time import monotonic
from typing import Any

from vllm.v1.core.sched.async_scheduler import AsyncScheduler
from vllm.v1.core.sched.interface import PauseState
from vllm.v1.core.sched.scheduler import Scheduler

from kvfast.engines.vllm.admissions import Admitted, admit
from kvfast.engines.vllm.chosen import Chosen, one_by_one
from kvfast.engines.vllm.manager import KvfastManager
from kvfast.engines.vllm.plans import NewBlocks, planned
from kvfast.engines.vllm.updates import is_usual
from kvspec.batched import StepOutput

ROWS = 1024
HOOKS = (
    "_update_after_schedule",
    "_make_cached_request_data",
    "_preempt_request",
    "_update_request_with_output",
)
"""What these do is done here for all requests at once: not where somebody else has changed them."""
UNUSUAL = "several modalities, structured output or pooling"

DRAFTS, PLACEHOLDERS = attrgetter("spec_token_ids"), attrgetter("num_output_placeholders")


class BatchedSteps:
    """The batched path of one scheduler.

    `seated`: the running requests of the last step, whose `names`, `handles` and kvfast's requests
    (`mine`) are kept while they stay the same. `full_at`: tokens with which the next hash of each
    is due. `unusual`: names of requests of which each step is left to vLLM's scheduler.
    """

    def __init__(self, scheduler: Any, manager: KvfastManager) -> None:
        self.scheduler = scheduler
        self.manager = manager
        self.batched = manager.batched
        self.is_async = isinstance(scheduler, AsyncScheduler)
        groups = scheduler.kv_cache_config.kv_cache_groups
        self.block_sizes = [group.kv_cache_spec.block_size for group in groups]
        self.smallest = min(self.block_sizes, default=1)
        self.never = self.never_updates = self._never()
        if self.never is None and scheduler.has_mamba_layers:
            self.never = "Mamba layers"
        self.nobody = Admitted()
        self.seated: list[Any] = []
        self.names: list[str] = []
        self.handles: list[int] = []
        self.mine: list[Any] = []
        self.full_at: list[int] = []
        self.odd: str | None = None
        self.unusual: set[str] = set()
        self.num_singles = self.num_forgotten = -1
        self._make_rows(ROWS)

    def _never(self) -> str | None:
        """Why no step of this scheduler is batched."""
        s = self.scheduler
        stock = AsyncScheduler if self.is_async else Scheduler
        if any(getattr(type(s), name) is not getattr(stock, name) for name in HOOKS):
            return "a scheduler with methods of its own"
        if s.is_encoder_decoder or s.num_sampled_tokens_per_step != 1:
            return "a model that is no plain decoder"
        if s.use_pp or s.enable_return_routed_experts or s.dynamic_sd_lookup is not None:
            return "pipelines, routed experts or drafts of changing length"
        return None

    def _make_rows(self, num_rows: int) -> None:
        self.num_rows = num_rows
        self.rows = memoryview(bytearray(16 * num_rows)).cast("i", [num_rows, 4])
        self.output = StepOutput(block_deltas=self.rows)

    def schedule(self) -> Any:
        """vLLM's plan of the step; why not, as a text, where vLLM's scheduler has to make it."""
        s = self.scheduler
        if reason := self._reason():
            return reason
        running = s.running
        if running != self.seated or self.num_forgotten != self.manager.num_forgotten:
            self._seat(running)
        if self.odd is not None:
            return self.odd
        chosen = self._chosen(running)
        if isinstance(chosen, str):
            return chosen
        if chosen.total and not self._fits(chosen):
            return "the pool is nearly full"
        s.current_step += 1
        self.manager.fast.new_step_starts()
        blocks = self._granted(chosen) if chosen.total else []
        left = s.max_num_scheduled_tokens - chosen.total
        s.prefill_capacity_bound = bool(s.waiting)
        admitted = self.nobody
        if left and (s.waiting or s.skipped_waiting):
            admitted = admit(s, left, monotonic())
        return planned(s, chosen, blocks, admitted)

    def _reason(self) -> str | None:
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
        if s.waiting or s.skipped_waiting:
            return "adapters" if s.lora_config else None
        return None if s.running else "nothing to do"

    def _has_unusual(self) -> bool:
        """Whether any request is left to vLLM's scheduler, and with it each step."""
        if self.unusual:
            self.unusual.intersection_update(self.scheduler.requests)
        return bool(self.unusual)

    def may_update(self, output: Any) -> bool:
        """Whether what the model answered can be taken by the short way."""
        return (
            self.never_updates is None
            and not self._has_unusual()
            and is_usual(self.scheduler, output)
        )

    # What runs.

    def _seat(self, running: list[Any]) -> None:
        """Note what stays as it is while these run."""
        manager = self.manager
        current = manager.requests.current
        handles = manager.handles
        self.seated = []
        self.odd = None
        if any(map(is_unusual, running)):
            self.odd = UNUSUAL
            return
        mine = []
        for request in running:
            one = current(request)
            mine.append(one)
            if request.request_id not in handles:
                handles[request.request_id] = self.batched.register(one)
                self.num_singles = -1
        self.names = [request.request_id for request in running]
        self.handles = [handles[name] for name in self.names]
        self.mine = mine
        size = manager.requests.hash_block_size
        self.full_at = [(one.num_hashes + 1) * size for one in mine] if size else []
        self.num_forgotten = manager.num_forgotten
        self.seated = list(running)

    def _chosen(self, running: list[Any]) -> Chosen | str:
        """What each computes, before the pool is asked."""
        s = self.scheduler
        tokens = [len(request._all_token_ids) for request in running]
        computed = [request.num_computed_tokens for request in running]
        size = len(running)
        if (
            not self.is_async
            and 0 < size <= s.max_num_scheduled_tokens
            and list(map(sub, tokens, computed)).count(1) == size
            and max(tokens) < s.max_model_len
            and not any(map(DRAFTS, running))
            and not any(map(PLACEHOLDERS, running))
        ):
            return Chosen(
                self.seated, self.names, self.handles, 1, tokens, computed, None, {}, size
            )
        return one_by_one(s, self.seated, self.handles, tokens, computed)

    def _fits(self, chosen: Chosen) -> bool:
        """Whether the pool has what they need, and the rows have room to tell it."""
        counts, ahead = chosen.counts, self.scheduler.num_lookahead_tokens
        most = counts if isinstance(counts, int) else max(counts)
        free = self.manager.fast.num_free_blocks
        bound = len(chosen.names) * len(self.block_sizes) * ((most + ahead) // self.smallest + 2)
        if bound > free or bound > self.num_rows:
            bound = self._needed(chosen, ahead)
            if bound > free:
                return False
            if bound > self.num_rows:
                self._make_rows(2 * bound)
        return True

    def _needed(self, chosen: Chosen, ahead: int) -> int:
        """The most blocks that they may take."""
        held = iter(self.batched.list_lengths(chosen.handles))
        counts = chosen.counts
        needed = 0
        for i, computed in enumerate(chosen.computed):
            after = computed + ahead + (counts if isinstance(counts, int) else counts[i])
            for size in self.block_sizes:
                needed += max(0, (after + size - 1) // size - next(held))
        return needed

    # What kvfast does.

    def _make_equal(self, chosen: Chosen) -> None:
        """Tell kvfast what it does not know: computed tokens, and hashes that became due."""
        manager, mine = self.manager, self.mine
        if chosen.requests is not self.seated:
            place = {handle: i for i, handle in enumerate(self.handles)}
            places = [place[handle] for handle in chosen.handles]
            mine = [self.mine[i] for i in places]
        else:
            places = None
        if [one.num_computed_tokens for one in mine] != chosen.computed:
            for one, count in zip(mine, chosen.computed, strict=True):
                if one.num_computed_tokens != count:
                    one.num_computed_tokens = count
        size = manager.requests.hash_block_size
        if size:
            full_at = self.full_at if places is None else [self.full_at[i] for i in places]
            for i, (tokens, full) in enumerate(zip(chosen.tokens, full_at, strict=True)):
                if tokens >= full:
                    manager.requests.current(chosen.requests[i])
                    at = i if places is None else places[i]
                    self.full_at[at] = (mine[i].num_hashes + 1) * size
        if manager.num_singles != self.num_singles:
            while self.batched.take_deltas(self.rows) == self.num_rows:
                pass
            self.num_singles = manager.num_singles

    def _granted(self, chosen: Chosen) -> NewBlocks:
        """The blocks that each got, None for none."""
        self._make_equal(chosen)
        result = self.batched.decode(
            chosen.handles,
            chosen.counts,
            num_lookahead_tokens=self.scheduler.num_lookahead_tokens,
            output=self.output,
        )
        got: NewBlocks = [None] * len(chosen.handles)
        if result.num_deltas == 0:
            return got
        place, last = -1, -1
        told: Any = self.rows[: result.num_deltas].tolist()
        for handle, group, _, block in told:
            if handle != last:
                place = chosen.handles.index(handle, place + 1)
                last = handle
                mine = got[place] = tuple([] for _ in self.block_sizes)
            mine[group].append(block)
        return got


def is_unusual(request: Any) -> bool:
    """Whether vLLM's scheduler does more with it than with others."""
    return (
        bool(request.mm_features)
        or request.structured_output_request is not None
        or request.pooling_params is not None
    )
