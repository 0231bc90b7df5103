"""vLLM's scheduler with an implementation of the contract beside its manager, call by call.

    vllm serve MODEL --scheduler-cls kvcheck.adapters.vllm.shadow.ShadowScheduler

vLLM's manager answers, as always; the implementation (kvfast without KVSPEC_SHADOW) is asked the
same, and the first difference is reported with a record of what it did. Asynchronous scheduling
needs `AsyncShadowScheduler`.
"""

from __future__ import annotations

import os
from functools import partial
from pathlib import Path
from typing import Any

from vllm.logger import init_logger
from vllm.v1.core.sched.async_scheduler import AsyncScheduler
from vllm.v1.core.sched.scheduler import Scheduler

from kvcheck.adapters.vllm.expected import read_expected
from kvcheck.adapters.vllm.library import load_library
from kvcheck.adapters.vllm.mirror import Mirror
from kvcheck.adapters.vllm.shadowed import ShadowedManager, ShadowedPool
from kvcheck.adapters.vllm.state import take_snapshot
from kvcheck.discovery import find_implementation
from kvspec.errors import ConfigError, UnsupportedError
from kvspec.foreign import config_of


class Shadowed:
    """What both schedulers add to vLLM's. `shadow`: None where the contract refuses to go along."""

    kv_cache_manager: Any
    connector: Any
    shadow: Mirror | None
    records = True

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        logger = init_logger("vllm.kvspec.shadow")
        stock, self.shadow = self.kv_cache_manager, None
        library = load_library()
        try:
            if library.is_later:
                raise UnsupportedError(f"the scheduler of vLLM {library.version}", "the shadow")
            config = config_of(
                stock,
                max_num_batched_tokens=self._scheduler_config.max_num_batched_tokens,
                watermark=float(self._scheduler_config.watermark),
                hash_seed=os.environ.get("PYTHONHASHSEED"),
            )
            implementation = find_implementation(os.environ.get("KVSPEC_SHADOW", "kvfast"))
            known = os.environ.get("KVSPEC_SHADOW_EXPECT")
            self.shadow = Mirror(
                implementation,
                config,
                logger.error,
                # A connector may pin blocks, which no record can say.
                records=self.records if self.connector is None else None,
                expected=read_expected(Path(known)) if known else (),
                state=partial(take_snapshot, library, stock),
            )
        except (UnsupportedError, ConfigError) as error:
            logger.warning("No shadow: %s", error)
            return
        pool = ShadowedPool(stock.block_pool, self.shadow)
        self.kv_cache_manager = ShadowedManager(stock, pool, self.shadow)
        if self.connector is not None:
            self.connector.bind_gpu_block_pool(pool)

    @property
    def _scheduler_config(self) -> Any:
        return self.__dict__["scheduler_config"]


# vLLM has no types where it is not installed.
class ShadowScheduler(Shadowed, Scheduler):  # type: ignore[misc]
    """vLLM's scheduler, followed."""


class AsyncShadowScheduler(Shadowed, AsyncScheduler):  # type: ignore[misc]
    """vLLM's asynchronous scheduler, followed."""

    records = False
