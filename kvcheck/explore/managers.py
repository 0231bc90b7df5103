"""The managers to explore: groups, pools, and texts."""

from __future__ import annotations

import itertools
from dataclasses import replace

from kvspec.config import KVCacheConfig, KVCacheGroup, ManagerConfig
from kvspec.policy import Policy
from kvspec.specs import LayerSpec, MambaSpec


def aligned_mamba(block_size: int) -> MambaSpec:
    """Return a spec with a state at each block boundary."""
    return MambaSpec(block_size, ((2,),), ("float32",), mamba_cache_mode="align")


def inside(config: ManagerConfig) -> ManagerConfig:
    """Return the configuration with hits that end at every token."""
    policy = Policy(hits_inside_blocks=True)
    return replace(config, hash_block_size_tokens=1, policy=policy)


def checkpoints(spec: MambaSpec) -> MambaSpec:
    """Return the spec with a state inside a chunk, wherever one can be."""
    return replace(spec, num_prefill_checkpoint_blocks=1, prefill_checkpoint_alignment=1)


def texts(*lengths: int, alphabet: tuple[int, ...] = (0, 1)) -> tuple[tuple[int, ...], ...]:
    return tuple(text for n in lengths for text in itertools.product(alphabet, repeat=n))


def cache(
    num_blocks: int, *specs: LayerSpec, max_tokens: int, use_eagle: bool = False
) -> ManagerConfig:
    """Return a manager of one group per spec, with events and always equal hashes."""
    groups = tuple(KVCacheGroup((f"layer.{n}",), spec) for n, spec in enumerate(specs))
    return ManagerConfig(
        KVCacheConfig(num_blocks, groups),
        max_model_len_tokens=max_tokens,
        use_eagle=use_eagle,
        hash_seed="0",
        enable_events=True,
    )
