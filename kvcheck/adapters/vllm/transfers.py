"""Transfers that vLLM's connectors order from their workers, and learn the ends of.

Read from the metadata of a step by the names of its members, so that no import of vLLM is needed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any


@dataclass(frozen=True)
class Transfer:
    """A copy between blocks of the device and of the host, or of another engine (no `host`).

    `requests`: those whose load it is; it has ended once the worker names one of them. `waits`:
    the device's work up to now comes first. `is_sync`: it ends before its step begins.
    """

    id: str
    stream: str
    gpu: tuple[int, ...]
    host: tuple[int, ...] = ()
    requests: tuple[str, ...] = ()
    is_store: bool = False
    waits: bool = True
    is_sync: bool = False


def _simple(meta: Any) -> Iterator[Transfer]:
    """SimpleCPUOffloadConnector: loads begin at once, stores wait for the step."""
    if meta.load_gpu_blocks:
        gpu, host = tuple(meta.load_gpu_blocks), tuple(meta.load_cpu_blocks)
        names = tuple(meta.load_event_to_reqs[meta.load_event])
        yield Transfer(f"load-{meta.load_event}", "h2d", gpu, host, names, waits=False)
    if meta.store_gpu_blocks:
        gpu, host = tuple(meta.store_gpu_blocks), tuple(meta.store_cpu_blocks)
        yield Transfer(f"store-{meta.store_event}", "d2h", gpu, host, is_store=True)


def _offloading(meta: Any) -> Iterator[Transfer]:
    """OffloadingConnector: each job has its request; the host's ids are those of chunks."""
    for number, job in meta.load_jobs.items():
        gpu, host = (tuple(map(int, spec.block_ids)) for spec in (job.dst_spec, job.src_spec))
        stream, names = "sync" if job.sync else "h2d", (job.req_id,)
        yield Transfer(f"job-{number}", stream, gpu, host, names, is_sync=job.sync)
    for number, job in meta.store_jobs.items():
        gpu, host = (tuple(map(int, spec.block_ids)) for spec in (job.src_spec, job.dst_spec))
        yield Transfer(f"job-{number}", "d2h", gpu, host, (job.req_id,), is_store=True)


def received(name: str, groups: Any) -> Iterator[Transfer]:
    """What another engine writes into each block of a request, in any order."""
    for block in (block for group in groups for block in group if block):
        yield Transfer(f"receive-{name}-{block}", "", (block,), (), (name,), waits=False)


def _nixl(meta: Any) -> Iterator[Transfer]:
    for name, one in meta.reqs_to_recv.items():
        yield from received(name, one.local_block_ids)


def _mooncake(meta: Any) -> Iterator[Transfer]:
    for of_engine in meta.reqs_to_recv.values():
        for name, one in of_engine.items():
            yield from received(name, one.local_block_ids)


KNOWN: Mapping[str, Callable[[Any], Iterator[Transfer]]] = MappingProxyType(
    {
        "SimpleCPUOffloadMetadata": _simple,
        "OffloadingConnectorMetadata": _offloading,
        "NixlConnectorMetadata": _nixl,
        "MooncakeConnectorMetadata": _mooncake,
    }
)
"""By the name of the class of a step's metadata."""


def is_known(meta: Any) -> bool:
    return type(meta).__name__ in KNOWN


def transfers_of(meta: Any) -> tuple[Transfer, ...]:
    return tuple(KNOWN.get(type(meta).__name__, lambda _: iter(()))(meta))


def flushed_by(meta: Any, under_way: Mapping[str, Transfer]) -> list[str]:
    """Return the ids of transfers that the worker awaits before the step."""
    if getattr(meta, "need_flush", False):
        return list(under_way)
    return [f"job-{number}" for number in sorted(getattr(meta, "jobs_to_flush", None) or ())]


def ended_by(output: Any, under_way: Mapping[str, Transfer]) -> Iterator[str]:
    """Yield the ids of transfers that a worker's output names as ended."""
    worker = output.kv_connector_worker_meta if output is not None else None
    yield from (f"store-{each}" for each in getattr(worker, "completed_store_events", ()))
    yield from (f"job-{each}" for each in getattr(worker, "completed_jobs", ()))
    names = getattr(output, "finished_recving", None) or ()
    for transfer in list(under_way.values()):
        if not transfer.is_store and not set(names).isdisjoint(transfer.requests):
            yield transfer.id
    yield from (f"send-{name}" for name in getattr(output, "finished_sending", None) or ())
