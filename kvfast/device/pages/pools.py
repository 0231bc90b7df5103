"""The memory of the cache: raw tensors as planned, and typed views per layer (KV-DEV-1, KV-DEV-2).

raw tensor   | page of block 0 | page of block 1 | …     uint8, shared by a layer per group
layer view   |  key   |  value |  key   |  value | …     [num_blocks, slots, heads, elements]
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

import torch

from kvfast.device.base.arguments import check_device
from kvfast.device.base.errors import DeviceMemoryError
from kvfast.device.base.layout import (
    LAYOUTS,
    Layout,
    Part,
    layer_spec,
    page_parts,
    page_size_bytes,
    with_tensors,
)
from kvfast.device.base.memory import free_memory_bytes
from kvspec.config import KVCacheConfig, KVCacheTensor
from kvspec.domains import boolean, int_at_least
from kvspec.errors import ConfigError, InvalidArgumentError
from kvspec.specs import DTYPE_BYTES, LayerSpec


@dataclass(frozen=True)
class Layer:
    """One layer's memory.

    - `group`: number of its group; `spec`: its own (not that of a group of several).
    - `parts`: by name, tensors [num_blocks, *shape of the part]; views of the raw tensors. `key`
      and `value` are [num_blocks, block_size, heads, elements], whatever the layout.
    - `pages`: uint8 [num_blocks, page size in bytes], the same memory as plain bytes.
    """

    name: str
    group: int
    spec: LayerSpec
    parts: Mapping[str, torch.Tensor]
    pages: torch.Tensor


class KVPools:
    """All memory of one cache on one device.

    - `cache`: the configuration, with its tensors.
    - `pages`: raw allocations, uint8 [num_blocks, bytes]: row b is block b's part. One in the
      packed layout, else one per tensor of the plan.
    - `layers`: by name.
    """

    def __init__(
        self,
        cache: KVCacheConfig,
        *,
        device: torch.device | str = "cpu",
        layout: Layout = "NHD",
        pin_memory: bool = False,
        free_bytes: int | None = None,
    ) -> None:
        """Allocate the pools; zero only the pages of the null block (KV-DEV-2).

        `pin_memory`: host memory that devices copy from and to asynchronously; torch allocates a
        power of two of it for each tensor, which must be free. `free_bytes`: what may be taken, if
        it is known better than by asking the device (None). ConfigError for tensors that don't fit
        the groups, DeviceMemoryError if there is no room, InvalidArgumentError for other arguments;
        then nothing was allocated.
        """
        self.cache = with_tensors(cache)
        if not isinstance(layout, str) or layout not in LAYOUTS:
            raise InvalidArgumentError("layout", layout, "'NHD' or 'HND'")
        self.layout = layout
        self.device = check_device("device", device)
        boolean("pin_memory", pin_memory, error=InvalidArgumentError)
        int_at_least("free_bytes", free_bytes, 0, optional=True, error=InvalidArgumentError)
        if pin_memory and (self.device.type != "cpu" or not torch.cuda.is_available()):
            where = self.device if self.device.type != "cpu" else "a machine without a GPU"
            raise InvalidArgumentError("pin_memory", pin_memory, f"False on {where}")
        if self.cache.num_blocks < 1:
            raise ConfigError("num_blocks", self.cache.num_blocks, "at least 1, the null block")
        places = _places(self.cache)
        views = _parts_of_layers(self.cache, places, layout)
        sizes = _allocations(self.cache)
        needed = sum(_pinned_bytes(size) if pin_memory else size for size in sizes)
        self._check_room(needed, free_bytes)
        try:
            raw = [
                torch.empty(size, dtype=torch.uint8, device=self.device, pin_memory=pin_memory)
                for size in sizes
            ]
        except (torch.OutOfMemoryError, RuntimeError) as error:
            # For host memory, pinned or not, torch reports this only in the message.
            words = ("allocate memory", "out of memory")
            if isinstance(error, torch.OutOfMemoryError) or any(w in str(error) for w in words):
                free = free_memory_bytes(self.device) or 0
                raise DeviceMemoryError(str(self.device), needed, free) from error
            raise
        self.pages = tuple(tensor.view(self.cache.num_blocks, -1) for tensor in raw)
        for pages in self.pages:
            pages[0].zero_()
        self.layers: Mapping[str, Layer] = MappingProxyType(
            {name: self._layer(name, places[name], parts) for name, parts in views.items()}
        )

    @property
    def num_blocks(self) -> int:
        """Blocks, the null block included."""
        return self.cache.num_blocks

    @property
    def size_bytes(self) -> int:
        """Number of bytes of all allocations."""
        return sum(pages.numel() for pages in self.pages)

    def _check_room(self, needed: int, free_bytes: int | None) -> None:
        free = free_memory_bytes(self.device) if free_bytes is None else free_bytes
        if free is not None and needed > free:
            raise DeviceMemoryError(str(self.device), needed, free)

    def _layer(self, name: str, place: _Place, parts: tuple[Part, ...]) -> Layer:
        raw = self.pages[place.allocation]
        views = {part.name: _view(raw, place, part) for part in parts}
        size = page_size_bytes(place.spec)
        pages = raw[:, place.offset_bytes : place.offset_bytes + size]
        return Layer(name, place.group, place.spec, MappingProxyType(views), pages)


@dataclass(frozen=True)
class _Place:
    """The place of a layer: pages of `stride_bytes` in an allocation, `offset_bytes` into each."""

    group: int
    spec: LayerSpec
    allocation: int
    offset_bytes: int
    stride_bytes: int


def _pinned_bytes(size: int) -> int:
    """Return the bytes that torch allocates for a pinned tensor: the next power of two."""
    return 1 << max(0, size - 1).bit_length()


def _is_packed(cache: KVCacheConfig) -> bool:
    packed = {tensor.block_stride_bytes is not None for tensor in cache.tensors}
    if len(packed) > 1:
        raise ConfigError("tensors", cache.tensors, "all packed or none")
    return packed == {True}


def _allocations(cache: KVCacheConfig) -> list[int]:
    """Return the bytes of each allocation: one for packed tensors (KV-PLAN-14), else one each."""
    sizes = [tensor.size_bytes for tensor in cache.tensors]
    return sizes[:1] if _is_packed(cache) else sizes


def _places(cache: KVCacheConfig) -> dict[str, _Place]:
    """Return the place of every layer; ConfigError unless each is in one tensor (KV-PLAN-13)."""
    packed = _is_packed(cache)
    if packed and len({(one.size_bytes, one.block_stride_bytes) for one in cache.tensors}) > 1:
        raise ConfigError("tensors", cache.tensors, "of one size and block stride when packed")
    found: dict[str, tuple[int, KVCacheTensor]] = {}
    for number, tensor in enumerate(cache.tensors):
        for name in tensor.shared_by:
            if name in found:
                raise ConfigError("shared_by", name, "in one tensor only")
            found[name] = (0 if packed else number, tensor)
    places = {}
    for index, group in enumerate(cache.groups):
        for name in group.layer_names:
            if name not in found or name in places:
                raise ConfigError("shared_by", name, "in a tensor, and in one group only")
            allocation, tensor = found[name]
            offset, stride = _pitch(cache.num_blocks, tensor)
            places[name] = _Place(index, layer_spec(group, name), allocation, offset, stride)
    if unknown := found.keys() - places.keys():
        raise ConfigError("shared_by", min(unknown), "a layer of a group")
    return places


def _pitch(num_blocks: int, tensor: KVCacheTensor) -> tuple[int, int]:
    """Return offset and stride, in bytes, of the pages in a tensor."""
    stride = tensor.block_stride_bytes or tensor.size_bytes // num_blocks
    if stride * num_blocks != tensor.size_bytes:
        raise ConfigError("size_bytes", tensor.size_bytes, f"{num_blocks} pages of equal size")
    return tensor.offset_bytes or 0, stride


def _parts_of_layers(
    cache: KVCacheConfig, places: Mapping[str, _Place], layout: Layout
) -> dict[str, tuple[Part, ...]]:
    """Return the parts of each layer, after checking size and alignment."""
    result = {}
    for name, place in places.items():
        page = page_size_bytes(place.spec)
        if place.offset_bytes + page > place.stride_bytes:
            raise ConfigError(
                "size_bytes", place.stride_bytes, f"at least {page} bytes a block for {name}"
            )
        result[name] = page_parts(place.spec, layout)
        for part in result[name]:
            item = DTYPE_BYTES[part.dtype]
            for value in (place.stride_bytes, place.offset_bytes + part.offset_bytes):
                if value % item:
                    raise ConfigError(
                        f"{part.name} of {name}", value, f"at a multiple of {item} bytes"
                    )
    return result


def _view(raw: torch.Tensor, place: _Place, part: Part) -> torch.Tensor:
    item = DTYPE_BYTES[part.dtype]
    typed = raw.view(-1).view(getattr(torch, part.dtype))
    return typed.as_strided(
        (raw.shape[0], *part.shape),
        (place.stride_bytes // item, *part.strides),
        (place.offset_bytes + part.offset_bytes) // item,
    )
