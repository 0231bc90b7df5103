"""Random configurations of one group of full attention."""

from __future__ import annotations

from hypothesis import strategies as st

from kvspec.config import KVCacheConfig, KVCacheGroup, ManagerConfig
from kvspec.specs import FullAttentionSpec


@st.composite
def single_group_configs(draw: st.DrawFn) -> ManagerConfig:
    """Draw small pools, where eviction and refusal happen within a few calls."""
    block_size = draw(st.sampled_from([1, 2, 2, 3]))
    group = KVCacheGroup(
        ("layer",),
        FullAttentionSpec(block_size, 1, 8, "float16"),
        is_eagle_group=draw(st.sampled_from([False, False, False, True])),
    )
    return ManagerConfig(
        KVCacheConfig(
            draw(st.sampled_from([*range(2, 6), *range(6, 14), *range(6, 14)])), (group,)
        ),
        max_model_len_tokens=draw(st.sampled_from([12, 64])),
        enable_caching=draw(st.sampled_from([True, True, True, True, True, True, False])),
        use_eagle=draw(st.sampled_from([False, False, False, True])),
        log_stats=True,
        enable_events=True,
        int_event_hashes=draw(st.booleans()),
        dcp_world_size=draw(st.sampled_from([1, 1, 1, 1, 2])),
        watermark=draw(st.sampled_from([0.0, 0.0, 0.3])),
        hash_seed="0",
        hash_function=draw(st.sampled_from(["sha256_cbor", "sha256_cbor_64bit"])),
        trusted_tenants=True,
    )
