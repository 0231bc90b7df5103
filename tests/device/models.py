"""Small caches of every kind, filled with numbers."""

from __future__ import annotations

import os

import torch

from kvfast.device import KVPools, Layout
from kvspec.config import KVCacheConfig, KVCacheGroup
from kvspec.specs import (
    FullAttentionSpec,
    LayerSpec,
    MambaSpec,
    MLAAttentionSpec,
    SlidingWindowSpec,
)

BLOCK_SIZE = 4
DEVICE = os.environ.get("KVSPEC_TEST_DEVICE", "cpu")
"""Where pools and tables of these tests lie; cuda on a machine that has one."""


def full(dtype: str = "float16", kv_quant_mode: str = "NONE") -> FullAttentionSpec:
    """Return a spec of two heads of size 6 and values of size 3: unequal, no powers of two."""
    return FullAttentionSpec(BLOCK_SIZE, 2, 6, dtype, kv_quant_mode, head_size_v=3)


def mla(dtype: str = "bfloat16") -> MLAAttentionSpec:
    return MLAAttentionSpec(BLOCK_SIZE, 1, 9, dtype)


def mamba() -> MambaSpec:
    """Return states of 12 and 20 bytes, padded to a page of float16 full attention."""
    return MambaSpec(
        BLOCK_SIZE, ((2, 3), (5,)), ("float16", "float32"), page_size_padded=4 * 2 * 9 * 2
    )


def window() -> SlidingWindowSpec:
    return SlidingWindowSpec(BLOCK_SIZE, 2, 6, "float16", sliding_window=6, head_size_v=3)


def cache(*specs: LayerSpec, num_blocks: int = 7, layers: int = 2) -> KVCacheConfig:
    """Configure a group of `layers` layers per spec: layer `g.i` is layer i of group g."""
    groups = (
        KVCacheGroup(tuple(f"{number}.{layer}" for layer in range(layers)), spec)
        for number, spec in enumerate(specs)
    )
    return KVCacheConfig(num_blocks, tuple(groups))


def filled(
    config: KVCacheConfig, seed: int = 0, layout: Layout = "NHD", device: str = DEVICE
) -> KVPools:
    pools = KVPools(config, layout=layout, device=device)
    generator = torch.Generator().manual_seed(seed)
    for pages in pools.pages:
        noise = torch.randint(0, 256, pages.shape, dtype=torch.uint8, generator=generator)
        pages[1:] = noise[1:].to(pages.device)
    return pools


def contents(pools: KVPools) -> list[bytes]:
    return [pages.cpu().numpy().tobytes() for pages in pools.pages]
