"""kvfast's events as vLLM's own types, with what the engine keeps: tokens, adapters, extra keys."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from vllm.distributed import kv_events
from vllm.v1.core.kv_cache_utils import generate_block_hash_extra_keys
from vllm.v1.metrics.stats import KVCacheEvictionEvent

from kvspec.events import AllBlocksCleared, BlockRemoved, BlockStored, Event, StoredRange

SECOND = 1e-9
"""A nanosecond in vLLM's unit."""


class Lives:
    """Replaces vLLM's collector (`kv_cache_metrics`): lives of blocks that kvfast sampled."""

    def __init__(self, fast: Any) -> None:
        self.fast = fast

    def drain_events(self) -> list[Any]:
        return [
            KVCacheEvictionEvent(
                life.lifetime_ns * SECOND,
                life.idle_ns * SECOND,
                tuple(gap * SECOND for gap in life.reuse_gaps_ns),
            )
            for life in self.fast.take_residency_samples()
        ]


def vllm_event(
    event: Event,
    requests: Mapping[str, Any],
    keys_of: Callable[..., Any] = generate_block_hash_extra_keys,
) -> Any:
    """Convert an event, member by member. `keys_of` returns the extra keys of a block."""
    if isinstance(event, AllBlocksCleared):
        return kv_events.AllBlocksCleared()
    if isinstance(event, BlockRemoved):
        return kv_events.BlockRemoved(
            block_hashes=list(event.block_hashes), medium=event.medium, group_idx=event.group
        )
    return _stored(event, event.source, requests, keys_of)


def _stored(
    event: BlockStored,
    source: StoredRange | None,
    requests: Mapping[str, Any],
    keys_of: Callable[..., Any],
) -> Any:
    if source is None:  # all of kvfast's requests here are followed
        raise LookupError(f"an event without the range it is about: {event}")
    request, size = requests[source.request_id], event.block_size_tokens
    adapter = request.lora_request
    extra, item = [], 0
    for block in source.stored_blocks:
        keys, item = keys_of(request, block * size, (block + 1) * size, item)
        extra.append(keys)
    return kv_events.BlockStored(
        block_hashes=list(event.block_hashes),
        parent_block_hash=event.parent_block_hash,
        token_ids=request.all_token_ids[source.first_block * size : source.end_block * size],
        block_size=size,
        lora_id=None if adapter is None else adapter.adapter_id,
        medium=event.medium,
        lora_name=None if adapter is None else adapter.name,
        extra_keys=extra or None,
        group_idx=event.group,
        kv_cache_spec_kind=event.spec_kind,
        kv_cache_spec_sliding_window=event.sliding_window_tokens,
    )
