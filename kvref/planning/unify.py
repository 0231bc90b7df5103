"""Make layers alike: one type, one page size (KV-PLAN-3, KV-PLAN-4, KV-PLAN-7)."""

from __future__ import annotations

from dataclasses import replace

from kvref.planning.merging import is_mergeable
from kvref.planning.pages import normalized, page_size_bytes
from kvspec.errors import ConfigError, PageSizeError
from kvspec.planning import Layers
from kvspec.specs import (
    AttentionSpec,
    ChunkedLocalAttentionSpec,
    CrossAttentionSpec,
    FullAttentionSpec,
    LayerSpec,
    MLAAttentionSpec,
    SlidingWindowMLASpec,
    SlidingWindowSpec,
    UniformTypeKVCacheSpecs,
)


def uniform_type(layers: Layers) -> UniformTypeKVCacheSpecs | None:
    """Return all layers as one group of one type whose sizes may differ, or None (KV-PLAN-3)."""
    specs = [spec for _, spec in layers]
    if not specs or len({spec.block_size for spec in specs}) > 1:
        return None
    if len({_type_key(spec) for spec in specs}) > 1:
        return None
    return UniformTypeKVCacheSpecs(specs[0].block_size, tuple(layers))


def _type_key(spec: LayerSpec) -> tuple[object, ...]:
    """Return the key shared by layers of one type, which hold and release blocks in step."""
    if spec.is_full_attention:
        return ("full",)
    if spec.window_tokens:
        return ("sliding window", spec.window_tokens)
    if spec.chunk_tokens:
        return ("chunked", spec.chunk_tokens)
    if spec.is_state:
        return ("mamba", spec.num_speculative_blocks)
    if isinstance(spec, CrossAttentionSpec):
        return ("cross",)
    return (type(spec),)


def unify_hybrid(layers: Layers) -> Layers:
    """Turn windowed layers into full attention where both occur (KV-PLAN-7).

    For engines that manage a single type. ConfigError if more than one type remains.
    """
    layers = tuple((name, normalized(spec)) for name, spec in layers)
    if _is_single(layers):
        return layers
    specs = [spec for _, spec in layers]
    has_full = any(spec.is_full_attention for spec in specs)
    has_windowed = any(spec.window_tokens or spec.chunk_tokens for spec in specs)
    if has_full and has_windowed:
        longest = max(spec.block_size for spec in specs if spec.is_full_attention)
        layers = tuple((name, _as_full(spec, longest)) for name, spec in layers)
    if not _is_single(layers):
        kinds = sorted({type(spec).__name__ for _, spec in layers})
        raise ConfigError(
            "disable_hybrid", True, f"False for layers that no single type can hold ({kinds})"
        )
    return layers


def _is_single(layers: Layers) -> bool:
    return is_mergeable(layers) or uniform_type(layers) is not None


def _as_full(spec: LayerSpec, block_size: int) -> LayerSpec:
    """Convert a windowed layer to full attention that remembers its window or chunk (KV-PLAN-7).

    A windowed latent takes the block size of full attention: its own is as short as its window.
    """
    if isinstance(spec, SlidingWindowMLASpec):
        latent = MLAAttentionSpec(
            block_size=block_size,
            num_kv_heads=spec.num_kv_heads,
            head_size=spec.head_size,
            dtype=spec.dtype,
            kv_quant_mode=spec.kv_quant_mode,
            cache_dtype_str=spec.cache_dtype_str,
            alignment=spec.alignment,
            compress_ratio=spec.compress_ratio,
            model_version=spec.model_version,
        )
        return normalized(latent)
    if isinstance(spec, SlidingWindowSpec):
        return FullAttentionSpec(
            block_size=spec.block_size,
            num_kv_heads=spec.num_kv_heads,
            head_size=spec.head_size,
            head_size_v=spec.head_size_v,
            dtype=spec.dtype,
            kv_quant_mode=spec.kv_quant_mode,
            page_size_padded=spec.page_size_padded,
            sliding_window=spec.sliding_window,
        )
    if isinstance(spec, ChunkedLocalAttentionSpec):
        return FullAttentionSpec(
            block_size=spec.block_size,
            num_kv_heads=spec.num_kv_heads,
            head_size=spec.head_size,
            dtype=spec.dtype,
            page_size_padded=spec.page_size_padded,
            attention_chunk_size=spec.attention_chunk_size,
        )
    return spec


def unify_page_size(layers: Layers) -> Layers:
    """Return layers whose pages all have the size of the largest (KV-PLAN-4)."""
    if not layers:
        return layers
    largest = max(page_size_bytes(spec) for _, spec in layers)
    return tuple((name, with_page_size(name, spec, largest)) for name, spec in layers)


def with_page_size(name: str, spec: LayerSpec, size: int) -> LayerSpec:
    """Give the spec a page of `size` bytes, by a longer block or padding (KV-PLAN-4)."""
    page = page_size_bytes(spec)
    if page == size:
        return spec
    if size % page == 0:
        return _with_longer_blocks(name, spec, size)
    if isinstance(spec, AttentionSpec) and spec.indexes_kv_by_block_stride:
        return replace(spec, page_size_padded=size)
    raise PageSizeError(
        name, page, size, "it does not divide that, and padding needs indexes_kv_by_block_stride"
    )


def _with_longer_blocks(name: str, spec: LayerSpec, size: int) -> LayerSpec:
    """Lengthen the blocks of the spec until a page has `size` bytes.

    A state's page does not grow with its block, nor does one of given size; sink tokens must still
    fill whole blocks.
    """
    page = page_size_bytes(spec)
    try:
        longer = replace(spec, block_size=spec.block_size * (size // page))
        grown = page_size_bytes(longer)
    except ConfigError as error:
        raise PageSizeError(name, page, size, f"with longer blocks, {error}") from None
    if grown != size:
        raise PageSizeError(name, page, size, "its page does not grow with its block size")
    return longer
