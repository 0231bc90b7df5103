"""From vLLM's events to the contract's."""

from __future__ import annotations

from typing import Any

from kvcheck.adapters.vllm.library import Library
from kvspec.events import AllBlocksCleared, BlockRemoved, BlockStored, Event


def translate_event(library: Library, event: Any, *, is_report: bool = False) -> Event:
    """Translate an event, member by member. vLLM does not mark reports."""
    if isinstance(event, library.events.AllBlocksCleared):
        return AllBlocksCleared()
    if isinstance(event, library.events.BlockRemoved):
        return BlockRemoved(tuple(event.block_hashes), event.medium, event.group_idx)
    extra = event.extra_keys
    ahead = getattr(event, "lookahead_token_ids", None)  # vLLM 0.24 has none
    return BlockStored(
        block_hashes=tuple(event.block_hashes),
        parent_block_hash=event.parent_block_hash,
        token_ids=tuple(event.token_ids),
        block_size_tokens=event.block_size,
        lora_id=event.lora_id,
        lora_name=event.lora_name,
        medium=event.medium,
        extra_keys=None if extra is None else tuple(extra),
        group=event.group_idx,
        spec_kind=event.kv_cache_spec_kind,
        sliding_window_tokens=event.kv_cache_spec_sliding_window,
        lookahead_token_ids=None if ahead is None else tuple([tuple(each) for each in ahead]),
        is_report=is_report,
    )
