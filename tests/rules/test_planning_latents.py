"""Rules of planning: latents of several page sizes, and hidden states (KV-PLAN-22, KV-PLAN-23)."""

from __future__ import annotations

from dataclasses import replace

import pytest

from kvspec.errors import ConfigError, PageSizeError
from kvspec.planning import Layers, Planner
from kvspec.specs import (
    FullAttentionSpec,
    HiddenStateCacheSpec,
    SlidingWindowMLASpec,
    UniformTypeKVCacheSpecs,
)
from tests.rules.planning import (
    PROFILE,
    V4,
    latent,
    named,
    names_of,
    settings,
    window,
    window_over_latents,
)


def version_4(num_windows: int) -> Layers:
    """Five layers of each of two page sizes, one of a third, and windows behind them."""
    compressed = latent(512, 256, dtype="uint8", compress_ratio=4, **V4)
    indexer = latent(132, 256, dtype="uint8", compress_ratio=4, **{**V4, "cache_dtype_str": None})
    sparse = latent(512, 256, dtype="uint8", compress_ratio=128, **V4)
    return named(*[compressed, indexer] * 5, sparse, *[window_over_latents()] * num_windows)


@pytest.mark.rule("KV-PLAN-22")
def test_latents_of_several_page_sizes_lie_side_by_side(planner: Planner) -> None:
    """Eight windows beside five: two groups of four; a tensor per slot and page size."""
    config = settings(256, 64, block_size=256, use_eagle=True)
    groups = planner.groups(version_4(8), config)
    assert [len(group.layer_names) for group in groups] == [11, 4, 4]
    assert [group.is_eagle_group for group in groups] == [False, False, True]
    assert groups[1].layer_names == ("11", "13", "15", "17")
    cache = planner.config_from_groups(groups, config, 10 * 232_128 + 1)
    assert len(cache.tensors) == 11
    stride = 5 * 37_440 + 5 * 8_640 + 1_728
    assert {tensor.block_stride_bytes for tensor in cache.tensors} == {stride}
    assert stride == 232_128
    assert cache.num_blocks == 10


@pytest.mark.rule("KV-PLAN-22")
def test_windows_are_padded_to_a_page_size_of_full_attention(planner: Planner) -> None:
    """A page of 4,608 bytes takes the next larger one there is."""
    short = SlidingWindowMLASpec(
        4, 1, 256, "float32", sliding_window=8, alignment=576, model_version="deepseek_v4"
    )
    layers = (*version_4(5), ("short", short))
    groups = planner.groups(layers, settings(256, 64, block_size=256))
    spec = groups[-1].spec
    assert isinstance(spec, UniformTypeKVCacheSpecs)
    assert spec.kv_cache_specs == (("short", replace(short, page_size_padded=8_640)),)


@pytest.mark.rule("KV-PLAN-22")
def test_a_window_larger_than_all_pages_keeps_its_own(planner: Planner) -> None:
    """There is no page size of full attention that would hold it."""
    indexer = latent(132, 256, dtype="uint8", compress_ratio=4, **{**V4, "cache_dtype_str": None})
    layers = named(indexer, window_over_latents())
    _, group = planner.groups(layers, settings(256, 64, block_size=256))
    own = replace(window_over_latents(), page_size_padded=37_440)
    assert group.spec == UniformTypeKVCacheSpecs(64, (("1", own),))


@pytest.mark.rule("KV-PLAN-22")
def test_other_layers_keep_latents_from_lying_side_by_side(planner: Planner) -> None:
    """Pages are then unified, which these cannot be."""
    layers = (*version_4(5), ("full", FullAttentionSpec(256, 1, 64, "bfloat16")))
    with pytest.raises(PageSizeError):
        planner.groups(layers, settings())


@pytest.mark.rule("KV-PLAN-22")
def test_the_profile_counts_every_slot_with_every_page_size(planner: Planner) -> None:
    """5 · (37,440 + 8,640 + 1,728) bytes a block, more than the 232,128 that it takes."""
    config = settings(256, 64, block_size=256, policy=PROFILE)
    groups = planner.groups(version_4(8), config)
    assert [len(group.layer_names) for group in groups] == [11, 4, 4]
    # One block of full attention, and four of each group of windows: 9 blocks.
    needed = 9 * 5 * (37_440 + 8_640 + 1_728)
    planner.plan((version_4(8),), config, (needed,))
    with pytest.raises(ConfigError, match=f"at least {needed} bytes"):
        planner.plan((version_4(8),), config, (needed - 1,))


@pytest.mark.rule("KV-PLAN-23")
def test_hidden_states_fill_the_page_of_the_others(planner: Planner) -> None:
    """10,240 bytes hold 20 tokens of 512 bytes."""
    small = FullAttentionSpec(32, 1, 80, "bfloat16")
    hidden = HiddenStateCacheSpec(32, 1, 256, "bfloat16")
    windowed = replace(window(8), block_size=32, num_kv_heads=1, head_size=80, head_size_v=80)
    layers = named(small, small, windowed, hidden)
    groups = planner.groups(layers, settings())
    assert names_of(groups) == [("0",), ("1",), ("2",), ("3",)]
    assert groups[-1].spec == replace(hidden, block_size=20, page_size_padded=10_240)
    (alone,) = planner.groups(named(small, hidden), settings())
    assert isinstance(alone.spec, UniformTypeKVCacheSpecs)


@pytest.mark.rule("KV-PLAN-23")
def test_a_token_of_hidden_states_must_fit(planner: Planner) -> None:
    """A page too small for one token is refused."""
    tiny = FullAttentionSpec(2, 1, 8, "bfloat16")
    hidden = HiddenStateCacheSpec(2, 1, 256, "bfloat16")
    windowed = replace(window(8), block_size=2, num_kv_heads=1, head_size=8, head_size_v=8)
    with pytest.raises(PageSizeError, match="layer 2"):
        planner.groups(named(tiny, windowed, hidden), settings())
