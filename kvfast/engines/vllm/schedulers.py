"""vLLM's schedulers, whose manager is replaced once they are built."""

from __future__ import annotations

from collections import Counter
from typing import Any

from vllm.logger import init_logger
from vllm.v1.core.sched.async_scheduler import AsyncScheduler
from vllm.v1.core.sched.scheduler import Scheduler

from kvfast.engines.vllm.fit import given_by, kvfast_manager, reason_of
from kvfast.engines.vllm.hashing import HashesRequests
from kvfast.engines.vllm.steps import BatchedSteps
from kvfast.engines.vllm.updates import Update
from kvspec.errors import ConfigError, UnsupportedError


class OnKvfast(HashesRequests):
    """The members that both schedulers add to vLLM's.

    `kvfast_reason`: why vLLM's manager stayed; None: kvfast's replaced it. `num_steps_kvfast` and
    `num_steps_stock` count the steps that each served; of kvfast's, `num_steps_batched` were one
    call for all requests, and `single_steps` counts the others by why they were not.
    `num_updates_short`: outputs of the model that had tokens alone.
    """

    kv_cache_manager: Any
    connector: Any
    running: list[Any]
    kv_metrics_collector: Any
    kvfast_reason: str | None = "not built yet"

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self.num_steps_kvfast = self.num_steps_stock = 0
        self.num_steps_batched = self.num_updates_short = 0
        self.single_steps: Counter[str] = Counter()
        self.kvfast_reason = self._take_its_place()
        if self.kvfast_reason is None:
            self.batched_steps = BatchedSteps(self, self.kv_cache_manager)

    def _take_its_place(self) -> str | None:
        """Replace the manager; the reason why not, where kvfast cannot serve the configuration."""
        logger = init_logger("vllm.kvfast")
        try:
            self.kv_cache_manager = kvfast_manager(self.kv_cache_manager, given_by(self))
        except (UnsupportedError, ConfigError) as error:
            logger.warning("%s. vLLM's own manager is used.", reason_of(error))
            return str(error)
        self.kv_cache_manager.is_driven = True
        pool = self.kv_cache_manager.block_pool
        if self.connector is not None:
            if hasattr(self.connector, "bind_kv_cache_manager"):  # from 0.33 on
                self.connector.bind_kv_cache_manager(self.kv_cache_manager)
            else:
                self.connector.bind_gpu_block_pool(pool)
        if self.kv_metrics_collector is not None:
            self.kv_metrics_collector = self.kv_cache_manager.metrics_collector
        logger.info("kvfast manages the %d blocks of the KV cache.", pool.num_gpu_blocks)
        return None

    def schedule(self, throttle_prefills: bool = False) -> Any:
        """vLLM's step: in one call for all requests where it is a usual one."""
        own = super().schedule  # type: ignore[misc]  # vLLM's scheduler has it
        if self.kvfast_reason is not None:
            self.num_steps_stock += 1
            return own(throttle_prefills)
        self.num_steps_kvfast += 1
        plan = "throttled" if throttle_prefills else self.batched_steps.schedule()
        if isinstance(plan, str):
            self.single_steps[plan] += 1
            self.batched_steps.tell_last()
            plan = own(throttle_prefills)
        else:
            self.num_steps_batched += 1
        self.batched_steps.manager.planned.clear()
        return plan

    def update_from_output(self, scheduler_output: Any, model_runner_output: Any) -> Any:
        """Process the tokens of a step, by the short way if it is a usual one."""
        plan, output = scheduler_output, model_runner_output
        if self.kvfast_reason is None and self.batched_steps.may_update(plan, output):
            self.num_updates_short += 1
            return Update(self).take(plan, output)
        return super().update_from_output(plan, output)  # type: ignore[misc]  # the same

    def reset_prefix_cache(self, *args: Any, **options: Any) -> Any:
        if self.kvfast_reason is None:
            self.batched_steps.tell_last()
        return super().reset_prefix_cache(*args, **options)  # type: ignore[misc]  # the same

    def _handle_invalid_blocks(self, invalid_block_ids: set[int], *given: Any) -> Any:
        """Handle loads that failed: keys of what is to be computed again go (KV-MGR-24).

        vLLM keeps them, and the next request would hit what is computed in a later step.
        """
        handle = super()._handle_invalid_blocks  # type: ignore[misc]  # as above
        affected = handle(invalid_block_ids, *given)
        if self.kvfast_reason is None:
            for request in self.running:
                if request.request_id in affected:
                    self.kv_cache_manager.withdraw(request)
        return affected

    def _update_request_as_session(self, session: Any, update: Any) -> None:
        """Handle a session's next input, which replaces a token that a hash may cover."""
        if self.kvfast_reason is None:
            self.kv_cache_manager.forgotten.add(session.request_id)  # its seat has the old prompt
            if self.kv_cache_manager.requests.ahead:
                self.kv_cache_manager.note_events()
        super()._update_request_as_session(session, update)  # type: ignore[misc]  # as above

    def add_request(self, request: Any) -> None:
        super().add_request(request)
        if self.kvfast_reason is None and self.batched_steps.is_unusual(request):
            self.batched_steps.unusual.add(request.request_id)


# vLLM has no types where it is not installed.
class KvfastScheduler(OnKvfast, Scheduler):  # type: ignore[misc]
    """vLLM's scheduler over kvfast."""


class KvfastAsyncScheduler(OnKvfast, AsyncScheduler):  # type: ignore[misc]
    """vLLM's asynchronous scheduler on kvfast: vLLM requires a subclass of its own."""
