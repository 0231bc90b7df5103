"""Small specs of the block types besides full attention, and what shows how groups use blocks."""

from __future__ import annotations

from typing import Any

from kvspec.interface import KVCacheManager
from kvspec.request import Request
from kvspec.specs import (
    ChunkedLocalAttentionSpec,
    CrossAttentionSpec,
    EncoderOnlyAttentionSpec,
    MambaSpec,
    SlidingWindowMLASpec,
    SlidingWindowSpec,
)


def sliding(block_size: int, window: int, **members: Any) -> SlidingWindowSpec:
    """A small sliding window."""
    return SlidingWindowSpec(block_size, 1, 8, "float16", sliding_window=window, **members)


def sliding_mla(block_size: int, window: int) -> SlidingWindowMLASpec:
    """A small sliding window over latents."""
    return SlidingWindowMLASpec(block_size, 1, 8, "float16", sliding_window=window)


def chunked(block_size: int, chunk: int, **members: Any) -> ChunkedLocalAttentionSpec:
    """A small chunked local attention."""
    return ChunkedLocalAttentionSpec(
        block_size, 1, 8, "float16", attention_chunk_size=chunk, **members
    )


def mamba(block_size: int, mode: str = "all", *, speculative: int = 0) -> MambaSpec:
    """A small Mamba layer."""
    return MambaSpec(
        block_size,
        ((2, 2),),
        ("float32",),
        mamba_cache_mode=mode,
        num_speculative_blocks=speculative,
    )


def cross(block_size: int) -> CrossAttentionSpec:
    """A small cross attention."""
    return CrossAttentionSpec(block_size, 1, 8, "float16")


def encoder_only(block_size: int) -> EncoderOnlyAttentionSpec:
    """A small encoder-only attention."""
    return EncoderOnlyAttentionSpec(block_size, 1, 8, "float16")


def lists_of(manager: KVCacheManager, request: Request) -> list[list[int]]:
    """The request's block list in every group."""
    return manager.get_blocks(request).to_lists()


def null_positions(manager: KVCacheManager, request: Request, group: int = 0) -> list[int]:
    """The positions of the request's list where null stands."""
    return [i for i, block in enumerate(lists_of(manager, request)[group]) if block == 0]


def cached_positions(manager: KVCacheManager, request: Request, group: int = 0) -> list[int]:
    """The positions of the request's list whose block carries a key."""
    keys = manager.snapshot().block_keys
    return [i for i, block in enumerate(lists_of(manager, request)[group]) if keys[block]]


def counts_of(manager: KVCacheManager, request: Request) -> tuple[int | None, ...]:
    """Per group, leading blocks handed to the cache; None without an entry (KV-GRP-1)."""
    return manager.snapshot().requests[request.request_id].num_cached_blocks


def keep_cached(
    manager: KVCacheManager, request: Request, positions: set[int], group: int = 0
) -> list[int]:
    """Drop the keys of all other blocks of the request's list in this group; the list."""
    blocks = lists_of(manager, request)[group]
    manager.evict_blocks([block for i, block in enumerate(blocks) if i not in positions])
    return blocks


def need_of(
    manager: KVCacheManager,
    request: Request,
    num_tokens: int,
    *,
    computed: int = 0,
    encoder: int = 0,
    capped: bool = False,
) -> int:
    """Free blocks the request would take to have slots for these tokens (KV-MGR-18)."""
    return manager.get_num_blocks_to_allocate(
        request,
        num_tokens=num_tokens,
        total_computed_tokens=computed,
        num_tokens_main_model=num_tokens,
        num_encoder_tokens=encoder,
        apply_admission_cap=capped,
    )


def step(manager: KVCacheManager, request: Request, chunk: int, rejected: int = 0) -> list[int]:
    """One step that must not be refused, of which the last tokens were drafts; the answer."""
    answer = manager.allocate_slots(request, chunk)
    assert answer is not None
    request.num_computed_tokens += chunk - rejected
    return answer.to_lists()[0]


def has_taken_blocks(manager: KVCacheManager, request: Request) -> bool:
    """Whether an align-mode Mamba group 0 remembers that the request took blocks."""
    state = manager.snapshot().requests[request.request_id].mamba[0]
    assert state is not None
    return state.has_allocated
