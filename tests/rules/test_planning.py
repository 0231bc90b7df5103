"""Rules of planning: pages, specs, groups (KV-PLAN-1 … KV-PLAN-8 and the rarer layouts)."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from kvspec.errors import ConfigError, PageSizeError
from kvspec.planning import Layers, Planner
from kvspec.specs import (
    FullAttentionSpec,
    LayerSpec,
    MambaSpec,
    MLAAttentionSpec,
    SlidingWindowMLASpec,
    TQFullAttentionSpec,
    UniformTypeKVCacheSpecs,
)
from tests.rules.planning import (
    V4,
    chunk,
    cross,
    encoder_only,
    full,
    hidden,
    latent,
    named,
    names_of,
    settings,
    sink,
    state,
    window,
    window_over_latents,
)

PAGES: tuple[tuple[LayerSpec, int, int | None], ...] = (
    # spec, bytes of a page, bytes of its keys and values
    (full(), 65_536, 65_536),
    (full(head_size_v=64), 16 * 8 * (128 + 64) * 2, 49_152),
    (sink(32), 65_536, 65_536),
    (window(100, head_size_v=64), 49_152, 49_152),
    (chunk(64), 65_536, 65_536),
    (cross(), 65_536, 65_536),
    (encoder_only(), 65_536, 65_536),
    (latent(), 18_432, 18_432),
    (hidden(), 8_192, 8_192),
    (latent(cache_dtype_str="fp8_ds_mla"), 16 * 656, 10_496),
    (SlidingWindowMLASpec(16, 1, 96, "bfloat16", sliding_window=77), 3_072, 3_072),
    (latent(512, 64, dtype="uint8", compress_ratio=4, **V4), 9_792, 9_344),
    (window_over_latents(), 37_440, 37_376),
    (window_over_latents(page_size_padded=37_504), 37_440, 37_376),
    (window_over_latents(page_size_padded=2 * 37_440), 74_880, 37_376),
    (TQFullAttentionSpec(16, 8, 128, "bfloat16"), 65_536, 65_536),
    (TQFullAttentionSpec(16, 8, 128, "bfloat16", tq_slot_size=40), 5_120, 5_120),
    (MambaSpec(64, ((2, 3), (4,)), ("float32", "float16")), 32, None),
    (full(page_size_padded=70_000), 70_000, 65_536),
    (state(100, page_size_padded=128), 128, None),
    (replace(full(), dtype="uint8", kv_quant_mode="FP8_PER_TENSOR"), 32_768, 32_768),
    (replace(full(), dtype="int8", kv_quant_mode="INT8_PER_TOKEN_HEAD"), 33_792, 32_768),
    (replace(full(), dtype="uint8", kv_quant_mode="NVFP4"), 16 * 8 * 2 * (64 + 8), 18_432),
    (UniformTypeKVCacheSpecs(16, named(full(), latent())), 65_536 + 18_432, None),
)


@pytest.mark.rule("KV-PLAN-1")
@pytest.mark.parametrize(("spec", "page", "real"), PAGES)
def test_pages_have_the_bytes_of_their_type(
    planner: Planner, spec: LayerSpec, page: int, real: int | None
) -> None:
    """The table of KV-PLAN-1, a row at a time, padding and quantisation besides."""
    found = planner.spec_properties(spec, settings())
    assert (found.page_size_bytes, found.real_page_size_bytes) == (page, real)
    assert found.kind == spec.kind


@pytest.mark.rule("KV-PLAN-1")
def test_properties_besides_the_page(planner: Planner) -> None:
    """Slots that a page stores, the window, and the padding that an alignment asks for."""
    compressed = latent(512, 64, dtype="uint8", compress_ratio=4, **V4)
    found = planner.spec_properties(compressed, settings())
    assert found.storage_block_size == 16
    assert found.normalized_spec == replace(compressed, page_size_padded=9_792)
    assert found.sliding_window_tokens is None
    windowed = planner.spec_properties(window(100), settings())
    assert (windowed.storage_block_size, windowed.sliding_window_tokens) == (16, 100)
    assert windowed.normalized_spec == window(100)


@pytest.mark.rule("KV-PLAN-1")
@pytest.mark.parametrize(
    ("spec", "field"),
    [
        (full(page_size_padded=65_535), "page_size_padded"),
        (state(128, page_size_padded=127), "page_size_padded"),
        (full(kv_quant_mode="HALF"), "kv_quant_mode"),
        (latent(compress_ratio=3), "compress_ratio"),
        (LayerSpec(16), "spec"),
        (MambaSpec(16, (), ()), "page_size_bytes"),
        (FullAttentionSpec(16, 1, 1, "uint8", kv_quant_mode="NVFP4"), "page_size_bytes"),
    ],
)
def test_pages_that_cannot_be(planner: Planner, spec: LayerSpec, field: str) -> None:
    """The error names the member."""
    with pytest.raises(ConfigError) as caught:
        planner.spec_properties(spec, settings())
    assert caught.value.field == field


PACKED: dict[str, Any] = {"cache_dtype_str": "fp8_ds_mla"}
"""A page of these has the same bytes whatever the number of heads."""

MERGED: tuple[tuple[tuple[LayerSpec, ...], LayerSpec | None], ...] = (
    ((full(), full()), full()),
    ((full(), full(sliding_window=512), full()), full(sliding_window=512)),
    ((full(attention_chunk_size=64), full()), full(attention_chunk_size=64)),
    ((full(), full(non_causal=True)), full(non_causal=True)),
    ((full(), full(head_size_v=64)), full()),
    ((full(head_size_v=64), full()), None),
    ((full(sliding_window=512), full(sliding_window=256)), None),
    ((full(sliding_window=512), full(attention_chunk_size=64)), None),
    ((full(), full(head_size=64)), None),
    ((full(), full(indexes_kv_by_block_stride=True)), None),
    ((full(), latent()), None),
    ((latent(), full()), None),
    ((full(), sink(16)), None),
    ((sink(16), sink(16)), sink(16)),
    ((sink(16), sink(32)), None),
    ((latent(576), latent(128)), latent(576)),
    ((latent(128), latent(576)), None),
    ((latent(576), latent(128, block_size=32)), None),
    ((latent(), latent(cache_dtype_str="fp8_ds_mla")), None),
    ((replace(latent(), num_kv_heads=2), latent()), None),
    ((latent(**PACKED), replace(latent(**PACKED), num_kv_heads=2)), None),
    ((window_over_latents(), window_over_latents()), window_over_latents()),
    ((window_over_latents(), replace(window_over_latents(), num_kv_heads=2)), None),
    ((window(8), window(8)), window(8)),
    ((window(8), window(9)), None),
    ((window(8), chunk(16)), None),
    ((), None),
)


@pytest.mark.rule("KV-PLAN-2")
@pytest.mark.parametrize(("specs", "merged"), MERGED)
def test_specs_merge_when_they_agree(
    planner: Planner, specs: tuple[LayerSpec, ...], merged: LayerSpec | None
) -> None:
    """The merged spec, or an error; `is_uniform` answers the same without one."""
    if merged is None:
        with pytest.raises(ConfigError):
            planner.merge(specs)
    else:
        assert planner.merge(specs) == merged
    assert planner.is_uniform(named(*specs)) == (merged is not None or not specs)


ONE_TYPE: tuple[tuple[Layers, bool], ...] = (
    (named(latent(), full(), sink(16)), True),
    (named(full(), full(sliding_window=8), full(sliding_window=9)), True),
    (named(window(8), window(8, head_size=64)), True),
    (named(window(8), window(9)), False),
    (named(chunk(64), replace(chunk(64), num_kv_heads=1)), True),
    (named(chunk(64), chunk(128)), False),
    (named(cross(), replace(cross(), num_kv_heads=1)), True),
    (named(state(64), state(128)), True),
    (named(state(64), state(64, num_speculative_blocks=1)), False),
    (named(full(16), full(32)), False),
    (named(full(), window(8)), False),
    (named(encoder_only()), True),
    ((), False),
)


@pytest.mark.rule("KV-PLAN-3")
@pytest.mark.parametrize(("layers", "is_one"), ONE_TYPE)
def test_layers_of_one_type(planner: Planner, layers: Layers, is_one: bool) -> None:
    """All of them in one spec, or None."""
    expected = UniformTypeKVCacheSpecs(16, layers) if is_one else None
    assert planner.uniform_type(layers) == expected


@pytest.mark.rule("KV-PLAN-4")
def test_blocks_grow_where_the_page_divides_the_largest(planner: Planner) -> None:
    """A third of the head size makes blocks three times as long."""
    layers = named(full(head_size=192), window(8, head_size=64))
    assert planner.unify_page_size(layers) == named(
        full(head_size=192), window(8, block_size=48, head_size=64)
    )
    assert planner.unify_page_size(()) == ()


@pytest.mark.rule("KV-PLAN-4")
def test_pages_are_padded_where_the_device_allows(planner: Planner) -> None:
    """80 does not divide 192: 98,304 bytes for 40,960."""
    padded = window(8, head_size=80, indexes_kv_by_block_stride=True)
    layers = named(full(head_size=192), padded)
    found = planner.unify_page_size(layers)
    assert found == named(full(head_size=192), replace(padded, page_size_padded=98_304))


@pytest.mark.rule("KV-PLAN-4")
@pytest.mark.parametrize(
    ("layers", "page"),
    [
        (named(full(head_size=192), window(8, head_size=80)), 40_960),
        (named(state(98_304), state(64)), 64),
        (named(full(), full(head_size=64, page_size_padded=32_768)), 32_768),
    ],
)
def test_pages_that_cannot_be_unified(planner: Planner, layers: Layers, page: int) -> None:
    """The error names the layer, its page and the largest, and is a NotImplementedError too."""
    with pytest.raises(PageSizeError, match="layer 1") as caught:
        planner.unify_page_size(layers)
    assert isinstance(caught.value, NotImplementedError)
    largest = planner.spec_properties(layers[0][1], settings()).page_size_bytes
    assert (caught.value.layer, caught.value.value, caught.value.wanted) == ("1", page, largest)


@pytest.mark.rule("KV-PLAN-5")
def test_groups_are_made_by_the_first_way_that_applies(planner: Planner) -> None:
    """None, one merged, one of one type, several."""
    assert planner.groups((), settings()) == ()
    (merged,) = planner.groups(named(full(), full(sliding_window=8)), settings())
    assert (merged.layer_names, merged.spec) == (("0", "1"), full(sliding_window=8))
    layers = named(full(), latent())
    (one_type,) = planner.groups(layers, settings())
    assert one_type.spec == UniformTypeKVCacheSpecs(16, layers)
    several = planner.groups(named(*[full()] * 10, *[window(8)] * 20), settings())
    assert [len(group.layer_names) for group in several] == [10, 10, 10]
    assert [type(group.spec).__name__ for group in several][:2] == [
        "FullAttentionSpec",
        "SlidingWindowSpec",
    ]
    assert not any(group.is_eagle_group for group in several)


@pytest.mark.rule("KV-PLAN-6")
@pytest.mark.parametrize(
    ("num_full", "num_windows", "sizes"),
    [
        (10, 52, [10, 9, 9, 9, 9, 8, 8]),
        (10, 14, [10, 14]),
        (10, 15, [10, 8, 7]),
        (2, 3, [2, 2, 1]),
        (3, 4, [3, 4]),
    ],
)
def test_groups_are_as_long_as_the_rarest_spec(
    planner: Planner, num_full: int, num_windows: int, sizes: list[int]
) -> None:
    """Unless the most frequent has less than one and a half times as many layers."""
    layers = named(*[full()] * num_full, *[window(8)] * num_windows)
    assert [len(names) for names in names_of(planner.groups(layers, settings()))] == sizes


@pytest.mark.rule("KV-PLAN-6")
def test_layers_are_dealt_to_the_groups_in_turn(planner: Planner) -> None:
    """Not cut: windows 1, 3, 5 and 2, 4, 6."""
    layers = named(full(), *[window(8)] * 6, *[full()] * 2)
    groups = planner.groups(layers, settings())
    assert names_of(groups) == [("0", "7", "8"), ("1", "3", "5"), ("2", "4", "6")]


@pytest.mark.rule("KV-PLAN-7")
def test_without_hybrid_support_windows_become_full_attention(planner: Planner) -> None:
    """It keeps its sizes and remembers the window; block-stride indexing goes."""
    windowed = window(128, head_size_v=64, indexes_kv_by_block_stride=True, kv_quant_mode="NVFP4")
    layers = named(full(), windowed, chunk(64))
    remembered = full(head_size_v=64, kv_quant_mode="NVFP4", sliding_window=128)
    expected = named(full(), remembered, full(attention_chunk_size=64))
    assert planner.unify_hybrid(layers) == expected
    (group,) = planner.groups(layers, settings(disable_hybrid=True))
    assert group.spec == UniformTypeKVCacheSpecs(16, expected)


@pytest.mark.rule("KV-PLAN-7")
def test_a_window_over_latents_takes_the_blocks_of_full_attention(planner: Planner) -> None:
    """Its own blocks are as short as its window."""
    layers = named(latent(512, 256, dtype="uint8", **V4), window_over_latents())
    (_, found) = planner.unify_hybrid(layers)
    assert isinstance(found[1], MLAAttentionSpec)
    assert (found[1].block_size, found[1].page_size_padded) == (256, 149_760)


@pytest.mark.rule("KV-PLAN-7")
@pytest.mark.parametrize(
    "layers",
    [named(full(), full()), named(window(8), window(8)), named(full(), latent()), ()],
)
def test_layers_of_a_single_type_stay(planner: Planner, layers: Layers) -> None:
    """Nothing has to be turned into anything."""
    assert planner.unify_hybrid(layers) == layers


@pytest.mark.rule("KV-PLAN-7")
@pytest.mark.parametrize(
    "layers",
    [named(full(), window(8), state(64)), named(window(8), window(9)), named(full(), full(32))],
)
def test_layers_that_no_single_type_holds(planner: Planner, layers: Layers) -> None:
    """The error names the switch."""
    with pytest.raises(ConfigError) as caught:
        planner.groups(layers, settings(disable_hybrid=True))
    assert caught.value.field == "disable_hybrid"


BOUNDS: tuple[tuple[LayerSpec, dict[str, Any], int], ...] = (
    (full(), {}, 7),  # cdiv(100, 16)
    (full(), {"dcp_world_size": 2, "pcp_world_size": 2}, 2),  # cdiv(25, 16)
    (latent(), {}, 7),
    (window(6, block_size=4), {"max_num_batched_tokens": 4}, 4),  # cdiv(9, 4) + 1
    (window(6, block_size=4), {"max_model_len_tokens": 5}, 3),  # cdiv(5, 4) + 1
    (chunk(64), {"max_num_batched_tokens": 10}, 5),  # cdiv(74, 16)
    (chunk(64), {"max_model_len_tokens": 60}, 4),
    (state(64, num_speculative_blocks=3), {}, 4),
    (state(64, num_speculative_blocks=3), {"mamba_cache_mode": "align"}, 5),
    (state(64, num_speculative_blocks=3), {"mamba_cache_mode": "all"}, 10),
    (cross(), {"max_encoder_tokens": 33}, 3),
    (encoder_only(), {}, 0),
    (UniformTypeKVCacheSpecs(16, named(full(), latent())), {}, 7),
)


@pytest.mark.rule("KV-PLAN-8")
def test_a_spec_of_nobody_has_no_bound(planner: Planner) -> None:
    """The contract knows its own types only."""
    with pytest.raises(ConfigError, match="LayerSpec"):
        planner.max_memory_usage_bytes(named(LayerSpec(16)), settings())


@pytest.mark.rule("KV-PLAN-8")
@pytest.mark.parametrize(("spec", "members", "blocks"), BOUNDS)
def test_blocks_of_one_request_at_most(
    planner: Planner, spec: LayerSpec, members: dict[str, Any], blocks: int
) -> None:
    """L = 100, M = 16 unless given; bytes are blocks times the page, and add up over layers."""
    config = settings(**{"max_model_len_tokens": 100, **members})
    found = planner.spec_properties(spec, config)
    assert found.max_memory_usage_bytes == blocks * found.page_size_bytes
    capped = type(spec).__name__ in ("SlidingWindowSpec", "ChunkedLocalAttentionSpec")
    assert found.max_admission_blocks_per_request == (blocks if capped else None)
    layers = named(spec, spec)
    assert planner.max_memory_usage_bytes(layers, config) == 2 * blocks * found.page_size_bytes
