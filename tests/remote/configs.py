"""A few configurations, and the requests that go with them."""

from __future__ import annotations

from typing import Any

from kvspec.config import ManagerConfig
from kvspec.request import RequestInput
from kvspec.specs import FullAttentionSpec, LayerSpec, MambaSpec, SlidingWindowSpec
from tests.contract.builders import make_config

FULL = FullAttentionSpec(block_size=4, num_kv_heads=1, head_size=8, dtype="float16")
WINDOW = SlidingWindowSpec(
    block_size=4, num_kv_heads=1, head_size=8, dtype="float16", sliding_window=6
)
MAMBA = MambaSpec(block_size=4, shapes=((2, 3),), dtypes=("float32",), mamba_cache_mode="align")


def config(*specs: LayerSpec, num_blocks: int = 12, **members: Any) -> ManagerConfig:
    watched = {"max_model_len_tokens": 64, "enable_events": True, "log_stats": True}
    return make_config(num_blocks, specs=specs or (FULL,), **watched | members)


def request_input(name: str = "a", num_tokens: int = 5) -> RequestInput:
    return RequestInput(name, tuple(range(1, num_tokens + 1)))
