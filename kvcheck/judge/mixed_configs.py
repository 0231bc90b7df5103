"""Random configurations of one to four groups, of any types that may be combined."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import strategies as st

from kvcheck.judge.inside_programs import inside_config
from kvspec.config import KVCacheConfig, KVCacheGroup, ManagerConfig
from kvspec.specs import (
    ChunkedLocalAttentionSpec,
    CircularBufferSpec,
    CrossAttentionSpec,
    FullAttentionSpec,
    LayerSpec,
    MambaSpec,
    MLAAttentionSpec,
    RSWASpec,
    SlidingWindowSpec,
)

KINDS = ("full", "full", "mla", "window", "window", "chunked", "mamba", "cross", "ring")


@st.composite
def mixed_configs(draw: st.DrawFn) -> ManagerConfig:
    """Draw a configuration that every implementation with these types must accept.

    Chunked local attention rules out drafting and unequal block sizes (KV-CHUNK-3); cross attention
    rules out caching (KV-CROSS-4); several cached groups need two different specs (KV-COORD-3).
    """
    kinds = draw(st.lists(st.sampled_from(KINDS), min_size=1, max_size=4))
    base = draw(st.sampled_from([1, 2]))
    equal_sizes = "chunked" in kinds or draw(st.booleans())
    specs = [draw_spec(draw, kind, base, equal_sizes=equal_sizes) for kind in kinds]
    caching = (
        "cross" not in kinds
        and set(kinds) != {"ring"}
        and draw(st.sampled_from([True, True, True, True, False]))
    )
    if caching and len(specs) > 1 and all(spec == specs[0] for spec in specs):
        specs[-1] = MLAAttentionSpec(specs[0].block_size, 1, 32, "bfloat16")
    drafting = "chunked" not in kinds
    groups = tuple(
        KVCacheGroup(
            (f"layer.{index}",),
            spec,
            is_eagle_group=drafting and draw(st.sampled_from([False, False, False, True])),
        )
        for index, spec in enumerate(specs)
    )
    windowed = any(isinstance(spec, (SlidingWindowSpec, MambaSpec)) for spec in specs)
    alignment = max(spec.block_size for spec in specs)  # sizes are powers of two times the base
    return ManagerConfig(
        KVCacheConfig(draw(st.sampled_from([4, 8, 12, 16, 24, 32])), groups),
        max_model_len_tokens=draw(st.sampled_from([16, 48])),
        max_num_batched_tokens=draw(st.sampled_from([None, 4, 8])),
        enable_caching=caching,
        use_eagle=drafting and draw(st.sampled_from([False, False, False, True])),
        log_stats=True,
        enable_events=True,
        watermark=draw(st.sampled_from([0.0, 0.0, 0.0, 0.2])),
        retention_interval_tokens=(
            draw(st.sampled_from([None, None, 0, alignment, 2 * alignment])) if windowed else None
        ),
        hash_seed="0",
    )


@st.composite
def later_configs(draw: st.DrawFn) -> ManagerConfig:
    """Draw one with R-SWA for full attention, windows that retain more, or hash look-ahead."""
    config = draw(mixed_configs())
    small = st.sampled_from([1, 2, 3, 5])
    window, retained = draw(st.none() | small), draw(st.just(0) | small)
    groups = tuple(
        replace(group, spec=_later(group.spec, window, retained))
        for group in config.kv_cache.groups
    )
    return replace(
        config,
        kv_cache=replace(config.kv_cache, groups=groups),
        hash_lookahead_tokens=draw(st.sampled_from([0, 0, 1, 3])),
    )


def _later(spec: LayerSpec, window: int | None, retained: int) -> LayerSpec:
    if window is not None and type(spec) is FullAttentionSpec:
        return RSWASpec(spec.block_size, 1, 8, "float16", rswa_window=window)
    if isinstance(spec, SlidingWindowSpec):
        return replace(spec, extra_retained_tokens=retained)
    return spec


INSIDE_CONFIGS = st.builds(inside_config, st.randoms(use_true_random=False))
"""Configurations with hits that end inside a block, as in programs about them."""


def draw_spec(draw: st.DrawFn, kind: str, base: int, *, equal_sizes: bool) -> LayerSpec:
    """Draw a small spec of one kind."""
    size = base if equal_sizes else base * draw(st.sampled_from([1, 1, 2, 4]))
    if kind == "full":
        return FullAttentionSpec(size, 1, 8, "float16")
    if kind == "mla":
        return MLAAttentionSpec(size, 1, 16, "bfloat16")
    if kind == "window":
        window = draw(st.sampled_from([1, 2, 3, 4, 5, 8, 11]))
        return SlidingWindowSpec(size, 1, 8, "float16", sliding_window=window)
    if kind == "chunked":
        chunk = size * draw(st.sampled_from([1, 2, 3, 4]))
        return ChunkedLocalAttentionSpec(size, 1, 8, "float16", attention_chunk_size=chunk)
    if kind == "mamba":
        return MambaSpec(
            size,
            shapes=((2,),),
            dtypes=("float32",),
            mamba_cache_mode=draw(st.sampled_from(["none", "all", "align", "align"])),
            num_speculative_blocks=draw(st.sampled_from([0, 0, 1, 2])),
        )
    if kind == "ring":
        return CircularBufferSpec(size, 1, 8, "float16")
    return CrossAttentionSpec(size, 1, 8, "float16")
