"""An engine's operations on the pages of its pools: write, read, copy, zero (KV-DEV-3 … KV-DEV-7).

Slot s of a layer is slot s % n of block s // n, where n is the number of slots of its page (its
block size, or less for compressed latents). No operation waits for the device, and none writes to
block 0.
"""

from __future__ import annotations

import torch

from kvfast.device.base.arguments import check_group, check_type
from kvfast.device.base.backend import Backend, chosen, form_of
from kvfast.device.pages.arguments import (
    Ids,
    check_disjoint,
    check_format,
    check_same_length,
    check_scale,
    check_tokens,
    ids_on,
)
from kvfast.device.pages.pools import KVPools
from kvfast.device.pages.segments import Segments, segments
from kvspec.errors import InvalidArgumentError

PADDING_SLOT = -1
"""A slot of a mapping at which nothing is written, or zeros are read."""


class PageOperations:
    """Operations on the pages of `pools`, by Triton kernels or in plain torch.

    `backend`: None for Triton on CUDA devices that have it, else torch; or one of both by name.
    Slots and ids are in host memory or on the device. In host memory they are checked; on the
    device they can't be without waiting for it, and what is out of range there is skipped. With
    those on the device, an operation that ran once can be captured in a CUDA graph.
    """

    def __init__(self, pools: KVPools, *, backend: Backend | None = None) -> None:
        check_type("pools", pools, KVPools)
        self.pools = pools
        self.backend: Backend = chosen(backend, pools.device)
        self._form = form_of(__package__, self.backend)
        # Made here, since that waits for the device: what is captured in a graph must not.
        groups = (None, *range(len(pools.cache.groups)))
        self._segments = {group: segments(pools, group) for group in groups}

    def write(
        self,
        layer: str,
        keys: torch.Tensor,
        values: torch.Tensor,
        slots: Ids,
        *,
        key_scale: float = 1.0,
        value_scale: float = 1.0,
    ) -> None:
        """Write keys [n, heads, head_size] and values [n, heads, head_size_v] (KV-DEV-3).

        `slots` [n]: the destination of each token; PADDING_SLOT for none. The value divided by its
        scale is stored, in the format of the pool (KV-DEV-4). Formats with a scale per token and
        head compute it themselves. No slot may be named twice.
        """
        self._write(layer, {"key": (keys, key_scale), "value": (values, value_scale)}, slots)

    def write_latent(
        self, layer: str, latents: torch.Tensor, slots: Ids, *, scale: float = 1.0
    ) -> None:
        """Write latents [n, heads, head_size] of an MLA layer, as `write` does."""
        self._write(layer, {"latent": (latents, scale)}, slots)

    def gather(
        self,
        layer: str,
        slots: Ids,
        *,
        dtype: torch.dtype | None = None,
        key_scale: float = 1.0,
        value_scale: float = 1.0,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Return keys and values at `slots`, [n, heads, elements] each (KV-DEV-3).

        In `dtype`, or as they are stored: then without their scales. 0 at PADDING_SLOT.
        """
        keys, values = self._gather(layer, {"key": key_scale, "value": value_scale}, slots, dtype)
        return keys, values

    def gather_latent(
        self, layer: str, slots: Ids, *, dtype: torch.dtype | None = None, scale: float = 1.0
    ) -> torch.Tensor:
        """Return latents at `slots`, [n, heads, elements], as `gather` does."""
        return self._gather(layer, {"latent": scale}, slots, dtype)[0]

    def copy_slots(self, group: int, sources: Ids, destinations: Ids) -> None:
        """Copy single slots, as they are stored, in every layer of a group (KV-DEV-5).

        For blocks that are taken over in part: the first n slots of one block to another one.
        """
        check_group("group", group, len(self.pools.cache.groups))
        layers = [one for one in self.pools.layers.values() if one.group == group]
        parts = [part for layer in layers for part in layer.parts.values()]
        if any(name.startswith("state.") for layer in layers for name in layer.parts):
            raise InvalidArgumentError("group", group, "one whose blocks have slots")
        sizes = {part.shape[1] for part in parts}
        if len(sizes) > 1:
            raise InvalidArgumentError("group", group, f"one of equal pages, not {sorted(sizes)}")
        device, size = self.pools.device, max(sizes, default=1)
        limit = self.pools.num_blocks * size
        read = ids_on("sources", sources, device, lowest=size, limit=limit)
        written = ids_on("destinations", destinations, device, lowest=size, limit=limit)
        check_same_length("destinations", written, read)
        check_disjoint("destinations", destinations, sources)
        for part in parts:
            wide = part if part.dim() == 4 else part[..., None]  # scales: [blocks, slots, heads]
            tokens = self._form.load_tokens(wide, None, read, wide.dtype, 1.0)
            self._form.store_tokens(wide, None, tokens, written, 1.0)

    def copy_blocks(self, sources: Ids, destinations: Ids, *, group: int | None = None) -> None:
        """Copy whole pages: all a block has, or only in the layers of one group (KV-DEV-5).

        Forks, copies on write, states of Mamba layers. No block is written twice, and none that is
        read is written; block 0 is never a destination.
        """
        part = self._segment(group)
        limit, device = self.pools.num_blocks, self.pools.device
        read = ids_on("sources", sources, device, lowest=0, limit=limit)
        written = ids_on("destinations", destinations, device, lowest=1, limit=limit)
        check_same_length("destinations", written, read)
        check_disjoint("destinations", destinations, sources)
        self._form.copy_pages(part, part, read, written)

    def zero_blocks(self, blocks: Ids, *, group: int | None = None) -> None:
        """Zero all that blocks have, or only in the layers of one group (KV-DEV-6).

        For `take_new_block_ids`, before the step writes; a block may be named twice, and -1 names
        none.
        """
        part = self._segment(group)
        limit = self.pools.num_blocks
        ids = ids_on("blocks", blocks, self.pools.device, lowest=1, limit=limit, skipped=-1)
        self._form.zero_pages(part, ids)

    def _write(self, layer: str, given: dict[str, tuple[torch.Tensor, float]], slots: Ids) -> None:
        parts = self._parts(layer, tuple(given))
        first = parts[next(iter(given))]
        limit = first.shape[0] * first.shape[1]
        places = ids_on(
            "slots", slots, self.pools.device, lowest=first.shape[1], limit=limit,
            skipped=PADDING_SLOT,
        )  # fmt: skip
        check_disjoint("slots", [one for one in _host(slots) if one != PADDING_SLOT], None)
        for name, (tokens, scale) in given.items():
            field = {"key": "keys", "value": "values", "latent": "latents"}[name]
            check_tokens(field, tokens, parts[name], places.shape[0])
            used = tokens.dtype != parts[name].dtype and f"{name}_scale" not in parts
            check_scale("scale" if name == "latent" else f"{name}_scale", scale, used=used)
        for name, (tokens, scale) in given.items():
            own = parts.get(f"{name}_scale")
            self._form.store_tokens(parts[name], own, tokens, places, scale)

    def _gather(
        self, layer: str, scales: dict[str, float], slots: Ids, dtype: torch.dtype | None
    ) -> list[torch.Tensor]:
        parts = self._parts(layer, tuple(scales))
        first = parts[next(iter(scales))]
        places = ids_on(
            "slots", slots, self.pools.device, lowest=first.shape[1],
            limit=first.shape[0] * first.shape[1], skipped=PADDING_SLOT,
        )  # fmt: skip
        wanted = {name: parts[name].dtype if dtype is None else dtype for name in scales}
        for name, scale in scales.items():
            stored = parts[name].dtype
            check_format("dtype", wanted[name], stored)
            used = wanted[name] != stored and f"{name}_scale" not in parts
            check_scale("scale" if name == "latent" else f"{name}_scale", scale, used=used)
        return [
            self._form.load_tokens(
                parts[name], parts.get(f"{name}_scale"), places, wanted[name], scale
            )
            for name, scale in scales.items()
        ]

    def _parts(self, layer: str, names: tuple[str, ...]) -> dict[str, torch.Tensor]:
        """Return the parts of a layer, which must be these."""
        found = self.pools.layers.get(layer) if isinstance(layer, str) else None
        if found is None or not set(names) <= found.parts.keys():
            able = [
                one.name for one in self.pools.layers.values() if set(names) <= one.parts.keys()
            ]
            raise InvalidArgumentError("layer", layer, f"a layer with {names[0]}s: one of {able}")
        return dict(found.parts)

    def _segment(self, group: int | None) -> Segments:
        if group is not None:
            check_group("group", group, len(self.pools.cache.groups))
        return self._segments[group]


def _host(slots: Ids) -> list[int]:
    """Return slots known on the host."""
    if isinstance(slots, torch.Tensor):
        return slots.tolist() if slots.device.type == "cpu" and slots.dim() == 1 else []
    return list(slots)
