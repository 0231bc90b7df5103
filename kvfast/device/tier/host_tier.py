"""Run the host tier: evicted blocks are copied to host memory, and back when they are hit.

`kvspec.tier` decides, `swap` copies, the manager knows only of external tokens. One step:

    load          of each waiting request, before the plan: its hit on the device, then the host's
    before_step   after the plan was carried out: content of blocks that it took goes to the host
    after_step    after sampling: blocks that are full now may be kept later

Copies to the host overlap with the step, through spare blocks on the device (`offload.py`).
"""

from __future__ import annotations

from collections.abc import Container, Iterable
from itertools import chain

from kvfast.device.base.arguments import check_group, check_type
from kvfast.device.base.backend import Backend
from kvfast.device.pages.operations import PageOperations
from kvfast.device.pages.pools import KVPools
from kvfast.device.tables.input import entries_of, host_rows
from kvfast.device.tier.offload import Offload
from kvfast.device.tier.streams import Streams
from kvfast.device.tier.swap import Swapper, Transfer, resized
from kvspec.batched import Array, BatchedManager, StepPlan, StepResult
from kvspec.domains import int_at_least
from kvspec.errors import InvalidArgumentError
from kvspec.request import Request, RequestStatus
from kvspec.tier import Copies, Tier, TieredImplementation

NUM_SPARE_BLOCKS = 16
"""Usually enough for the blocks that a step of decoding requests takes."""


class HostTier:
    """A second tier for the requests of one batched manager, over pools that hold its cache.

    Every step of `batched` must go through `before_step` and `after_step`, with all its rows. The
    pools' device is current, and what overwrites blocks runs on its current stream.
    """

    def __init__(
        self,
        implementation: TieredImplementation,
        batched: BatchedManager,
        pools: KVPools,
        *,
        num_host_blocks: int,
        num_spare_blocks: int | None = None,
        backend: Backend | None = None,
        streams: Streams | None = None,
    ) -> None:
        """Allocate `num_host_blocks` host blocks, including null. May raise DeviceMemoryError.

        `num_spare_blocks`: on the device, beside the pools: this many blocks of a step, and of
        earlier ones still under way, are copied to the host without the step waiting for them. With
        0 it waits for all. None: NUM_SPARE_BLOCKS on a CUDA device, else 0. `streams`: in place of
        the device's own.
        """
        int_at_least(
            "num_spare_blocks", num_spare_blocks, 0, optional=True, error=InvalidArgumentError
        )
        check_type("implementation", implementation, TieredImplementation)
        check_type("batched", batched, BatchedManager)
        check_type("pools", pools, KVPools)
        cache = batched.manager.config.kv_cache
        # A worker's pools have only its layers, but every group and every block.
        if (pools.num_blocks, len(pools.cache.groups)) != (cache.num_blocks, len(cache.groups)):
            raise InvalidArgumentError("pools", pools.cache, "pools of the manager's cache")
        if streams is not None:
            check_type("streams", streams, Streams)
        self.batched, self.manager = batched, batched.manager
        self.tier: Tier = implementation.make_tier(self.manager, num_host_blocks)
        self.host_pools = KVPools(
            resized(pools.cache, num_host_blocks),
            layout=pools.layout,
            pin_memory=pools.device.type == "cuda",
        )
        self.swapper = Swapper(pools, self.host_pools, backend=backend, streams=streams)
        if num_spare_blocks is None:
            num_spare_blocks = NUM_SPARE_BLOCKS if pools.device.type == "cuda" else 0
        self.offload = Offload(self.swapper, num_spare_blocks) if num_spare_blocks else None
        self.pages = PageOperations(pools, backend=backend)
        self.num_loaded_tokens = 0
        self.num_copies_out = 0
        self._last = Transfer(None)
        self._sizes = [spec.block_size for spec in self.manager.config.managed_specs]
        self._blocks: dict[int, list[list[int]]] = {}  # of each handle, by rows
        self._told: dict[int, list[int]] = {}  # full blocks of each that were reported to the tier

    def load(self, request: Request) -> int | None:
        """Admit a registered request with the tokens that the host has.

        Returns the tokens that it then has, including hits on the device; it is RUNNING and
        continues as one of `prefilling`. 0: the host has nothing, plan it as `new`. None: no space
        now.
        """
        hit = self.manager.get_computed_blocks(request)
        external = self.tier.lookup(request, hit.hit_length_tokens)
        if not external:
            return 0
        self.tier.hold(request, hit.hit_length_tokens, external)
        allocated = self.manager.allocate_slots(
            request,
            0,
            num_new_computed_tokens=hit.hit_length_tokens,
            new_computed_blocks=hit.blocks,
            num_external_computed_tokens=external,
            full_sequence_must_fit=True,
        )
        if allocated is None:
            self.tier.drop(request)
            return None
        lists = self.manager.get_blocks(request)
        sizes = zip(lists.groups, self._sizes, strict=True)
        fresh = [ids[hit.hit_length_tokens // size :] for ids, size in sizes]
        self.take(chain(*fresh))
        self.pages.zero_blocks(self.manager.take_new_block_ids())  # before loads, not after
        copies = self.tier.load(request, lists)
        self._last = self.swapper.swap_in(*_columns(copies))
        self._last.wait()
        self.num_loaded_tokens += external
        request.num_computed_tokens = hit.hit_length_tokens + external
        request.status = RequestStatus.RUNNING
        return request.num_computed_tokens

    def take(self, blocks: Iterable[int]) -> None:
        """Save blocks taken outside of steps and `load`; call it before they are overwritten.

        For forks and for tokens from other stores. Their content is copied to the host, as in a
        step.
        """
        self._copy_out(self.tier.taken([block for block in blocks if block]))

    def before_step(self, plan: StepPlan, result: StepResult, rows: Array) -> None:
        """Copy out what is about to be overwritten. `rows`: all that the step reported."""
        released, _, entries = entries_of(plan)
        before = self._computed_before(entries.tolist(), result)
        changes = self._changes(rows, result.num_deltas, before)
        for handle in released.tolist():
            self._blocks.pop(handle, None)
            self._told.pop(handle, None)
        fresh = []
        for handle, group, index, block in changes:
            lists = self._blocks.setdefault(handle, [[] for _ in self._sizes])
            del lists[group][index:]
            lists[group].append(block)
            # Blocks before the computed tokens are hits, or were loaded.
            if block and index * self._sizes[group] >= before[handle]:
                fresh.append(block)
        self._copy_out(self.tier.taken(fresh))

    def _computed_before(self, entries: list[int], result: StepResult) -> dict[int, int]:
        """Return the computed tokens of each entry before the step."""
        check_type("result", result, StepResult)
        granted = result.num_scheduled_tokens
        if len(granted) != len(entries):
            field = "result.num_scheduled_tokens"
            raise InvalidArgumentError(field, len(granted), f"{len(entries)} counts, as planned")
        requests = map(self.batched.request_of, entries)
        return {
            handle: request.num_computed_tokens - num
            for handle, request, num in zip(entries, requests, granted, strict=True)
        }

    def _changes(self, rows: Array, num_rows: int, before: Container[int]) -> list[list[int]]:
        """Return the rows (handle, group, index, block), each of an entry of the step."""
        table = host_rows("rows", rows)
        if len(table) < num_rows:
            raise InvalidArgumentError("rows", len(table), f"{num_rows} rows, as the result says")
        changes: list[list[int]] = table[:num_rows].tolist()
        num_blocks = self.manager.config.kv_cache.num_blocks
        for number, (handle, group, index, block) in enumerate(changes):
            field = f"rows[{number}]"
            if handle not in before:
                raise InvalidArgumentError(f"{field}.handle", handle, "an entry of the step")
            check_group(f"{field}.group", group, len(self._sizes))
            if index < 0:
                raise InvalidArgumentError(f"{field}.index", index, "an int of at least 0")
            if not 0 <= block < num_blocks:
                allowed = f"an int in 0 … {num_blocks - 1}"
                raise InvalidArgumentError(f"{field}.block", block, allowed)
        return changes

    def after_step(self, handles: Iterable[int]) -> None:
        """Report newly full blocks to the tier, once a step is computed and drafts are resolved."""
        for handle in handles:
            request = self.batched.request_of(handle)
            told = self._told.setdefault(handle, [0] * len(self._sizes))
            num_final = min(request.num_computed_tokens, request.num_tokens)
            for group, size in enumerate(self._sizes):
                first, end = told[group], num_final // size
                if first < end:
                    ids = self._blocks[handle][group][first:end]
                    self.tier.computed(request, group, first, ids)
                    told[group] = end

    def reset(self) -> None:
        """Forget all content: the weights are others now."""
        self.tier.reset()

    def synchronize(self) -> None:
        """Block until all copies have ended: before the host reads `host_pools`, or drops them."""
        self._last.synchronize()
        if self.offload is not None:
            self.offload.synchronize()

    def _copy_out(self, copies: Copies) -> None:
        """Copy blocks that whatever is queued next may overwrite."""
        if not copies:
            return
        self.num_copies_out += len(copies)
        if self.offload is not None:
            self.offload.copy(*_columns(copies))
        else:
            self._last = self.swapper.swap_out(*_columns(copies))
            self._last.wait()


def _columns(copies: Copies) -> tuple[list[int], list[int]]:
    return [source for source, _ in copies], [destination for _, destination in copies]
