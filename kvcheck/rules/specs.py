"""Layers by the words of examples; small ones of every block type, as the checks use them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from kvspec.specs import (
    ChunkedLocalAttentionSpec,
    CircularBufferSpec,
    CrossAttentionSpec,
    EncoderOnlyAttentionSpec,
    FullAttentionSpec,
    HiddenStateCacheSpec,
    LayerSpec,
    MambaSpec,
    MLAAttentionSpec,
    ReplayedWindowSpec,
    RSWASpec,
    SinkFullAttentionSpec,
    SlidingWindowMLASpec,
    SlidingWindowSpec,
    TQFullAttentionSpec,
)

V4: Mapping[str, Any] = {
    "cache_dtype_str": "fp8_ds_mla",
    "alignment": 576,
    "model_version": "deepseek_v4",
}

SMALL: Mapping[str, Mapping[str, Any]] = {
    "": {"num_kv_heads": 1, "head_size": 8, "dtype": "float16"}
}
"""Sizes of layers in a pool, where they don't matter."""
PLANNED: Mapping[str, Mapping[str, Any]] = {
    "": {"num_kv_heads": 8, "head_size": 128, "dtype": "bfloat16"},
    "latent": {"num_kv_heads": 1, "head_size": 576, "dtype": "bfloat16"},
    "latent_window": {"num_kv_heads": 1, "head_size": 96, "dtype": "bfloat16"},
    "hidden": {"num_kv_heads": 1, "head_size": 256, "dtype": "bfloat16"},
    "v4": {"num_kv_heads": 1, "head_size": 512, "dtype": "uint8", **V4},
    "v4_window": {"num_kv_heads": 1, "head_size": 512, "dtype": "uint8", **V4},
}
"""Sizes of layers of a plan: a page of full attention with blocks of 16 has 65,536 bytes."""


def _states(size: int, *, mode: str = "all", drafts: int = 0, **members: Any) -> MambaSpec:
    shapes = tuple(map(tuple, members.pop("shapes", ((2, 2),))))
    dtypes = tuple(members.pop("dtypes", ("float32",) * len(shapes)))
    given = {"mamba_cache_mode": mode, "num_speculative_blocks": drafts, **members}
    return MambaSpec(size, shapes, dtypes, **given)


@dataclass(frozen=True)
class Foreign(LayerSpec):
    """A layer from outside the contract."""


KINDS: Mapping[str, tuple[Callable[..., LayerSpec], str]] = {
    # word: the function from a block size to a spec, and the member given before `of`
    "full": (FullAttentionSpec, ""),
    "latent": (MLAAttentionSpec, ""),
    "v4": (MLAAttentionSpec, ""),
    "hidden": (HiddenStateCacheSpec, ""),
    "quantized": (TQFullAttentionSpec, "tq_slot_size"),
    "sink": (SinkFullAttentionSpec, "sink_len"),
    "window": (SlidingWindowSpec, "sliding_window"),
    "latent_window": (SlidingWindowMLASpec, "sliding_window"),
    "v4_window": (SlidingWindowMLASpec, "sliding_window"),
    "replayed": (ReplayedWindowSpec, "sliding_window"),
    "chunk": (ChunkedLocalAttentionSpec, "attention_chunk_size"),
    "rswa": (RSWASpec, "rswa_window"),
    "mamba": (_states, "mode"),
    "cross": (CrossAttentionSpec, ""),
    "ring": (CircularBufferSpec, ""),
    "encoder": (EncoderOnlyAttentionSpec, ""),
    "foreign": (Foreign, ""),
}
WITHOUT_SIZES = frozenset({"mamba", "foreign"})


def layer_of(
    word: str, block_size: Any, sizes: Mapping[str, Mapping[str, Any]] = SMALL, **members: Any
) -> LayerSpec:
    """Return a layer of one of `KINDS`; `members` replace those of `sizes`."""
    given = {} if word in WITHOUT_SIZES else sizes.get(word, sizes[""])
    return KINDS[word][0](block_size, **{**given, **members})


def _small(word: str) -> Callable[..., Any]:
    """Return the function from a block size, and the member of `KINDS`, to a small layer."""

    def make(block_size: int = 4, *member: Any, **members: Any) -> LayerSpec:
        named = zip([KINDS[word][1]] * len(member), member, strict=True)
        return layer_of(word, block_size, **dict(named), **members)

    return make


full: Callable[..., FullAttentionSpec] = _small("full")
sliding: Callable[..., SlidingWindowSpec] = _small("window")
sliding_mla: Callable[..., SlidingWindowMLASpec] = _small("latent_window")
chunked: Callable[..., ChunkedLocalAttentionSpec] = _small("chunk")
mamba: Callable[..., MambaSpec] = _small("mamba")
cross: Callable[..., CrossAttentionSpec] = _small("cross")
encoder_only: Callable[..., EncoderOnlyAttentionSpec] = _small("encoder")
