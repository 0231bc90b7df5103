"""kvfast's events as vLLM's own types, with what the engine keeps: tokens, adapters, extra keys."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from vllm.distributed import kv_events
from vllm.v1.core import kv_cache_utils
from vllm.v1.metrics.stats import KVCacheEvictionEvent

from kvfast.engines.vllm.versions import is_since
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


def vllm_event(event: Event, requests: Mapping[str, Any], ahead: int) -> Any:
    """Convert an event, member by member. `ahead`: tokens after a block that its hash covers."""
    if isinstance(event, AllBlocksCleared):
        return kv_events.AllBlocksCleared()
    if isinstance(event, BlockRemoved):
        return kv_events.BlockRemoved(
            block_hashes=list(event.block_hashes), medium=event.medium, group_idx=event.group
        )
    return _stored(event, event.source, requests, ahead)


def _stored(
    event: BlockStored, source: StoredRange | None, requests: Mapping[str, Any], ahead: int
) -> Any:
    if source is None:  # all of kvfast's requests here are followed
        raise LookupError(f"an event without the range it is about: {event}")
    request, size = requests[source.request_id], event.block_size_tokens
    tokens, ends = request.all_token_ids, [(block + 1) * size for block in source.stored_blocks]
    adapter = request.lora_request
    extra, item = [], 0
    for end in ends:
        keys, item = _keys(request, end - size, end, item, ahead)
        extra.append(keys)
    if is_since(31):  # extra keys have kinds, and events do not say them
        extra = kv_cache_utils.to_event_extra_keys(extra or None)
    made = kv_events.BlockStored(
        block_hashes=list(event.block_hashes),
        parent_block_hash=event.parent_block_hash,
        token_ids=tokens[source.first_block * size : source.end_block * size],
        block_size=size,
        lora_id=None if adapter is None else adapter.adapter_id,
        medium=event.medium,
        lora_name=None if adapter is None else adapter.name,
        extra_keys=extra or None,
        group_idx=event.group,
        kv_cache_spec_kind=event.spec_kind,
        kv_cache_spec_sliding_window=event.sliding_window_tokens,
    )
    if hasattr(made, "session_id"):
        made.session_id = request.session_id
    if ahead:
        made.lookahead_token_ids = [tokens[end : end + ahead] for end in ends]
    return made


def _keys(request: Any, start: int, end: int, item: int, ahead: int) -> Any:
    """Return the extra keys of a block, or of its hash's window, and the next item."""
    if ahead == 0:
        return kv_cache_utils.generate_block_hash_extra_keys(request, start, end, item)
    window = kv_cache_utils.generate_lookahead_block_hash_extra_keys
    return window(request, start, end, end + ahead, item)
