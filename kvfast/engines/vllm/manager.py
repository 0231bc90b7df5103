"""A manager with the calls of vLLM's `KVCacheManager`, on kvfast.

The scheduler's calls of every step are passed straight to kvfast. Blocks, pool and coordinator,
which tests and connectors read, are views that are made on demand.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from copy import deepcopy
from typing import Any

from vllm.v1.core import kv_cache_utils
from vllm.v1.core.kv_cache_manager import KVCacheBlocks
from vllm.v1.metrics.stats import PrefixCacheStats

from kvfast._implementation import FastImplementation
from kvfast.engines.vllm.events import Lives, vllm_event
from kvfast.engines.vllm.requests import NAME, Requests
from kvfast.engines.vllm.views import Block, Blocks, Pool, coordinator_over
from kvspec.blocks import KVCacheBlocks as BlockIds
from kvspec.errors import UnsupportedError
from kvspec.events import Event
from kvspec.interface import KVCacheManager

OPTIONS = (
    "num_lookahead_tokens",
    "num_external_computed_tokens",
    "delay_cache_blocks",
    "num_encoder_tokens",
    "full_sequence_must_fit",
    "reserved_blocks",
    "has_scheduled_reqs",
)
"""The further arguments of `allocate_slots`, in vLLM's order."""
NO_HANDLE = -1
"""The seat of a request that ran where no step is batched."""
OF_THE_ENCODER = ("CrossAttentionSpec", "EncoderOnlyAttentionSpec")
"""Groups whose blocks are not a row of the request's tokens."""


class KvfastManager:
    """Replaces `stock`, which is used for its configuration only and not kept.

    `handles`: those of requests that have a seat, by name; `forgotten`: names that lost theirs
    since the last check of seats, or have another prompt; `num_singles`: allocations outside of
    batched steps. `loaded`: new blocks that a load will write. `is_driven`: a scheduler counts the
    tokens of a request as computed once their step is planned; `planned`: where those end that the
    step under way has planned so far.
    """

    def __init__(
        self, stock: Any, implementation: FastImplementation, manager: KVCacheManager
    ) -> None:
        self.kv_cache_config = stock.kv_cache_config
        self.max_model_len: int = stock.max_model_len
        self.enable_caching: bool = stock.enable_caching
        self.use_eagle: bool = stock.use_eagle
        self.log_stats: bool = stock.log_stats
        self.enable_kv_cache_events: bool = stock.block_pool.enable_kv_cache_events
        self.metrics_collector = None if stock.metrics_collector is None else Lives(manager)
        self.watermark_blocks: int = stock.watermark_blocks
        self.num_kv_cache_groups: int = stock.num_kv_cache_groups
        self.empty_kv_cache_blocks: Any = stock.empty_kv_cache_blocks
        self.prefix_cache_stats: Any = PrefixCacheStats() if stock.log_stats else None
        self.counts_when_admitted = hasattr(stock, "record_prefix_cache_stats")  # since 0.27
        self.loaded: set[int] = set()
        self.fast: Any = manager
        size = stock.block_pool.hash_block_size if stock.enable_caching else 0
        self.requests = Requests(implementation, manager, size)
        self.batched: Any = implementation.batched(manager)
        self.handles: dict[str, int] = {}
        self.num_singles = 0
        self.forgotten: set[str] = set()
        self.is_driven = False
        self.planned: dict[str, int] = {}
        self.noted: list[Any] = []
        self.block_pool = Pool(self.fast, self.batched, stock.block_pool, self.queued_events)
        self.coordinator: Any = coordinator_over(self.block_pool, self.requests, stock.coordinator)

    @property
    def usage(self) -> float:
        return float(self.fast.usage)

    def make_prefix_cache_stats(self) -> Any:
        taken = self.prefix_cache_stats
        if taken is not None:
            self.prefix_cache_stats = PrefixCacheStats()
        return taken

    def prefix_cache_lookup_enabled(self, request: Any) -> bool:
        return self.enable_caching and not request.skip_reading_prefix_cache

    def record_prefix_cache_stats(self, request: Any, num_hits: int) -> None:
        is_counted = self.counts_when_admitted and self.log_stats
        if is_counted and self.prefix_cache_lookup_enabled(request):
            self._count_lookup(request, num_hits)

    def get_computed_blocks(self, request: Any, max_cache_hit_length: int | None = None) -> Any:
        """Return the longest cached prefix, its tokens, and from 0.26 on the junction or 0."""
        is_later = self.requests.is_later
        if request.resumable and self.requests.ahead:  # vLLM has hashed it again
            request.__dict__.pop(NAME, None)
        if not self.prefix_cache_lookup_enabled(request):
            return self.empty_kv_cache_blocks, 0, *((0,) * is_later)
        if max_cache_hit_length not in (None, request.num_tokens - 1):
            raise UnsupportedError(f"a hit of at most {max_cache_hit_length} tokens", "kvfast")
        if self.enable_kv_cache_events:  # a hit may be reported
            self.requests.told[request.request_id] = request
        hit = self.fast.get_computed_blocks(self.requests.current(request))
        length, beyond = hit.hit_length_tokens, hit.uncached_common_prefix_tokens
        if self.log_stats and not self.counts_when_admitted:
            self._count_lookup(request, length)
        if is_later:
            return self._shown(hit.blocks), length, length + beyond if beyond else 0
        if beyond is not None:
            self.coordinator.num_uncached_common_prefix_tokens = beyond
        return self._shown(hit.blocks), length

    def get_computed_blocks_for_connector(
        self, request: Any, max_cache_hit_length: int | None = None
    ) -> tuple[Any, int, int, bool]:
        """Return the same: no group is longer, since Mamba with connectors is not supported."""
        return *self.get_computed_blocks(request, max_cache_hit_length), False

    def _count_lookup(self, request: Any, num_hits: int) -> None:
        self.prefix_cache_stats.record(
            num_tokens=request.num_tokens, num_hits=num_hits, preempted=request.num_preemptions > 0
        )

    def allocate_slots(
        self,
        request: Any,
        num_new_tokens: int,
        num_new_computed_tokens: int = 0,
        new_computed_blocks: Any = None,
        *others: Any,
        **options: Any,
    ) -> Any:
        if others:
            options.update(zip(OPTIONS[: len(others)], others, strict=True))
        loaded = options.pop("skip_zeroing_group_ids", ())
        mine = self.requests.current(request)
        self.num_singles += 1
        granted = self.fast.allocate_slots(
            mine,
            num_new_tokens,
            num_new_computed_tokens=num_new_computed_tokens,
            new_computed_blocks=_ids_of(new_computed_blocks),
            **options,
        )
        if granted is None:
            return None
        self.requests.held[request.request_id] = mine
        if self.is_driven and num_new_tokens and not options.get("delay_cache_blocks"):
            end = request.num_computed_tokens + num_new_computed_tokens + num_new_tokens
            end += options.get("num_external_computed_tokens", 0)
            self.planned[request.request_id] = min(end, request.num_tokens)
        if self.enable_kv_cache_events:
            self.requests.told[request.request_id] = request
        if loaded:
            ids, hits = self.get_block_ids(request.request_id), _ids_of(new_computed_blocks)
            for group in loaded:  # all that is new is for it; a hit may be new in this step, too
                hit = () if hits is None else hits.groups[group]
                self.loaded.update(block for block in ids[group] if block not in hit)
        return self._shown(granted)

    def free(self, request: Any) -> None:
        mine = self.requests.held.pop(request.request_id, None)
        if mine is not None:
            self._withdraw(request, mine)
            self.fast.free(mine)
            self._unregister(request.request_id)

    def pop_blocks_for_free(self, request: Any) -> list[Block]:
        """Forget the request; its blocks go back by the pool's `free_blocks`."""
        mine = self.requests.held.pop(request.request_id, None)
        if mine is None:
            return []
        self._withdraw(request, mine)
        popped = self.fast.pop_blocks_for_free(mine)
        self._unregister(request.request_id)
        return self.block_pool.shown(popped)

    def _withdraw(self, request: Any, mine: Any) -> None:
        """Drop the keys of blocks that no step fills (KV-MGR-24).

        Preemption by priority takes a request out of the step that it is planned in; vLLM's own
        manager keeps their keys.
        """
        planned = self.planned.pop(request.request_id, 0)
        if self.enable_caching and request.num_computed_tokens < planned:
            self.fast.withdraw(mine, request.num_computed_tokens)

    def _unregister(self, name: str) -> None:
        handle = self.handles.pop(name, None)
        if handle is not None:
            self.forgotten.add(name)
            if handle != NO_HANDLE:
                self.batched.unregister((handle,))

    def remove_skipped_blocks(self, request_id: str, *counts: int, **named: int) -> None:
        """Release what attention no longer needs; versions name the computed tokens differently."""
        named.pop("num_prompt_tokens", None)
        mine = self.requests.held.get(request_id)
        if mine is not None:
            self.fast.remove_skipped_blocks(mine, (*counts, *named.values())[0])

    def evict_blocks(self, block_ids: Iterable[int]) -> None:
        """Drop the cached identity of these blocks."""
        self.fast.evict_blocks(list(block_ids))

    def withdraw(self, request: Any) -> None:
        """Drop the keys of what a request has not computed, since a load failed (KV-MGR-24)."""
        if self.enable_caching:
            held = self.requests.held[request.request_id]
            self.fast.withdraw(held, request.num_computed_tokens)

    def reset_prefix_cache(self) -> bool:
        is_done = self.block_pool.reset_prefix_cache()
        if is_done and self.log_stats:
            self.prefix_cache_stats.reset = True
        return is_done

    def get_num_common_prefix_blocks(self, running_request_id: str) -> list[int]:
        mine = self.requests.held.get(running_request_id)
        if mine is None:
            return [0] * self.num_kv_cache_groups
        return list(self.fast.get_num_common_prefix_blocks(mine))

    def queued_events(self) -> list[Any]:
        """Return what `take_events` would, without taking it."""
        copied = deepcopy(self.fast)
        return self.noted + [self._told(event) for event in copied.take_events()]

    def _told(self, event: Event) -> Any:
        return vllm_event(event, self.requests.told, self.requests.ahead)

    def take_events(self) -> list[Any]:
        told = self.requests.told
        self.note_events()
        events, self.noted = self.noted, []
        if len(told) > len(self.requests.held):
            for name in told.keys() - self.requests.held.keys():
                del told[name]
        return events

    def note_events(self) -> None:
        """Make vLLM's of the events up to now, before the tokens that they are about change."""
        self.noted += [self._told(event) for event in self.fast.take_events()]

    def get_blocks(self, request_id: str) -> Any:
        mine = self.requests.held.get(request_id)
        if mine is None:
            return self.empty_kv_cache_blocks
        return self._shown(self.fast.get_blocks(mine))

    def get_block_ids(self, request_id: str) -> tuple[list[int], ...]:
        found: tuple[list[int], ...] = self.get_blocks(request_id).get_block_ids()
        return found

    def get_block_ids_for_computed_tokens(
        self, request_id: str, num_computed_tokens: int
    ) -> tuple[list[int], ...]:
        """Return the ids of a request's blocks, of attention only up to its computed tokens."""
        whole, end = ("MambaSpec", *OF_THE_ENCODER), num_computed_tokens
        specs = [group.kv_cache_spec for group in self.kv_cache_config.kv_cache_groups]
        return tuple(
            ids if type(spec).__name__ in whole else ids[: -(-end // spec.block_size)]
            for ids, spec in zip(self.get_block_ids(request_id), specs, strict=True)
        )

    def estimate_cached_tokens(self, request: Any) -> int:
        """Return the tokens up to which each group has something cached."""
        mine = self.requests.held.get(request.request_id)
        if mine is None:
            return 0
        groups = self.kv_cache_config.kv_cache_groups
        lists = self.fast.get_blocks(mine).groups
        return min(
            (
                self._covered(request, ids, group.kv_cache_spec.block_size)
                for ids, group in zip(lists, groups, strict=True)
                if getattr(group.kv_cache_spec, "prefix_cacheable", True)
                and type(group.kv_cache_spec).__name__ not in OF_THE_ENCODER
            ),
            default=0,
        )

    def _covered(self, request: Any, ids: Sequence[int], size: int) -> int:
        """Return the tokens that the last cached block covers: its key is a hash of the request."""
        for place in range(len(ids) - 1, -1, -1):
            found = self.fast.get_block(ids[place]).block_hash if ids[place] else None
            if found is None:
                continue
            unit = self.requests.hash_block_size
            # A state inside a chunk may lie one entry before the one that it ends in.
            for end in range((place + 2) * size, place * size, -unit):
                if request.block_hashes[end // unit - 1 : end // unit] == [found]:
                    return end
            return (place + 1) * size  # a session has lost the token after that hash
        return 0

    def truncate_computed_blocks(self, blocks: Any, num_computed_tokens: int) -> Any:
        """Cut a hit to a multiple of all block sizes."""
        if not any(map(len, blocks.get_block_ids())):
            return self.empty_kv_cache_blocks
        groups = self.kv_cache_config.kv_cache_groups
        cut = tuple(
            ids[: num_computed_tokens // group.kv_cache_spec.block_size]
            for ids, group in zip(blocks.get_block_ids(), groups, strict=True)
        )
        return Blocks(cut, self.block_pool) if any(cut) else self.empty_kv_cache_blocks

    def record_blocks_for_zeroing(self, request_id: str, start_token: int) -> None:
        """Raise UnsupportedError: a failed load starts again, beside groups that are zeroed."""
        raise UnsupportedError("zeroing what a failed load left", "kvfast")

    def cache_blocks(self, request: Any, num_computed_tokens: int) -> None:
        if self.enable_caching:
            self.fast.cache_blocks(self.requests.current(request), num_computed_tokens)

    def create_kv_cache_blocks(self, blocks: tuple[Sequence[Any], ...]) -> Any:
        if not any(blocks):
            return self.empty_kv_cache_blocks
        return KVCacheBlocks(blocks)

    def take_new_block_ids(self) -> list[int]:
        """Return the blocks to be zeroed, but for those that a load writes."""
        new, loaded, self.loaded = list(self.fast.take_new_block_ids()), self.loaded, set()
        return [block for block in new if block not in loaded] if loaded else new

    def take_kv_cache_block_copies(self) -> tuple[list[Any], list[Block]]:
        """Copies on write, and the blocks that are held for them until the step is over."""
        found = self.fast.take_block_copies()
        copies = [kv_cache_utils.KVCacheBlockCopy(*pair) for pair in found.pairs]
        return copies, self.block_pool.shown(found.retained)

    def take_boundary_state_offloads(self) -> dict[str, list[tuple[int, int, int]]]:
        """States for a connector: none, since Mamba beside connectors is not served."""
        return {}

    take_partial_tail_offloads = take_boundary_state_offloads
    """Its name before 0.29."""

    def finalize_partial_tail_offloads(self, request: Any) -> list[tuple[int, int, int]]:
        return []

    def new_step_starts(self) -> None:
        self.fast.new_step_starts()

    def _shown(self, blocks: BlockIds) -> Any:
        """Return vLLM's value; the one without blocks is always the same."""
        for ids in blocks.groups:
            if len(ids):
                return Blocks(blocks.groups, self.block_pool)
        return self.empty_kv_cache_blocks


def _ids_of(blocks: Any) -> BlockIds | None:
    """Return the ids of a hit; None for none, as vLLM's look-up does."""
    if blocks is None:
        return None
    if isinstance(blocks, Blocks):
        return BlockIds(blocks.ids)
    if not any(blocks.blocks):
        return None
    return BlockIds(tuple([block.block_id for block in group] for group in blocks.blocks))
