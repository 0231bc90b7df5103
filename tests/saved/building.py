"""Small managers that are saved."""

from __future__ import annotations

from typing import Any

from kvspec.config import KVCacheConfig, KVCacheGroup, ManagerConfig
from kvspec.specs import FullAttentionSpec


def config_of(num_blocks: int, **options: Any) -> ManagerConfig:
    spec = FullAttentionSpec(block_size=4, num_kv_heads=8, head_size=128, dtype="bfloat16")
    cache = KVCacheConfig(num_blocks, (KVCacheGroup(("layer.0",), spec),))
    return ManagerConfig(cache, max_model_len_tokens=10**6, hash_seed="0", **options)
