"""vLLM's own schedulers under kvfast's names, for versions that kvfast was not tried with."""

from __future__ import annotations

from importlib import import_module
from typing import Any

from kvfast.engines.vllm.versions import UnsupportedEngineError


def untried(name: str, why: UnsupportedEngineError) -> type:
    """Return vLLM's scheduler; a line in the log says that its own manager is used, and why."""
    stock = name.removeprefix("Kvfast")
    file = "async_scheduler" if stock.startswith("Async") else "scheduler"
    base: Any = getattr(import_module(f"vllm.v1.core.sched.{file}"), stock)

    class Untried(base):  # type: ignore[misc]  # vLLM has no types where it is not installed
        kvfast_reason = str(why)

        def __init__(self, *args: Any, **options: Any) -> None:
            super().__init__(*args, **options)
            logger = import_module("vllm.logger").init_logger("vllm.kvfast")
            logger.warning("%s. vLLM's own manager is used.", why)

    return Untried
