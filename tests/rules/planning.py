"""Specs of a usual size, and settings, for the examples of the chapter on planning."""

from __future__ import annotations

from typing import Any

from kvspec.config import KVCacheConfig, KVCacheGroup
from kvspec.planning import Layers, PlanningConfig
from kvspec.policy import Policy
from kvspec.specs import (
    ChunkedLocalAttentionSpec,
    CrossAttentionSpec,
    EncoderOnlyAttentionSpec,
    FullAttentionSpec,
    HiddenStateCacheSpec,
    LayerSpec,
    MambaSpec,
    MLAAttentionSpec,
    SinkFullAttentionSpec,
    SlidingWindowMLASpec,
    SlidingWindowSpec,
)

GIB = 2**30
PAGE = 65_536  # of `full()`; of `sink`, `window`, `chunk`, `cross` and `encoder_only` as well
PROFILE = Policy.vllm_0_24()

# Version 4 latents: what the examples of KV-PLAN-22 are made of.
V4 = {"cache_dtype_str": "fp8_ds_mla", "alignment": 576, "model_version": "deepseek_v4"}


def full(block_size: int = 16, head_size: int = 128, **members: Any) -> FullAttentionSpec:
    """Eight heads of 128 elements of two bytes: 65,536 bytes a page of 16 tokens."""
    return FullAttentionSpec(block_size, 8, head_size, "bfloat16", **members)


def sink(sink_len: int, block_size: int = 16) -> SinkFullAttentionSpec:
    """As `full`, with sink tokens."""
    return SinkFullAttentionSpec(block_size, 8, 128, "bfloat16", sink_len=sink_len)


def latent(head_size: int = 576, block_size: int = 16, **members: Any) -> MLAAttentionSpec:
    """One latent per token."""
    return MLAAttentionSpec(block_size, 1, head_size, members.pop("dtype", "bfloat16"), **members)


def window(
    tokens: int, block_size: int = 16, head_size: int = 128, **members: Any
) -> SlidingWindowSpec:
    """As `full`, over a window."""
    return SlidingWindowSpec(block_size, 8, head_size, "bfloat16", sliding_window=tokens, **members)


def chunk(tokens: int, block_size: int = 16, **members: Any) -> ChunkedLocalAttentionSpec:
    """As `full`, within chunks."""
    return ChunkedLocalAttentionSpec(
        block_size, 8, 128, "bfloat16", attention_chunk_size=tokens, **members
    )


def cross(block_size: int = 16) -> CrossAttentionSpec:
    """As `full`, over the encoder's tokens."""
    return CrossAttentionSpec(block_size, 8, 128, "bfloat16")


def encoder_only(block_size: int = 16, head_size: int = 128) -> EncoderOnlyAttentionSpec:
    """As `full`, in an encoder."""
    return EncoderOnlyAttentionSpec(block_size, 8, head_size, "bfloat16")


def hidden(block_size: int = 16, **members: Any) -> HiddenStateCacheSpec:
    """Hidden states of 256 elements: 8,192 bytes a page of 16 tokens."""
    return HiddenStateCacheSpec(block_size, 1, 256, "bfloat16", **members)


def state(page: int, block_size: int = 16, **members: Any) -> MambaSpec:
    """One state of `page` bytes."""
    return MambaSpec(block_size, ((page // 4,),), ("float32",), **members)


def window_over_latents(**members: Any) -> SlidingWindowMLASpec:
    """A version 4 window: 64 tokens, 37,376 bytes, padded to 37,440."""
    return SlidingWindowMLASpec(64, 1, 512, "uint8", sliding_window=128, **{**V4, **members})


def named(*specs: LayerSpec, first: int = 0) -> Layers:
    """Layers 0, 1, 2 … with these specs."""
    return tuple((str(index), spec) for index, spec in enumerate(specs, first))


def settings(
    max_model_len_tokens: int = 64, max_num_batched_tokens: int = 16, **members: Any
) -> PlanningConfig:
    """Settings; the lengths are given most often."""
    return PlanningConfig(max_model_len_tokens, max_num_batched_tokens, **members)


def groups_of(*block_sizes: int) -> tuple[KVCacheGroup, ...]:
    """A group of one layer of full attention for each block size."""
    return tuple(KVCacheGroup((str(index),), full(size)) for index, size in enumerate(block_sizes))


def names_of(groups: tuple[KVCacheGroup, ...]) -> list[tuple[str, ...]]:
    """The layers of each group."""
    return [group.layer_names for group in groups]


def shared_by(cache: KVCacheConfig) -> list[tuple[str, ...]]:
    """The layers of each tensor."""
    return [tensor.shared_by for tensor in cache.tensors]
