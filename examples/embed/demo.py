"""Two questions about one text; the second one finds the text computed.

From the repository's root: python -m examples.embed.demo
"""

from __future__ import annotations

import kvfast
from examples.embed.engine import Engine
from examples.embed.workers import Workers
from kvspec.config import KVCacheConfig, KVCacheGroup, ManagerConfig
from kvspec.request import RequestInput
from kvspec.specs import FullAttentionSpec


def main() -> None:
    """Serve both and print what was sampled."""
    spec = FullAttentionSpec(block_size=4, num_kv_heads=8, head_size=128, dtype="bfloat16")
    cache = KVCacheConfig(num_blocks=17, groups=(KVCacheGroup(("layer.0",), spec),))
    config = ManagerConfig(cache, max_model_len_tokens=64, log_stats=True)
    implementation = kvfast.implementation()
    manager = implementation.create(config, check_invariants=False)
    workers = Workers(num_blocks=17, block_size=4, num_handles=8)
    engine = Engine(implementation.batched(manager), workers, max_running=4, max_tokens=32)
    text = range(100, 120)
    inputs = [RequestInput(name, [*text, ord(name)]) for name in "ab"]
    for request in implementation.make_requests(manager, inputs):
        engine.add(request, max_new_tokens=8)
    while engine.running or engine.waiting:
        for request in engine.step():
            print(request.request_id, request.token_ids[request.num_prompt_tokens :])
    print(manager.make_prefix_cache_stats())


if __name__ == "__main__":
    main()
