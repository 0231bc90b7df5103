"""The keys and values that every token must have: a function of its whole prefix and of the place.

A block with another prefix, layer, head or slot than it should have then shows another number.
All numbers are stored exactly in the format of their pool, so reads are compared bit for bit.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import prod

import numpy as np
import torch

from kvfast.device import KVPools, Layer, Layout, PageOperations
from kvfast.device.base.layout import page_size_bytes
from kvspec.config import KVCacheConfig, KVCacheTensor, ManagerConfig
from kvspec.specs import (
    AttentionSpec,
    ChunkedLocalAttentionSpec,
    FullAttentionSpec,
    LayerSpec,
    MambaSpec,
)
from tests.device.models import BLOCK_SIZE, DEVICE, cache, full, mamba, mla, window

MODULUS = 2**61 - 1
FP8_SCALE = 0.5
SCALED = ("INT8_PER_TOKEN_HEAD", "FP8_PER_TOKEN_HEAD")


class WrongContentError(AssertionError):
    """Something that may still be read is not what was computed for it."""


def fingerprints(salt: str | None, tokens: Sequence[int]) -> list[int]:
    value = 1 + sum(ord(letter) for letter in salt or "")
    result = []
    for token in tokens:
        value = (value * 6364136223846793005 + (token + 1) * 1442695040888963407) % MODULUS
        result.append(value)
    return result


def noise(prints: Sequence[int], place: int, shape: tuple[int, ...]) -> torch.Tensor:
    """Return int64 [n, *shape]: bits that differ for each fingerprint, place and element."""
    at = np.arange(prod(shape), dtype=np.int64) + 1009 * place
    mixed = np.array(prints, dtype=np.int64).reshape(-1, 1) * 0x2545F4914F6CDD1D
    mixed = mixed + at * 0x1E3779B97F4A7C15
    mixed = (mixed ^ (mixed >> 29)) * 0x3F58476D1CE4E5B9
    return torch.from_numpy((mixed ^ (mixed >> 32)).reshape(-1, *shape))


def numbers(layer: Layer, name: str, place: int, prints: Sequence[int]) -> torch.Tensor:
    """Return what is written to part `name`, and must be read from it."""
    part = layer.parts[name]
    bits = noise(prints, place, tuple(part.shape[2:]))
    wide, small = bits % 255 - 127, bits % 31 - 15  # exact in 8 bits, and in 5
    mode = layer.spec.kv_quant_mode if isinstance(layer.spec, AttentionSpec) else "NONE"
    if mode in SCALED:
        # The first element is the largest of the format, so the scale is the power of two below.
        values = (wide if mode == SCALED[0] else small).float()
        values[..., 0] = 127.0 if mode == SCALED[0] else 448.0
        return values * 2.0 ** (bits[..., :1] // 8192 % 8 - 4).float()
    if part.element_size() == 1:
        return small.float() * FP8_SCALE
    return wide.to(part.dtype)


def state(layer: Layer, name: str, place: int, prints: Sequence[int]) -> torch.Tensor:
    part = layer.parts[name]
    return (noise(prints, place, tuple(part.shape[1:])) % 255 - 127).to(part.dtype)


def same(read: torch.Tensor, expected: torch.Tensor) -> torch.Tensor:
    """Check entry by entry that both are the same, bit for bit: [n]."""
    if not len(expected):
        return torch.ones(0, dtype=torch.bool)
    mine = read.cpu().contiguous().view(torch.uint8).reshape(len(expected), -1)
    return (mine == expected.contiguous().view(torch.uint8).reshape(len(expected), -1)).all(dim=1)


class Contents:
    """Writes and checks the layers of some pools, by the operations that an engine has.

    `rank` of `world_size`: under context parallelism token p lies on rank p % world_size, and the
    pools are those of one rank. Slots are always those of KV-BATCH-9, which all ranks share.
    """

    def __init__(
        self, pools: KVPools, pages: PageOperations, *, rank: int = 0, world_size: int = 1
    ) -> None:
        self.pools, self.pages = pools, pages
        self.rank, self.world_size = rank, world_size
        names = sorted(pools.layers)
        self.layers = [[] for _ in pools.cache.groups]  # type: list[list[tuple[Layer, int]]]
        for number, name in enumerate(names):
            layer = pools.layers[name]
            self.layers[layer.group].append((layer, 2 * number))

    def local(self, group: int, slots: torch.Tensor) -> torch.Tensor:
        """Return the places of these slots' tokens on this rank; -1 for other ranks'."""
        size = self.pools.cache.groups[group].spec.block_size
        block, offset = slots // (size * self.world_size), slots % (size * self.world_size)
        is_mine = (slots >= 0) & (offset % self.world_size == self.rank)
        return torch.where(is_mine, block * size + offset // self.world_size, -1)

    def write(self, group: int, prints: Sequence[int], slots: torch.Tensor) -> None:
        """Write tokens with these prefixes to these slots, in every layer of a group."""
        slots = self.local(group, slots)
        for layer, place in self.layers[group]:
            if "latent" in layer.parts:
                given = numbers(layer, "latent", place, prints).to(DEVICE)
                self.pages.write_latent(layer.name, given, slots)
                continue
            keys = numbers(layer, "key", place, prints).to(DEVICE)
            values = numbers(layer, "value", place + 1, prints).to(DEVICE)
            scale = self._scale(layer)
            self.pages.write(layer.name, keys, values, slots, key_scale=scale, value_scale=scale)

    def check(
        self, what: str, group: int, prints: Sequence[int], slots: torch.Tensor | list[int]
    ) -> None:
        if self.world_size > 1:
            slots = self.local(group, torch.as_tensor(slots, dtype=torch.int64))
            prints = [one for one, slot in zip(prints, slots.tolist(), strict=True) if slot >= 0]
            slots = slots[slots >= 0]
        for layer, place in self.layers[group]:
            for name, read in self._read(layer, slots).items():
                number = place + (name == "value")
                right = same(read, numbers(layer, name, number, prints))
                if not right.all():
                    at = int((~right).nonzero()[0])
                    raise WrongContentError(
                        f"{what}: {name} of {layer.name}, entry {at}, slot {int(slots[at])}"
                    )

    def write_states(
        self, group: int, name: str, prints: Sequence[int], blocks: Sequence[int]
    ) -> None:
        for layer, place in self.layers[group]:
            part = layer.parts[name]
            part[list(blocks)] = state(layer, name, place, prints).to(part.device)

    def check_states(
        self, what: str, group: int, name: str, prints: Sequence[int], blocks: Sequence[int]
    ) -> None:
        for layer, place in self.layers[group]:
            right = same(layer.parts[name][list(blocks)], state(layer, name, place, prints))
            if not right.all():
                at = int((~right).nonzero()[0])
                raise WrongContentError(f"{what}: {name} of {layer.name} in block {blocks[at]}")

    def _read(self, layer: Layer, slots: torch.Tensor | list[int]) -> dict[str, torch.Tensor]:
        if "latent" in layer.parts:
            return {"latent": self.pages.gather_latent(layer.name, slots)}
        scale = self._scale(layer)
        dtype = torch.float32 if layer.parts["key"].element_size() == 1 else None
        keys, values = self.pages.gather(
            layer.name, slots, dtype=dtype, key_scale=scale, value_scale=scale
        )
        return {"key": keys, "value": values}

    def _scale(self, layer: Layer) -> float:
        one_byte = layer.parts["key"].element_size() == 1
        return FP8_SCALE if one_byte and "key_scale" not in layer.parts else 1.0


ALIGNED = replace(mamba(), mamba_cache_mode="align")
"""States of 12 and 20 bytes in a page of 144."""
MOVED = replace(ALIGNED, num_speculative_blocks=1)
"""The same with a block for a draft, so that blocks move within lists (KV-MAMBA-9)."""
ALL = replace(mamba(), mamba_cache_mode="all")
"""With the state after every block, also those that a step passes."""
DRAFTED = replace(ALL, num_speculative_blocks=2)
"""The same with blocks for the states after two drafts."""
PACKED_GAP_BYTES = 8
"""Behind the pages of a packed block, so that no page begins where the one before it ends."""


@dataclass(frozen=True)
class Case:
    """Groups of two layers each.

    - `hash_block_size`: less than the blocks', so that these can be taken over in part.
    - `packed`: pages of a block side by side in one allocation (KV-PLAN-14).
    - `dcp`, `pcp`: world sizes of context parallelism; the pools are those of one rank.
    """

    name: str
    specs: tuple[LayerSpec, ...]
    layout: Layout = "NHD"
    hash_block_size: int | None = None
    packed: bool = False
    dcp: int = 1
    pcp: int = 1

    def config(self, num_blocks: int, longest: int) -> ManagerConfig:
        made = cache(*self.specs, num_blocks=num_blocks)
        return ManagerConfig(
            packed(made) if self.packed else made,
            longest,
            hash_block_size_tokens=self.hash_block_size,
            hash_seed="0",
            dcp_world_size=self.dcp,
            pcp_world_size=self.pcp,
        )

    @property
    def world_size(self) -> int:
        return self.dcp * self.pcp

    def span(self, group: int) -> int:
        """Return the tokens that a block of a group covers (KV-FULL-5)."""
        return self.specs[group].block_size * self.world_size

    def has(self, kind: type[LayerSpec]) -> bool:
        return any(isinstance(spec, kind) for spec in self.specs)

    @property
    def can_draft(self) -> bool:
        """Chunks rule drafts out; in mode all they have blocks for their states (KV-MAMBA-4)."""
        return self.max_drafts > 0

    @property
    def max_drafts(self) -> int:
        if self.has(ChunkedLocalAttentionSpec):
            return 0
        return min(
            (
                spec.num_speculative_blocks if spec.mamba_cache_mode == "all" else 0
                for spec in self.specs
                if isinstance(spec, MambaSpec)
            ),
            default=3,
        )

    @property
    def can_have_tier(self) -> bool:
        """Whether the host tier allows it (KV-TIER-8)."""
        return self.world_size == 1 and not self.has(ChunkedLocalAttentionSpec)


def packed(config: KVCacheConfig) -> KVCacheConfig:
    rows = list(zip(*(group.layer_names for group in config.groups), strict=True))
    page = page_size_bytes(config.groups[0].spec)
    stride = page * len(rows) + PACKED_GAP_BYTES
    tensors = (
        KVCacheTensor(stride * config.num_blocks, names, number * page, stride)
        for number, names in enumerate(rows)
    )
    return replace(config, tensors=tuple(tensors))


def first_read(spec: LayerSpec, num_computed: int) -> int:
    """Return the first token that token number `num_computed` reads in an attention group."""
    if spec.window_tokens:
        return max(0, num_computed - spec.window_tokens + 1)
    if spec.chunk_tokens:
        return num_computed // spec.chunk_tokens * spec.chunk_tokens
    return 0


CASES: tuple[Case, ...] = (
    Case("full, float16", (full(),)),
    Case("full and window", (full(), window()), "HND"),
    Case("full, window and Mamba", (full(), window(), ALIGNED)),
    Case("parts of blocks", (full(), window()), hash_block_size=2),
    Case("MLA, bfloat16", (mla(),)),
    Case("full, int8 with scales", (full("int8", "INT8_PER_TOKEN_HEAD"),), "HND"),
    Case("full and Mamba", (full(), MOVED), "HND"),
    Case("full, float8 with scales", (full("float8_e4m3fn", "FP8_PER_TOKEN_HEAD"),)),
    Case(
        "blocks of unequal size",
        (FullAttentionSpec(2 * BLOCK_SIZE, 1, 6, "float16", head_size_v=3), window()),
    ),
    Case("full, float8", (full("float8_e4m3fn"),), "HND"),
    Case("window, float16", (replace(window(), sliding_window=9),)),
    Case(
        "full and chunks, bfloat16",
        (
            FullAttentionSpec(BLOCK_SIZE, 2, 6, "bfloat16"),
            ChunkedLocalAttentionSpec(BLOCK_SIZE, 2, 6, "bfloat16", attention_chunk_size=8),
        ),
    ),
    Case("full, float32", (full("float32"),)),
)
"""Kinds of layers, formats and sizes."""

ARRANGED: tuple[Case, ...] = (
    Case("full and window, packed", (full(), window()), packed=True),
    Case("full and Mamba in mode all, packed", (full(), ALL), "HND", packed=True),
    Case("full and Mamba in mode all, drafts", (full(), DRAFTED)),
    Case("full, three ranks", (replace(full(), block_size=2),), "HND", dcp=3),
    Case("MLA, four ranks", (replace(mla("float16"), block_size=2),), dcp=2, pcp=2),
)
"""Where pages lie, where states are kept, and which tokens a rank has."""
