"""Features of vLLM's manager since 0.26, those that kvfast lacks, and its replacement."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from vllm.v1.core import kv_cache_utils

import kvfast
from kvfast.engines.vllm.events import vllm_event
from kvfast.engines.vllm.fit import Given, config_of, given_to
from kvfast.engines.vllm.manager import OF_THE_ENCODER, KvfastManager
from kvfast.engines.vllm.requests import NAME
from kvfast.engines.vllm.versions import is_since, policy_of, release
from kvfast.engines.vllm.views import Block, Blocks
from kvspec.errors import UnsupportedError
from kvspec.events import BlockStored, Event
from kvspec.foreign import beyond_contract


def given_by(scheduler: Any) -> Given:
    """Return the arguments of a scheduler's manager; UnsupportedError if kvfast can't serve."""
    given = given_to(scheduler)
    if not is_since(26):
        return given
    _refuse(scheduler)
    return replace(
        given,
        max_num_batched_tokens=scheduler.vllm_config.max_in_flight_tokens,
        hash_lookahead_tokens=getattr(scheduler, "num_hash_lookahead_tokens", 0),  # since 0.33
        policy=policy_of(release(), enable_caching=scheduler.kv_cache_manager.enable_caching),
    )


def _refuse(scheduler: Any) -> None:
    """Raise UnsupportedError for what the contract does not have."""
    specs = [group.kv_cache_spec for group in scheduler.kv_cache_config.kv_cache_groups]
    coordinator = scheduler.kv_cache_manager.coordinator
    leaves = any(getattr(spec, "num_prefill_checkpoint_blocks", 0) for spec in specs)
    refused = {
        **beyond_contract(scheduler),
        f"windows that are replayed in vLLM 0.{release()}": not is_since(33)
        and getattr(scheduler, "prefix_replay_tokens", 0) > 0,
        "context parallelism": max(scheduler.dcp_world_size, scheduler.pcp_world_size) > 1,
        f"Mamba layers with prefix caching in vLLM 0.{release()}": scheduler.has_mamba_layers
        and scheduler.kv_cache_manager.enable_caching
        and not is_since(33),
        # They key the end of a prompt elsewhere.
        f"blocks larger than those that are hashed in vLLM 0.{release()}": (
            not is_since(32) and any(spec.block_size != scheduler.hash_block_size for spec in specs)
        ),
        f"windows that are zeroed in vLLM 0.{release()}": not is_since(28)
        and scheduler.needs_kv_cache_zeroing
        and any(hasattr(spec, "sliding_window") and spec.sliding_window for spec in specs),
        # They keep other places to replay from.
        f"EAGLE beside windows with sparse retention in vLLM 0.{release()}": len(specs) > 1
        and scheduler.use_eagle
        and coordinator.retention_interval is not None
        and not is_since(33),
        "Mamba layers where EAGLE drops blocks, with sparse retention or states inside chunks": (
            scheduler.has_mamba_layers
            and getattr(scheduler, "use_eagle_block_drop", scheduler.use_eagle)
            and (coordinator.retention_interval is not None or leaves or not is_since(33))
        ),
        "several modules that draft": getattr(coordinator, "num_reprefillable_tokens", 0) > 0,
        f"a KV connector beside blocks that are zeroed in vLLM 0.{release()}": not is_since(33)
        and scheduler.connector is not None
        and scheduler.needs_kv_cache_zeroing,
    }
    for what, is_there in refused.items():
        if is_there:
            raise UnsupportedError(what, "kvfast")


class LaterManager(KvfastManager):
    """Replaces a manager of vLLM 0.26 or later. `loaded`: new blocks that a load will write."""

    def __init__(self, stock: Any, *others: Any) -> None:
        super().__init__(stock, *others)
        self.counts_when_admitted = hasattr(stock, "record_prefix_cache_stats")  # since 0.27
        self.loaded: set[int] = set()

    def prefix_cache_lookup_enabled(self, request: Any) -> bool:
        return self.enable_caching and not request.skip_reading_prefix_cache

    def record_prefix_cache_stats(self, request: Any, num_hits: int) -> None:
        is_counted = self.counts_when_admitted and self.log_stats
        if is_counted and self.prefix_cache_lookup_enabled(request):
            self._count_lookup(request, num_hits)

    def get_computed_blocks(  # type: ignore[override]  # 0.24 returns no junction
        self, request: Any, max_cache_hit_length: int | None = None
    ) -> tuple[Any, int, int]:
        """Return the longest cached prefix, its length in tokens, and the junction; 0 for none."""
        if not self.prefix_cache_lookup_enabled(request):
            return self.empty_kv_cache_blocks, 0, 0
        if max_cache_hit_length not in (None, request.num_tokens - 1):
            raise UnsupportedError(f"a hit of at most {max_cache_hit_length} tokens", "kvfast")
        if request.resumable and self.requests.ahead:  # vLLM has hashed it again
            request.__dict__.pop(NAME, None)
        if self.enable_kv_cache_events:  # a hit may be reported
            self.requests.told[request.request_id] = request
        hit = self.fast.get_computed_blocks(self.requests.current(request))
        length, beyond = hit.hit_length_tokens, hit.uncached_common_prefix_tokens
        if self.log_stats and not self.counts_when_admitted:
            self._count_lookup(request, length)
        return self._shown(hit.blocks), length, length + beyond if beyond else 0

    def get_computed_blocks_for_connector(
        self, request: Any, max_cache_hit_length: int | None = None
    ) -> tuple[Any, int, int, bool]:
        """Return the same: no group is longer, since Mamba with connectors is not supported."""
        return *self.get_computed_blocks(request, max_cache_hit_length), False

    def allocate_slots(
        self, request: Any, num_new_tokens: int, *others: Any, **options: Any
    ) -> Any:
        loaded = options.pop("skip_zeroing_group_ids", ())
        granted = super().allocate_slots(request, num_new_tokens, *others, **options)
        if loaded and granted is not None:
            ids = self.get_block_ids(request.request_id)
            self.loaded.update(*(ids[group] for group in loaded))  # all that is new is for it
        return granted

    def remove_skipped_blocks(
        self,
        request_id: str,
        processed_computed_tokens: int,
        num_prompt_tokens: int | None = None,
    ) -> None:
        super().remove_skipped_blocks(request_id, processed_computed_tokens)

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
        """Raise UnsupportedError: blocks to be zeroed are of several groups, where a failed load
        starts again.
        """
        raise UnsupportedError("zeroing what a failed load left", "kvfast")

    def take_new_block_ids(self) -> list[int]:
        """Return the blocks to be zeroed, but for those that a load writes."""
        ids, loaded = super().take_new_block_ids(), self.loaded
        if not loaded:
            return ids
        self.loaded = set()
        return [block for block in ids if block not in loaded]

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
        """Return none."""
        return []

    def _told(self, event: Event) -> Any:
        """Convert an event to vLLM's, with the members added since 0.26."""
        requests, ahead = self.requests, self.requests.ahead
        made = vllm_event(event, requests.told, keys_of(ahead))
        if isinstance(event, BlockStored) and event.source is not None:
            request, size = requests.told[event.source.request_id], event.block_size_tokens
            if is_since(31):  # extra keys have kinds, and events do not say them
                made.extra_keys = kv_cache_utils.to_event_extra_keys(made.extra_keys)
            if hasattr(made, "session_id"):
                made.session_id = request.session_id
            if ahead:
                ends = [(block + 1) * size for block in event.source.stored_blocks]
                tokens = request.all_token_ids
                made.lookahead_token_ids = [tokens[end : end + ahead] for end in ends]
        return made


def keys_of(ahead: int) -> Any:
    """Return the function for the extra keys of a block, or of its hash's window."""
    if ahead == 0:
        return kv_cache_utils.generate_block_hash_extra_keys

    def keys(request: Any, start: int, end: int, item: int) -> Any:
        window = kv_cache_utils.generate_lookahead_block_hash_extra_keys
        return window(request, start, end, end + ahead, item)

    return keys


def kvfast_manager(stock: Any, given: Given) -> KvfastManager:
    """Replace an unused manager of vLLM's by kvfast.

    Raises UnsupportedError or ConfigError if kvfast cannot serve its configuration.
    """
    config = config_of(stock, given)
    implementation = kvfast.implementation()
    manager = implementation.create(config, check_invariants=False)
    kind = LaterManager if is_since(26) else KvfastManager
    return kind(stock, implementation, manager)
