"""A worker for vLLM's OffloadingConnector on a CPU, where vLLM has none; `serving.HOST` names it.

A thread copies blocks, one transfer after the other and each some milliseconds late, so that a
missing wait shows as wrong output.
"""

from __future__ import annotations

from concurrent.futures import Future, ThreadPoolExecutor, wait
from itertools import accumulate, pairwise
from time import sleep
from typing import Any

import torch
from vllm.v1.kv_offload.base import OffloadingWorker, TransferResult
from vllm.v1.kv_offload.cpu.spec import CPUOffloadingSpec

LATE_SECONDS = 0.05


class HostSpec(CPUOffloadingSpec):  # type: ignore[misc]  # its base comes from vLLM
    """vLLM's half in the scheduler, and a worker without streams."""

    def get_worker(self, kv_caches: Any) -> OffloadingWorker:
        """Return the worker. ValueError unless a chunk is one block."""
        if self.blocks_per_chunk != 1:
            raise ValueError(f"chunks of {self.blocks_per_chunk} blocks, not of 1")
        return HostWorker(kv_caches, self.num_chunks)


class HostWorker(OffloadingWorker):  # type: ignore[misc]  # its base comes from vLLM
    """Copies blocks between the engine's tensors and others of as many bytes per block."""

    def __init__(self, kv_caches: Any, num_chunks: int) -> None:
        refs = kv_caches.group_data_refs
        self.tensors = [{each.tensor_idx for each in group} for group in refs]
        self.device = [each.tensor for each in kv_caches.tensors]
        self.host = [each.new_empty((num_chunks, *each.shape[1:])) for each in self.device]
        self.thread = ThreadPoolExecutor(1)
        self.under_way: dict[int, Future[int]] = {}

    def submit_store(self, job_id: int, src_spec: Any, dst_spec: Any) -> bool:
        copied = (self.device, src_spec, self.host, dst_spec)
        self.under_way[job_id] = self.thread.submit(self._copy, *copied, src_spec.group_sizes)
        return True

    def submit_load(
        self, job_id: int, src_spec: Any, dst_spec: Any, expedited: bool = False
    ) -> bool:
        copied = (self.host, src_spec, self.device, dst_spec)
        self.under_way[job_id] = self.thread.submit(self._copy, *copied, dst_spec.group_sizes)
        return True

    def _copy(
        self,
        source: list[torch.Tensor],
        of: Any,
        target: list[torch.Tensor],
        to: Any,
        sizes_blocks: Any,
    ) -> int:
        """Return the bytes; the blocks of each group stand one behind the other."""
        sleep(LATE_SECONDS)
        ends = accumulate(sizes_blocks or [len(of.block_ids)], initial=0)
        num_bytes = 0
        for tensors, (first, end) in zip(self.tensors, pairwise(ends), strict=True):
            rows, places = (torch.as_tensor(each.block_ids[first:end]) for each in (of, to))
            for index in tensors:
                copied = source[index][rows.long()]
                target[index][places.long()] = copied
                num_bytes += copied.nbytes
        return num_bytes

    def get_finished(self) -> list[TransferResult]:
        done = [job for job, copied in self.under_way.items() if copied.done()]
        return [
            TransferResult(job, success=True, transfer_size=self.under_way.pop(job).result())
            for job in done
        ]

    def wait(self, job_ids: set[int]) -> None:
        wait([self.under_way[job] for job in job_ids if job in self.under_way])

    def shutdown(self) -> None:
        self.thread.shutdown()
