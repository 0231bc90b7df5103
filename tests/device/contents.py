"""The keys and values that every token must have: a function of its whole prefix and of the place.

A block with another prefix, layer, head or slot than it should have then shows another number.
All numbers are stored exactly in the format of their pool, so reads are compared bit for bit.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

import numpy as np
import torch

from kvfast.device import KVPools, Layer, PageOperations
from kvspec.specs import AttentionSpec
from tests.device.models import DEVICE

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
