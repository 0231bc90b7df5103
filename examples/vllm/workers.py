"""The worker's side of vLLM's own KV connectors, which moves nothing."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any

from vllm.v1.outputs import KVConnectorOutput

from examples.vllm.connector import chosen
from kvcheck.adapters.vllm.transfers import Transfer, flushed_by, transfers_of


class Worker:
    """Ends what it is told to move some steps later.

    Transfers of one stream end in their order. `num_loads`, `num_stores`: those that ended.
    """

    def __init__(self, rng: random.Random) -> None:
        self.rng = rng
        self.under_way: dict[str, Transfer] = {}
        self.deferred: list[Transfer] = []
        self.sending: set[str] = set()
        self.num_loads = self.num_stores = 0

    @property
    def is_busy(self) -> bool:
        return bool(self.under_way or self.deferred or self.sending)

    def reply(self, meta: Any) -> Any:
        """Return what the output of a step says of this step's transfers, and of those before."""
        ordered = {one.id: one for one in (*self.deferred, *transfers_of(meta))}
        flushed = flushed_by(meta, self.under_way)
        self.deferred = []
        if hasattr(meta, "jobs_to_flush"):  # its stores begin with the next step
            late = meta.store_jobs.keys() - {int(name.split("-")[1]) for name in flushed}
            self.deferred = [ordered.pop(f"job-{number}") for number in sorted(late)]
        self.under_way |= ordered
        ended = {name for name in flushed if name in self.under_way}
        ended |= {one.id for one in ordered.values() if one.is_sync}
        for name, told in getattr(meta, "reqs_to_send", {}).items():
            if not isinstance(told, tuple) or told[1]:  # Mooncake names a request before its blocks
                self.sending.add(name)
        slow = {one.stream or str(one.requests) for one in self.under_way.values()}
        slow = {stream for stream in sorted(slow) if self.rng.random() < 0.6}
        for one in self.under_way.values():
            stream = one.stream or str(one.requests)
            if stream not in slow:
                ended.add(one.id)
                slow |= {stream} if one.stream and self.rng.random() < 0.3 else set()
        return self._told([self.under_way.pop(name) for name in sorted(ended)])

    def _told(self, ended: Sequence[Transfer]) -> Any:
        """Return the output that names these. vLLM 0.24 has no such metadata."""
        from vllm.distributed.kv_transfer.kv_connector.v1.offloading import common
        from vllm.v1.simple_kv_offload import metadata

        loads = [one for one in ended if not one.is_store]
        self.num_loads, self.num_stores = self.num_loads + len(loads), self.num_stores + len(ended)
        self.num_stores -= len(loads)
        numbers = {one.id: int(one.id.split("-")[1]) for one in ended if one.stream}
        jobs = {number: 1 for name, number in numbers.items() if name.startswith("job-")}
        events = {number: 1 for name, number in numbers.items() if name.startswith("store-")}
        worker = common.OffloadingWorkerMetadata(jobs) if jobs else None
        sent = chosen(sorted(self.sending), self.rng)
        self.sending -= sent
        return KVConnectorOutput(
            finished_sending=sent,
            finished_recving={name for one in loads if not one.is_sync for name in one.requests},
            kv_connector_worker_meta=metadata.SimpleCPUOffloadWorkerMetadata(events)
            if events
            else worker,
        )
