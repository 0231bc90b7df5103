"""kvfast's events as vLLM's own types."""

from __future__ import annotations

from typing import Any

from vllm.distributed import kv_events

from kvspec.events import AllBlocksCleared, BlockRemoved, Event


def vllm_event(event: Event) -> Any:
    """One event, member by member."""
    if isinstance(event, AllBlocksCleared):
        return kv_events.AllBlocksCleared()
    if isinstance(event, BlockRemoved):
        return kv_events.BlockRemoved(
            block_hashes=list(event.block_hashes), medium=event.medium, group_idx=event.group
        )
    return kv_events.BlockStored(
        block_hashes=list(event.block_hashes),
        parent_block_hash=event.parent_block_hash,
        token_ids=list(event.token_ids),
        block_size=event.block_size_tokens,
        lora_id=event.lora_id,
        medium=event.medium,
        lora_name=event.lora_name,
        extra_keys=None if event.extra_keys is None else list(event.extra_keys),
        group_idx=event.group,
        kv_cache_spec_kind=event.spec_kind,
        kv_cache_spec_sliding_window=event.sliding_window_tokens,
    )
