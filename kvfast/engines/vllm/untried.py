"""vLLM's own schedulers under kvfast's names, for versions that kvfast was not tried with."""

from __future__ import annotations

from typing import Any

from vllm.logger import init_logger
from vllm.v1.core.sched.async_scheduler import AsyncScheduler
from vllm.v1.core.sched.scheduler import Scheduler

from kvfast.engines.vllm.versions import UnsupportedEngineError, release


class Untried:
    """Says in the log that vLLM's own manager is used, and why."""

    kvfast_reason: str

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        try:
            release()
        except UnsupportedEngineError as error:
            self.kvfast_reason = str(error)
            logger = init_logger("vllm.kvfast")
            logger.warning("%s. vLLM's own manager is used.", error)


# vLLM has no types where it is not installed.
class KvfastScheduler(Untried, Scheduler):  # type: ignore[misc]
    """vLLM's scheduler."""


class KvfastAsyncScheduler(Untried, AsyncScheduler):  # type: ignore[misc]
    """vLLM's asynchronous scheduler."""
