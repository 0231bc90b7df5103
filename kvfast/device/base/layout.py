"""Layout of the keys, values and states of a block: arithmetic only, no torch (KV-DEV-1).

A *page* is the part of one block in one layer. It is made of *parts*, one after another: keys and
values, a latent, states, scales. Example: 2 slots, 1 head of 4 elements in float16, so keys are at
bytes 0 … 15 of the page and values at 16 … 31.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from itertools import zip_longest
from math import prod
from typing import Literal, TypeAlias

from kvspec.config import KVCacheConfig, KVCacheGroup, KVCacheTensor
from kvspec.errors import ConfigError
from kvspec.specs import (
    DTYPE_BYTES,
    AttentionSpec,
    FullAttentionSpec,
    LayerSpec,
    MambaSpec,
    MLAAttentionSpec,
    SlidingWindowMLASpec,
    SlidingWindowSpec,
    TQFullAttentionSpec,
)

Content: TypeAlias = tuple[str, str, tuple[int, ...]]
Layout: TypeAlias = Literal["NHD", "HND"]
LAYOUTS: tuple[Layout, ...] = ("NHD", "HND")
"""Order in memory of the slots (N), heads (H) and elements (D) of a page."""

_LATENT_TOKEN_BYTES: Mapping[str, int] = {
    "deepseek_v4": 584
}  # of cache dtype fp8_ds_mla, by model version
_SCALED_MODES = ("INT8_PER_TOKEN_HEAD", "FP8_PER_TOKEN_HEAD")


@dataclass(frozen=True)
class Part:
    """One tensor inside a page.

    - `name`: `key`, `value`, `latent`, `packed`, `key_scale`, `value_scale`, or `state.0`, ….
    - `dtype`: of the elements, as specs name it.
    - `shape`: of one page, slots first (states: as the spec gives it); `strides` in elements.
    - `offset_bytes`: from the start of the page.
    """

    name: str
    dtype: str
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    offset_bytes: int

    @property
    def size_bytes(self) -> int:
        """Bytes of the part in one page."""
        return prod(self.shape) * DTYPE_BYTES[self.dtype]


def page_parts(spec: LayerSpec, layout: Layout = "NHD") -> tuple[Part, ...]:
    """Return the parts of a page of `spec`, in the order of their addresses (KV-DEV-1).

    The shape never depends on the layout: [slots, heads, elements]; the strides do. ConfigError for
    a spec without pages.
    """
    parts: list[Part] = []
    offset = 0
    for name, dtype, shape in _contents(spec):
        strides = _strides(shape)
        if layout == "HND" and isinstance(spec, AttentionSpec) and len(shape) > 1:
            slots, heads = shape[:2]
            inner = shape[2:]
            by_head = _strides((heads, slots, *inner))
            strides = (by_head[1], by_head[0], *by_head[2:])
        parts.append(Part(name, dtype, shape, strides, offset))
        offset += parts[-1].size_bytes
    return tuple(parts)


def page_size_bytes(spec: LayerSpec) -> int:
    """Return the bytes of a page, padding included (KV-PLAN-1)."""
    used = sum(part.size_bytes for part in page_parts(spec))
    padded: int | None = getattr(spec, "page_size_padded", None)
    alignment: int | None = getattr(spec, "alignment", None)
    if alignment is not None:
        aligned = -(-used // alignment) * alignment
        if padded is not None and padded > aligned and padded % alignment == 0:
            return padded  # unifying pages made it
        return aligned
    if padded is not None and padded < used:
        raise ConfigError("page_size_padded", padded, f"at least {used} bytes")
    return used if padded is None else padded


def layer_spec(group: KVCacheGroup, layer: str) -> LayerSpec:
    """Return the spec of one layer of a group."""
    if group.spec.layers:
        return dict(group.spec.layers)[layer]
    return group.spec


def with_tensors(cache: KVCacheConfig) -> KVCacheConfig:
    """Add the tensors that a planner would add to a configuration written by hand (KV-PLAN-13).

    One that has tensors is returned unchanged. All pages must be of one size (ConfigError).
    """
    if not isinstance(cache, KVCacheConfig):
        raise ConfigError("cache", cache, "a KVCacheConfig")
    if cache.tensors:
        return cache
    pages = {
        page_size_bytes(layer_spec(group, name))
        for group in cache.groups
        for name in group.layer_names
    }
    if len(cache.groups) > 1 and len(pages) > 1:
        raise ConfigError("tensors", cache.tensors, f"planned: pages have {sorted(pages)} bytes")
    slots: list[tuple[int, tuple[str, ...]]]
    if len(cache.groups) == 1:
        (group,) = cache.groups
        names = group.layer_names
        slots = [(page_size_bytes(layer_spec(group, name)), (name,)) for name in names]
    else:
        sharing = zip_longest(*(group.layer_names for group in cache.groups))
        rows = [tuple(name for name in row if name is not None) for row in sharing]
        slots = [(page, row) for page in pages for row in rows]
    tensors = tuple(KVCacheTensor(page * cache.num_blocks, names) for page, names in slots)
    return replace(cache, tensors=tensors)


def _contents(spec: LayerSpec) -> list[Content]:
    """Return name, dtype and shape of each part."""
    if isinstance(spec, MambaSpec):
        pairs = zip(spec.dtypes, spec.shapes, strict=True)
        return [(f"state.{i}", dtype, shape) for i, (dtype, shape) in enumerate(pairs)]
    if isinstance(spec, MLAAttentionSpec | SlidingWindowMLASpec):
        return [_latent(spec)]
    if not isinstance(spec, AttentionSpec):
        raise ConfigError("spec", type(spec).__name__, "a spec of the contract with pages")
    slots = (spec.block_size, spec.num_kv_heads)
    if isinstance(spec, TQFullAttentionSpec) and spec.tq_slot_size > 0:
        return [("packed", "uint8", (*slots, spec.tq_slot_size))]
    values = spec.head_size
    if isinstance(spec, FullAttentionSpec | SlidingWindowSpec):
        values = spec.head_size_v or spec.head_size
    sizes, dtype = {"key": spec.head_size, "value": values}, spec.dtype
    if spec.kv_quant_mode == "NVFP4":  # half a byte per element, a byte per 16 for their scale
        sizes = {name: size // 2 + size // 16 for name, size in sizes.items()}
        dtype = "uint8"
    contents: list[Content] = [(name, dtype, (*slots, size)) for name, size in sizes.items()]
    if spec.kv_quant_mode in _SCALED_MODES:
        contents += [("key_scale", "float32", slots), ("value_scale", "float32", slots)]
    return contents


def _latent(spec: MLAAttentionSpec | SlidingWindowMLASpec) -> Content:
    if spec.block_size % spec.compress_ratio:
        raise ConfigError(
            "compress_ratio", spec.compress_ratio, f"a divisor of block_size {spec.block_size}"
        )
    slots = spec.block_size // spec.compress_ratio
    if spec.cache_dtype_str == "fp8_ds_mla":
        size = _LATENT_TOKEN_BYTES.get(spec.model_version or "", 656)
        return ("latent", "uint8", (slots, 1, size))
    return ("latent", spec.dtype, (slots, spec.num_kv_heads, spec.head_size))


def _strides(shape: tuple[int, ...]) -> tuple[int, ...]:
    """Return the strides, in elements, of a C-contiguous array."""
    return tuple(prod(shape[axis + 1 :]) for axis in range(len(shape)))
