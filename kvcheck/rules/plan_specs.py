"""Specs of a usual size, and settings, for the examples of the chapter on planning."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

from kvspec.config import KVCacheConfig, KVCacheGroup
from kvspec.planning import Layers, PlanningConfig
from kvspec.specs import (
    ChunkedLocalAttentionSpec,
    CrossAttentionSpec,
    EncoderOnlyAttentionSpec,
    FullAttentionSpec,
    LayerSpec,
    MambaSpec,
    MLAAttentionSpec,
    SinkFullAttentionSpec,
    SlidingWindowMLASpec,
    SlidingWindowSpec,
)

GIB = 2**30
PAGE = 65_536
"""Bytes of a page of `large`, and of what is made like it."""

V4: Mapping[str, Any] = MappingProxyType(
    {"cache_dtype_str": "fp8_ds_mla", "alignment": 576, "model_version": "deepseek_v4"}
)
"""Latents of version 4, of which the examples of KV-PLAN-22 are made."""

CROSS = CrossAttentionSpec(16, 8, 128, "bfloat16")
ENCODER = EncoderOnlyAttentionSpec(16, 8, 128, "bfloat16")


def large(block_size: int = 16, head_size: int = 128, **members: Any) -> FullAttentionSpec:
    """Full attention with eight heads of 128 elements of two bytes."""
    return FullAttentionSpec(block_size, 8, head_size, "bfloat16", **members)


def sink(sink_len: int, block_size: int = 16) -> SinkFullAttentionSpec:
    """As `large`, with sink tokens."""
    return SinkFullAttentionSpec(block_size, 8, 128, "bfloat16", sink_len=sink_len)


def latent(head_size: int = 576, block_size: int = 16, **members: Any) -> MLAAttentionSpec:
    """One latent per token, 18,432 bytes a page."""
    return MLAAttentionSpec(block_size, 1, head_size, members.pop("dtype", "bfloat16"), **members)


def sliding(
    tokens: int, block_size: int = 16, head_size: int = 128, **members: Any
) -> SlidingWindowSpec:
    """As `large`, over a window."""
    return SlidingWindowSpec(block_size, 8, head_size, "bfloat16", sliding_window=tokens, **members)


def local(tokens: int, block_size: int = 16) -> ChunkedLocalAttentionSpec:
    """As `large`, within chunks."""
    return ChunkedLocalAttentionSpec(block_size, 8, 128, "bfloat16", attention_chunk_size=tokens)


def state(page_bytes: int, block_size: int = 16, **members: Any) -> MambaSpec:
    """One state."""
    return MambaSpec(block_size, ((page_bytes // 4,),), ("float32",), **members)


def window_over_latents(**members: Any) -> SlidingWindowMLASpec:
    """A window of version 4: 64 tokens, 37,376 bytes, padded to 37,440."""
    return SlidingWindowMLASpec(64, 1, 512, "uint8", sliding_window=128, **{**V4, **members})


def named(*specs: LayerSpec, first: int = 0) -> Layers:
    """Layers 0, 1, 2 … with these specs."""
    return tuple((str(number), spec) for number, spec in enumerate(specs, first))


def settings(
    max_model_len_tokens: int = 64, max_num_batched_tokens: int = 16, **members: Any
) -> PlanningConfig:
    """Settings; the lengths are given most often."""
    return PlanningConfig(max_model_len_tokens, max_num_batched_tokens, **members)


def names_of(groups: tuple[KVCacheGroup, ...]) -> list[tuple[str, ...]]:
    """The layers of each group."""
    return [tuple(group.layer_names) for group in groups]


def shared_by(cache: KVCacheConfig) -> list[tuple[str, ...]]:
    """The layers of each tensor."""
    return [tuple(tensor.shared_by) for tensor in cache.tensors]
