"""vLLM's schedulers, whose manager is replaced once they are built."""

from __future__ import annotations

from typing import Any

from vllm.logger import init_logger
from vllm.v1.core.sched.async_scheduler import AsyncScheduler
from vllm.v1.core.sched.scheduler import Scheduler

from kvfast.engines.vllm.fit import given_to, reason_of
from kvfast.engines.vllm.hashing import HashesRequests
from kvfast.engines.vllm.manager import kvfast_manager
from kvspec.errors import ConfigError, UnsupportedError


class OnKvfast(HashesRequests):
    """What both schedulers add to vLLM's.

    `kvfast_reason`: why vLLM's manager stayed; None: kvfast's is in its place. `num_steps_kvfast`
    and `num_steps_stock` count the steps that each served.
    """

    kv_cache_manager: Any
    connector: Any

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self.num_steps_kvfast = 0
        self.num_steps_stock = 0
        self.kvfast_reason = self._take_its_place()

    def _take_its_place(self) -> str | None:
        """Replace the manager; the reason why not, where kvfast cannot serve the configuration."""
        logger = init_logger("vllm.kvfast")
        try:
            self.kv_cache_manager = kvfast_manager(self.kv_cache_manager, given_to(self))
        except (UnsupportedError, ConfigError) as error:
            logger.warning("%s. vLLM's own manager is used.", reason_of(error))
            return str(error)
        pool = self.kv_cache_manager.block_pool
        if self.connector is not None:
            self.connector.bind_gpu_block_pool(pool)
        logger.info("kvfast manages the %d blocks of the KV cache.", pool.num_gpu_blocks)
        return None

    def schedule(self, *args: Any, **options: Any) -> Any:
        """vLLM's step, counted."""
        if self.kvfast_reason is None:
            self.num_steps_kvfast += 1
        else:
            self.num_steps_stock += 1
        return super().schedule(*args, **options)  # type: ignore[misc]  # vLLM's scheduler has it


# vLLM has no types where it is not installed.
class KvfastScheduler(OnKvfast, Scheduler):  # type: ignore[misc]
    """vLLM's scheduler over kvfast."""


class KvfastAsyncScheduler(OnKvfast, AsyncScheduler):  # type: ignore[misc]
    """vLLM's asynchronous scheduler over kvfast: vLLM asks for a subclass of its own."""
