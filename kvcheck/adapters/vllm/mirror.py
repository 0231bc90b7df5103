"""The calls of vLLM's scheduler, made to an implementation of the contract as well, and compared.

No import of vLLM: its values are read by the names of their members.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Sequence
from itertools import count
from pathlib import Path
from typing import Any

from kvcheck.adapters.vllm import preconditions
from kvcheck.adapters.vllm.preconditions import Asked
from kvcheck.watch.monitor import monitor
from kvspec.blocks import KVCacheBlocks
from kvspec.config import ManagerConfig
from kvspec.errors import KVSpecError
from kvspec.interface import Implementation, KVCacheManager
from kvspec.request import LoRA, MultimodalItem, Request, RequestInput, RequestStatus
from kvspec.specs import MambaSpec

HISTORY = 20_000
"""Calls that a record holds at most: enough to begin where the engine did, in a test."""


class ShadowDifferenceError(KVSpecError):
    """vLLM's manager and the shadow differ; raised with KVSPEC_SHADOW_RAISE=1.

    `record`: what the shadow did up to the call that differs; None where nothing could be written.
    """

    def __init__(self, said: str, record: Path | None) -> None:
        super().__init__(f"{said}; record: {record}")
        self.said = said
        self.record = record


class Mirror:
    """One implementation that follows. It stops at the first difference, which it keeps.

    `records`: under a monitor, which writes the record. Not for asynchronous scheduling: a monitor
    takes tokens that are sampled after their slots were granted for drafts.
    """

    def __init__(
        self,
        implementation: Implementation,
        config: ManagerConfig,
        report: Callable[[str], object],
        *,
        records: bool = True,
    ) -> None:
        self.implementation = implementation
        self.config = config
        self.report = report
        made = implementation.create(config, check_invariants=False)
        self.recorder = monitor(made, every=1_000, history=HISTORY) if records else None
        self.manager: KVCacheManager = made if self.recorder is None else self.recorder
        self.requests: dict[str, tuple[object, Request]] = {}
        self.difference: ShadowDifferenceError | None = None
        self.num_calls = 0

    def same(self, call: str, ours: Callable[[], object], theirs: object) -> None:
        """Make the call to the shadow, and compare."""
        if self.difference is not None:
            return
        self.num_calls += 1
        try:
            answer = ours()
        except KVSpecError as error:
            self.differ(f"{call}: {self.implementation.capabilities.name} refuses: {error}")
            return
        if answer != theirs:
            self.differ(f"{call}: vLLM {theirs!r}, shadow {answer!r}")

    def require(self, call: str, broken: str | None) -> None:
        """Report a precondition that the scheduler did not keep."""
        if broken is not None and self.difference is None:
            self.differ(f"{call}: the scheduler asks for {broken}")

    def differ(self, said: str) -> None:
        """Write the record, report, and follow no further."""
        path = None
        try:
            path = self._written()
        except (KVSpecError, OSError) as error:
            said = f"{said} (no record: {error})"
        self.difference = ShadowDifferenceError(said, path)
        self.report(str(self.difference))
        if os.environ.get("KVSPEC_SHADOW_RAISE") == "1":
            raise self.difference

    def _written(self) -> Path | None:
        """The record of all calls so far."""
        if self.recorder is None:
            return None
        folder = Path(os.environ.get("KVSPEC_MONITOR_DIR") or ".")
        folder.mkdir(parents=True, exist_ok=True)
        free = (folder / f"kvspec-shadow-{number}.jsonl" for number in count(1))
        path = next(each for each in free if not each.exists())
        self.recorder.write_record(path)
        return path

    def current(self, request: Any) -> Request:
        """The shadow's request, which knows what vLLM's knows now."""
        kept, mine = self.requests.get(request.request_id, (None, None))
        if kept is not request or mine is None:
            mine = self.implementation.make_request(self.manager, input_of(request))
            self.requests[request.request_id] = (request, mine)
        new = request.num_tokens - mine.num_tokens
        if new < 0:
            raise KVSpecError("a request that loses tokens is not followed")
        if new:
            tokens = list(request.all_token_ids[-new:])
            self.implementation.append_tokens(self.manager, mine, tokens)
        mine.num_computed_tokens = request.num_computed_tokens
        mine.num_preemptions = request.num_preemptions
        status = request.status.name
        mine.status = RequestStatus(status if status in ("WAITING", "PREEMPTED") else "RUNNING")
        return mine

    def named(self, request_id: str) -> Request | None:
        """The shadow's request of that name, if it was seen."""
        return self.requests.get(request_id, (None, None))[1]


def input_of(request: Any) -> RequestInput:
    """What vLLM's request was made from, without what was appended."""
    if request.prompt_embeds is not None:
        raise KVSpecError("prompt embeddings are not followed")
    adapter = request.lora_request
    return RequestInput(
        request.request_id,
        list(request.all_token_ids[: request.num_prompt_tokens]),
        cache_salt=request.cache_salt or None,
        lora=None if adapter is None else LoRA(adapter.name, adapter.adapter_id),
        multimodal=tuple(
            MultimodalItem(item.identifier, item.mm_position.offset, item.mm_position.length)
            for item in request.mm_features
        ),
        skip_reading_cache=bool(request.skip_reading_prefix_cache),
    )


def ids_of(blocks: Any) -> KVCacheBlocks | None:
    """The ids of vLLM's blocks; None stays None."""
    if blocks is None:
        return None
    return KVCacheBlocks(tuple([block.block_id for block in group] for group in blocks.blocks))


class Forwarded:
    """An object of vLLM's, whose members are those of the stock one."""

    def __init__(self, stock: Any, mirror: Mirror) -> None:
        self.stock = stock
        self.mirror = mirror

    def __getattr__(self, name: str) -> Any:
        return getattr(self.stock, name)


class ShadowedPool(Forwarded):
    """vLLM's pool; what goes back by it goes back in the shadow."""

    def free_blocks(self, ordered_blocks: Iterable[Any]) -> None:
        """Return references, in this order."""
        blocks = list(ordered_blocks)
        self.stock.free_blocks(blocks)
        ids = [block.block_id for block in blocks]
        self.mirror.same("free_blocks", lambda: self.mirror.manager.free_blocks(ids), None)

    def touch(self, blocks: Sequence[Any]) -> None:
        """Take references."""
        self.stock.touch(blocks)
        ids = [block.block_id for block in blocks]
        self.mirror.same("hold_blocks", lambda: self.mirror.manager.hold_blocks(ids), None)


class ShadowedManager(Forwarded):
    """vLLM's manager; the calls of its scheduler are made to the shadow, too."""

    def __init__(self, stock: Any, pool: ShadowedPool, mirror: Mirror) -> None:
        super().__init__(stock, mirror)
        self.block_pool = pool
        self.shadow: Any = mirror.manager

    def new_step_starts(self) -> None:
        """A step begins."""
        self.stock.new_step_starts()
        self.mirror.same("new_step_starts", self.shadow.new_step_starts, None)

    def get_computed_blocks(self, request: Any) -> tuple[Any, int]:
        """The longest cached prefix."""
        blocks, length = self.stock.get_computed_blocks(request)

        def ours() -> object:
            hit = self.shadow.get_computed_blocks(self.mirror.current(request))
            return hit.blocks, hit.hit_length_tokens

        self.mirror.same("get_computed_blocks", ours, (ids_of(blocks), length))
        return blocks, length

    def allocate_slots(
        self,
        request: Any,
        num_new_tokens: int,
        num_new_computed_tokens: int = 0,
        new_computed_blocks: Any = None,
        **options: Any,
    ) -> Any:
        """Slots, or None. Both must have as many free blocks afterwards."""
        hits = ids_of(new_computed_blocks)
        self._check(request, num_new_tokens, num_new_computed_tokens, options)
        computed = request.num_computed_tokens
        granted = self.stock.allocate_slots(
            request, num_new_tokens, num_new_computed_tokens, new_computed_blocks, **options
        )
        free = self.stock.block_pool.get_num_free_blocks()

        def ours() -> object:
            mine = self.mirror.current(request)
            mine.num_computed_tokens = computed
            answer = self.shadow.allocate_slots(
                mine,
                num_new_tokens,
                num_new_computed_tokens=num_new_computed_tokens,
                new_computed_blocks=None if hits is None or hits.is_empty else hits,
                **options,
            )
            return answer, self.shadow.num_free_blocks

        self.mirror.same(f"allocate_slots of {request.request_id}", ours, (ids_of(granted), free))
        return granted

    def _check(self, request: Any, new: int, new_computed: int, options: Any) -> None:
        """The preconditions of an allocation."""
        asked = Asked(
            request.num_tokens,
            request.num_prompt_tokens,
            request.num_computed_tokens,
            new,
            new_computed,
            options.get("num_external_computed_tokens", 0),
            options.get("num_lookahead_tokens", 0),
            options.get("delay_cache_blocks", False),
        )
        config, call = self.mirror.config, f"allocate_slots of {request.request_id}"
        size = config.scheduler_block_size_tokens or 1
        self.mirror.require(call, preconditions.load_behind_hit(asked, size))
        self.mirror.require(call, preconditions.lookahead_of_load(asked))
        for spec in config.managed_specs:
            if isinstance(spec, MambaSpec) and spec.mamba_cache_mode == "align":
                self.mirror.require(call, preconditions.aligned_chunk(asked, spec.block_size))

    def free(self, request: Any) -> None:
        """Release all blocks of the request."""
        self.stock.free(request)
        mine = self.mirror.named(request.request_id)
        if mine is not None:
            self.mirror.same("free", lambda: self.shadow.free(mine), None)
            self._forget(request)

    def pop_blocks_for_free(self, request: Any) -> Any:
        """Forget the request, keep its references."""
        blocks = self.stock.pop_blocks_for_free(request)
        mine = self.mirror.named(request.request_id)
        if mine is not None:
            ids = tuple(block.block_id for block in blocks)
            call = "pop_blocks_for_free"
            self.mirror.same(call, lambda: self.shadow.pop_blocks_for_free(mine), ids)
            self._forget(request)
        return blocks

    def _forget(self, request: Any) -> None:
        """A request that is finished is not asked for again."""
        if request.is_finished():
            self.mirror.requests.pop(request.request_id, None)

    def remove_skipped_blocks(self, request_id: str, total_computed_tokens: int) -> None:
        """Release what attention no longer needs."""
        self.stock.remove_skipped_blocks(request_id, total_computed_tokens)
        mine = self.mirror.named(request_id)
        if mine is not None:
            self.mirror.same(
                "remove_skipped_blocks",
                lambda: self.shadow.remove_skipped_blocks(mine, total_computed_tokens),
                None,
            )

    def evict_blocks(self, block_ids: Iterable[int]) -> None:
        """Drop the cached identity of these blocks."""
        ids = list(block_ids)
        self.stock.evict_blocks(set(ids))
        self.mirror.same("evict_blocks", lambda: self.shadow.evict_blocks(ids), None)

    def reset_prefix_cache(self) -> bool:
        """Drop every hash, if no block is in use."""
        done = bool(self.stock.reset_prefix_cache())
        self.mirror.same("reset_prefix_cache", self.shadow.reset_prefix_cache, done)
        return done

    def get_num_common_prefix_blocks(self, running_request_id: str) -> list[int]:
        """Per group, leading blocks that all share."""
        found: list[int] = self.stock.get_num_common_prefix_blocks(running_request_id)
        mine = self.mirror.named(running_request_id)
        if mine is not None:
            self.mirror.same(
                "get_num_common_prefix_blocks",
                lambda: self.shadow.get_num_common_prefix_blocks(mine),
                tuple(found),
            )
        return found

    def cache_blocks(self, request: Any, num_computed_tokens: int) -> None:
        """Register full blocks of tokens that are computed."""
        broken = preconditions.verified_tokens(num_computed_tokens, request.num_tokens)
        self.mirror.require(f"cache_blocks of {request.request_id}", broken)
        self.stock.cache_blocks(request, num_computed_tokens)
        self.mirror.same(
            "cache_blocks",
            lambda: self.shadow.cache_blocks(self.mirror.current(request), num_computed_tokens),
            None,
        )

    def take_new_block_ids(self) -> list[int]:
        """Blocks to be zeroed."""
        ids: list[int] = self.stock.take_new_block_ids()
        call = "take_new_block_ids"
        self.mirror.same(call, self.shadow.take_new_block_ids, tuple(ids))
        return ids
