"""vLLM 0.33's offload managers as `OffloadManager`s: that of the CPU alone, and with tiers behind.

Each lower tier is one of the caller's: it answers vLLM's look-ups, and notes the jobs that vLLM
submits, which the caller ends. Positions in the prompt, by which vLLM orders what one request used,
are those of the first look-ups and stores.
"""

from __future__ import annotations

import importlib
from collections.abc import Collection, Sequence
from types import SimpleNamespace
from typing import Any

from kvcheck.adapters.vllm.library import load_library
from kvspec.errors import InvalidArgumentError, UnsupportedError
from kvspec.offload import (
    Found,
    LowerTier,
    OffloadCapabilities,
    OffloadConfig,
    OffloadCounts,
    OffloadEvent,
    OffloadManager,
    PreparedStore,
    TierTransfer,
)

ROW_BYTES = 8
"""Size of a chunk of the made-up memory, which nobody reads."""


def offload() -> VLLMOffload:
    """Return vLLM's offload managers that evict by LRU, vLLM's default."""
    return VLLMOffload("lru")


def offload_arc() -> VLLMOffload:
    """Return vLLM's offload managers that evict by ARC."""
    return VLLMOffload("arc")


class VLLMOffload:
    """See `kvspec.offload.OffloadImplementation`. `order`: the policy, by vLLM's name."""

    name = "vllm"

    def __init__(self, order: str) -> None:
        load_library()  # refuses versions that were not tried
        names = {"base": "base", "cpu": "cpu.manager"}
        names |= {"tiering": "tiering.manager", "tiers": "tiering.base"}
        found = {n: importlib.import_module(f"vllm.v1.kv_offload.{at}") for n, at in names.items()}
        self.library = SimpleNamespace(**found)
        self.order = order

    @property
    def offload_capabilities(self) -> OffloadCapabilities:
        """All but an order, as vLLM ranks what a request used when it finishes, and checks."""
        return OffloadCapabilities(
            checks_calls=False, orders=frozenset(), options=frozenset({"store_after"})
        )

    def make_offload(self, config: OffloadConfig) -> OffloadManager:
        """Make vLLM's manager of the CPU, behind the tiering one if there are lower tiers."""
        if config.lower:
            if config.store_after > 1:
                raise UnsupportedError("store thresholds in front of other tiers", self.name)
            return VLLMTiers(self.library, config, self.order)
        made = self.library.cpu.CPUOffloadingManager
        options = {"cache_policy": self.order, "store_threshold": config.store_after}
        return VLLMChunks(self.library, made(config.num_chunks, enable_events=True, **options))


class VLLMChunks:
    """vLLM's manager of chunks in the memory of the CPU."""

    def __init__(self, library: Any, inner: Any, cpu: Any = None) -> None:
        self.library, self.inner = library, inner
        self.cpu = inner if cpu is None else cpu
        self.contexts: dict[str, Any] = {}

    def new_request(self, request_id: str, *, tenant: str = "", priority: int = 0) -> None:
        context = self.library.base.ReqContext(request_id)
        self.contexts[request_id] = context
        with self.inner.lock:
            self.inner.on_new_request(context)

    def lookup(self, key: bytes, request_id: str) -> Found:
        (inner,), context = self._keys([key], request_id)
        with self.inner.lock:
            result = self.inner.lookup(inner, context)
        return Found(result.name.lower().removeprefix("hit_"))

    def prepare_load(self, keys: Sequence[bytes], request_id: str) -> tuple[int, ...]:
        inner, context = self._keys(keys, request_id)
        with self.inner.lock:
            try:
                spec = self.inner.prepare_load(inner, context)
            except AssertionError as error:
                raise InvalidArgumentError("keys", str(error), "ready") from None
        return tuple(map(int, spec.block_ids))

    def complete_load(self, keys: Sequence[bytes], request_id: str) -> None:
        with self.inner.lock:
            self.inner.complete_load(*self._keys(keys, request_id))

    def prepare_store(self, keys: Sequence[bytes], request_id: str) -> PreparedStore | None:
        with self.inner.lock:
            made = self.inner.prepare_store(*self._keys(keys, request_id))
        if made is None:
            return None
        places = tuple(map(int, made.store_spec.block_ids))
        return PreparedStore(_ours(made.keys_to_store), places, _ours(made.evicted_keys))

    def complete_store(
        self, keys: Sequence[bytes], request_id: str, *, success: bool = True
    ) -> None:
        with self.inner.lock:
            self.inner.complete_store(*self._keys(keys, request_id), success)

    def touch(self, keys: Sequence[bytes], request_id: str) -> None:
        with self.inner.lock:
            self.inner.touch(*self._keys(keys, request_id))

    def end_step(self) -> tuple[TierTransfer, ...]:
        with self.inner.lock:
            self.inner.on_schedule_end(self.library.base.ScheduleEndContext([], []))
        return ()

    def finish_transfer(self, number: int, failed: Collection[bytes] = ()) -> None:
        raise InvalidArgumentError("number", number, "a transfer under way")

    def finish_request(self, request_id: str) -> None:
        with self.inner.lock:
            self.inner.on_request_finished(self.contexts[request_id])

    def reset(self) -> None:
        with self.inner.lock:
            self.inner.reset_cache()
            self.inner.on_reset_flushed()

    def take_events(self) -> tuple[OffloadEvent, ...]:
        """Return vLLM's events, without those of chunks that never were ready."""
        with self.inner.lock:
            events = [each for each in self.inner.take_events() if not each.metadata_only]
        return tuple(OffloadEvent(_ours(each.keys), is_removed=each.removed) for each in events)

    def counts(self) -> OffloadCounts:
        """Return the counts that vLLM decides by."""
        total, free = self.cpu._num_chunks, self.cpu._get_num_free_chunks()
        evictable = self.cpu._num_evictable_cache_chunks
        pending = self.cpu._num_write_pending_chunks
        return OffloadCounts(free, evictable, total - free - evictable - pending, pending)

    def _keys(self, keys: Sequence[bytes], request_id: str) -> tuple[list[Any], Any]:
        """Return vLLM's keys and its context of the request, with new positions in it."""
        context, base = self.contexts[request_id], self.library.base
        found = [base.make_offload_key(key, 0) for key in keys]
        for key in found:
            if context.get_offload_key_position(key) is None:
                number = len(context._offload_key_positions)
                context.set_offload_key_position(key, number + 1)
        return found, context


class VLLMTiers(VLLMChunks):
    """vLLM's tiering manager, whose lower tiers are driven by the caller."""

    def __init__(self, library: Any, config: OffloadConfig, order: str) -> None:
        rows = memoryview(bytearray(config.num_chunks * ROW_BYTES))
        view = rows.cast("B", (config.num_chunks, ROW_BYTES))
        region = SimpleNamespace(create_kv_memoryview=lambda: view)
        made = library.tiering.CPUPrimaryTierOffloadingManager
        cpu = made(config.num_chunks, region, cache_policy=order, enable_events=True)
        driven = _driven(library)
        self.tiers = [driven(lower, view, f"lower{n}") for n, lower in enumerate(config.lower)]
        # Without a thread: `poll_tiers` is called here.
        tiering = library.tiering.TieringOffloadingManager(cpu, self.tiers, tier_poll_interval_s=0)
        super().__init__(library, tiering, cpu)

    def end_step(self) -> tuple[TierTransfer, ...]:
        super().end_step()
        began = []
        for number, tier in enumerate(self.tiers):
            for job in tier.take_submitted():
                keys, places = _ours(job.keys), tuple(map(int, job.chunk_ids))
                began.append(TierTransfer(job.job_id, number, job.is_promotion, keys, places))
        return tuple(sorted(began, key=lambda each: each.number))

    def finish_transfer(self, number: int, failed: Collection[bytes] = ()) -> None:
        """Report the job's end, and let vLLM learn of it at once."""
        (tier,) = (each for each in self.tiers if number in each.running)
        job = tier.running.pop(number)
        ends = self.library.tiers.JobResult
        if failed:
            kept = [key for key in job.keys if key[:-4] not in failed]
            tier.ended.append(ends(number, False, kept if job.is_promotion else None))
        else:
            tier.ended.append(ends(number, True))
        with self.inner.lock:
            self.inner.poll_tiers()


def _driven(library: Any) -> Any:
    """Return the class of a lower tier whose jobs end when the caller says so."""
    base = library.base

    tier: Any = library.tiers.SecondaryTierManager

    class Driven(tier):  # type: ignore[misc]  # vLLM is untyped here
        medium = base.Medium.STORAGE
        tolerates_off_thread_polling = True  # so that `poll_tiers` asks it

        def __init__(self, lower: LowerTier, view: memoryview, name: str) -> None:
            super().__init__(None, view, name)
            self.lower = lower
            self.submitted: list[Any] = []
            self.running: dict[int, Any] = {}
            self.ended: list[Any] = []

        def lookup(self, key: Any, req_context: Any) -> Any:
            return base.LookupResult[self.lower.lookup(key[:-4]).upper()]

        def submit_store(self, job_metadata: Any) -> None:
            self.submitted.append(job_metadata)

        def submit_load(self, job_metadata: Any) -> None:
            self.submitted.append(job_metadata)

        def take_submitted(self) -> list[Any]:
            found, self.submitted = self.submitted, []
            self.running.update({job.job_id: job for job in found})
            return found

        def get_finished_jobs(self) -> Any:
            found, self.ended = self.ended, []
            return found

        def on_new_request(self, req_context: Any) -> Any:
            return base.RequestOffloadingContext()

        def drain_jobs(self) -> None:
            pass

    return Driven


def _ours(keys: Collection[Any]) -> tuple[bytes, ...]:
    """Return the caller's keys: vLLM's end with the number of a group."""
    return tuple(bytes(key[:-4]) for key in keys)
