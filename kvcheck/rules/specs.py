"""Small layers of every block type, as the checks use them."""

from __future__ import annotations

from typing import Any

from kvspec.specs import (
    ChunkedLocalAttentionSpec,
    CircularBufferSpec,
    CrossAttentionSpec,
    EncoderOnlyAttentionSpec,
    FullAttentionSpec,
    MambaSpec,
    RSWASpec,
    SlidingWindowMLASpec,
    SlidingWindowSpec,
)


def full(block_size: int = 4, **members: Any) -> FullAttentionSpec:
    sizes = {"num_kv_heads": 1, "head_size": 8, "dtype": "float16", **members}
    return FullAttentionSpec(block_size, **sizes)


def rswa(block_size: int, window: int) -> RSWASpec:
    return RSWASpec(block_size, 1, 8, "float16", rswa_window=window)


def sliding(block_size: int, window: int, **members: Any) -> SlidingWindowSpec:
    return SlidingWindowSpec(block_size, 1, 8, "float16", sliding_window=window, **members)


def sliding_mla(block_size: int, window: int) -> SlidingWindowMLASpec:
    return SlidingWindowMLASpec(block_size, 1, 8, "float16", sliding_window=window)


def chunked(block_size: int, chunk: int, **members: Any) -> ChunkedLocalAttentionSpec:
    return ChunkedLocalAttentionSpec(
        block_size, 1, 8, "float16", attention_chunk_size=chunk, **members
    )


def mamba(block_size: int, mode: str = "all", *, speculative: int = 0) -> MambaSpec:
    return MambaSpec(
        block_size,
        ((2, 2),),
        ("float32",),
        mamba_cache_mode=mode,
        num_speculative_blocks=speculative,
    )


def cross(block_size: int) -> CrossAttentionSpec:
    return CrossAttentionSpec(block_size, 1, 8, "float16")


def ring(block_size: int) -> CircularBufferSpec:
    return CircularBufferSpec(block_size, 1, 8, "float16")


def encoder_only(block_size: int) -> EncoderOnlyAttentionSpec:
    return EncoderOnlyAttentionSpec(block_size, 1, 8, "float16")
