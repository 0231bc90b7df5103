"""A scheduler of vLLM 0.33.0 with one mistake in the order of copies, under a shadow."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from vllm.distributed.kv_transfer.kv_connector.v1.offloading import scheduler

from kvcheck.adapters.vllm.shadow import ShadowScheduler

Connector = scheduler.OffloadingConnectorScheduler


def without_flush(build: Callable[[Any, Any], Any]) -> Callable[[Any, Any], Any]:
    """Return a change of `_build_connector_meta`: no store is awaited whose blocks go to others."""

    def built(self: Any, plan: Any) -> Any:
        meta = build(self, plan)
        meta.jobs_to_flush = set()
        return meta

    return built


class NoFlush(ShadowScheduler):
    """Changes OffloadingConnector in this process."""

    def __init__(self, *args: Any, **options: Any) -> None:
        Connector._build_connector_meta = without_flush(Connector._build_connector_meta)
        super().__init__(*args, **options)
