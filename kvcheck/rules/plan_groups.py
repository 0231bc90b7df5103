"""Examples of planning: pages, specs and groups (KV-PLAN-1 … KV-PLAN-8)."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from kvcheck.rules.bench import Bench
from kvcheck.rules.example import example
from kvcheck.rules.judging import equal, raises
from kvcheck.rules.plan_specs import (
    CROSS,
    ENCODER,
    V4,
    large,
    latent,
    local,
    named,
    names_of,
    settings,
    sink,
    sliding,
    state,
    window_over_latents,
)
from kvspec.errors import ConfigError, PageSizeError
from kvspec.planning import Layers
from kvspec.specs import (
    FullAttentionSpec,
    HiddenStateCacheSpec,
    LayerSpec,
    MambaSpec,
    MLAAttentionSpec,
    SlidingWindowMLASpec,
    TQFullAttentionSpec,
    UniformTypeKVCacheSpecs,
)

PAGES: tuple[tuple[LayerSpec, int, int | None], ...] = (
    # spec, bytes of a page, bytes of its keys and values
    (large(), 65_536, 65_536),
    (large(head_size_v=64), 49_152, 49_152),
    (sink(32), 65_536, 65_536),
    (sliding(100, head_size_v=64), 49_152, 49_152),
    (local(64), 65_536, 65_536),
    (CROSS, 65_536, 65_536),
    (ENCODER, 65_536, 65_536),
    (latent(), 18_432, 18_432),
    (HiddenStateCacheSpec(16, 1, 256, "bfloat16"), 8_192, 8_192),
    (latent(cache_dtype_str="fp8_ds_mla"), 10_496, 10_496),
    (SlidingWindowMLASpec(16, 1, 96, "bfloat16", sliding_window=77), 3_072, 3_072),
    (latent(512, 64, dtype="uint8", compress_ratio=4, **V4), 9_792, 9_344),
    (window_over_latents(), 37_440, 37_376),
    (window_over_latents(page_size_padded=37_504), 37_440, 37_376),
    (window_over_latents(page_size_padded=2 * 37_440), 74_880, 37_376),
    (TQFullAttentionSpec(16, 8, 128, "bfloat16", tq_slot_size=40), 5_120, 5_120),
    (MambaSpec(64, ((2, 3), (4,)), ("float32", "float16")), 32, None),
    (large(page_size_padded=70_000), 70_000, 65_536),
    (state(100, page_size_padded=128), 128, None),
    (replace(large(), dtype="uint8", kv_quant_mode="FP8_PER_TENSOR"), 32_768, 32_768),
    (replace(large(), dtype="int8", kv_quant_mode="INT8_PER_TOKEN_HEAD"), 33_792, 32_768),
    (replace(large(), dtype="uint8", kv_quant_mode="NVFP4"), 18_432, 18_432),
    (UniformTypeKVCacheSpecs(16, named(large(), latent())), 83_968, None),
)
IMPOSSIBLE: tuple[tuple[LayerSpec, str], ...] = (
    (large(page_size_padded=65_535), "page_size_padded"),
    (state(128, page_size_padded=127), "page_size_padded"),
    (large(kv_quant_mode="HALF"), "kv_quant_mode"),
    (latent(compress_ratio=3), "compress_ratio"),
    (MambaSpec(16, (), ()), "page_size_bytes"),
)


@example("KV-PLAN-1")
def pages_have_the_bytes_of_their_type(bench: Bench) -> None:
    for spec, page, real in PAGES:
        found = bench.planner.spec_properties(spec, settings())
        sizes = (found.page_size_bytes, found.real_page_size_bytes, found.kind)
        equal(sizes, (page, real, spec.kind), f"the page of {spec}")
    compressed = latent(512, 64, dtype="uint8", compress_ratio=4, **V4)
    found = bench.planner.spec_properties(compressed, settings())
    expected = (16, replace(compressed, page_size_padded=9_792))
    equal((found.storage_block_size, found.normalized_spec), expected, "slots and padding")
    for spec, field in IMPOSSIBLE:
        properties = bench.planner.spec_properties
        with raises(ConfigError, field=field):
            properties(spec, settings())


MERGED: tuple[tuple[tuple[LayerSpec, ...], LayerSpec | None], ...] = (
    ((large(), large(sliding_window=512), large()), large(sliding_window=512)),
    ((large(attention_chunk_size=64), large()), large(attention_chunk_size=64)),
    ((large(), large(non_causal=True)), large(non_causal=True)),
    ((large(), large(head_size_v=64)), large()),
    ((large(head_size_v=64), large()), None),
    ((large(sliding_window=512), large(sliding_window=256)), None),
    ((large(sliding_window=512), large(attention_chunk_size=64)), None),
    ((large(), large(head_size=64)), None),
    ((large(), large(indexes_kv_by_block_stride=True)), None),
    ((large(), latent()), None),
    ((large(), sink(16)), None),
    ((sink(16), sink(16)), sink(16)),
    ((sink(16), sink(32)), None),
    ((latent(576), latent(128)), latent(576)),
    ((latent(128), latent(576)), None),
    ((latent(576), latent(128, block_size=32)), None),
    ((latent(), latent(cache_dtype_str="fp8_ds_mla")), None),
    ((replace(latent(), num_kv_heads=2), latent()), None),
    ((sliding(8), sliding(8)), sliding(8)),
    ((sliding(8), sliding(9)), None),
    ((sliding(8), local(16)), None),
    ((), None),
)


@example("KV-PLAN-2")
def specs_merge_when_they_agree_in_all_that_matters(bench: Bench) -> None:
    for specs, merged in MERGED:
        if merged is None:
            with raises(ConfigError):
                bench.planner.merge(specs)
        else:
            equal(bench.planner.merge(specs), merged, f"merging {specs}")
        is_uniform = merged is not None or not specs
        equal(bench.planner.is_uniform(named(*specs)), is_uniform, f"is_uniform of {specs}")


ONE_TYPE: tuple[tuple[Layers, bool], ...] = (
    (named(latent(), large(), sink(16)), True),
    (named(large(), large(sliding_window=8), large(sliding_window=9)), True),
    (named(sliding(8), sliding(8, head_size=64)), True),
    (named(sliding(8), sliding(9)), False),
    (named(local(64), replace(local(64), num_kv_heads=1)), True),
    (named(local(64), local(128)), False),
    (named(CROSS, replace(CROSS, num_kv_heads=1)), True),
    (named(state(64), state(128)), True),
    (named(state(64), state(64, num_speculative_blocks=1)), False),
    (named(large(16), large(32)), False),
    (named(large(), sliding(8)), False),
    ((), False),
)


@example("KV-PLAN-3")
def layers_of_one_type_share_a_group_although_their_pages_differ(bench: Bench) -> None:
    for layers, is_one in ONE_TYPE:
        expected = UniformTypeKVCacheSpecs(16, layers) if is_one else None
        equal(bench.planner.uniform_type(layers), expected, f"one type of {layers}")


@example("KV-PLAN-4")
def blocks_grow_pages_are_padded_or_it_is_an_error_that_names_the_layer(bench: Bench) -> None:
    unify = bench.planner.unify_page_size
    grown = named(large(head_size=192), sliding(8, block_size=48, head_size=64))
    found = unify(named(large(head_size=192), sliding(8, head_size=64)))
    equal(found, grown, "a third of the head size")
    groups = bench.planner.groups(named(large(head_size=192), sliding(8, head_size=64)), settings())
    equal([group.spec.block_size for group in groups], [16, 48], "block sizes of groups")
    strided = sliding(8, head_size=80, indexes_kv_by_block_stride=True)
    padded = named(large(head_size=192), replace(strided, page_size_padded=98_304))
    equal(unify(named(large(head_size=192), strided)), padded, "a page that does not divide")
    wrong = (
        (named(large(head_size=192), sliding(8, head_size=80)), 40_960),
        (named(state(98_304), state(64)), 64),
        (named(large(), large(head_size=64, page_size_padded=32_768)), 32_768),
    )
    for layers, page in wrong:
        with raises(PageSizeError) as caught:
            unify(layers)
        error = caught.value
        shown = (getattr(error, "layer", None), getattr(error, "value", None))
        equal(shown, ("1", page), "layer and page in the error")


@example("KV-PLAN-5")
def groups_are_made_by_the_first_way_that_applies(bench: Bench) -> None:
    groups = bench.planner.groups
    equal(groups((), settings()), (), "no layers")
    merged = groups(named(large(), large(sliding_window=8)), settings())
    equal([group.spec for group in merged], [large(sliding_window=8)], "merged")
    layers = named(large(), latent())
    expected = [UniformTypeKVCacheSpecs(16, layers)]
    equal([group.spec for group in groups(layers, settings())], expected, "of one type")
    several = groups(named(*[large()] * 10, *[sliding(8)] * 20), settings(use_eagle=True))
    equal([len(group.layer_names) for group in several], [10, 10, 10], "several")
    equal([group.is_eagle_group for group in several], [False] * 3, "flags")


@example("KV-PLAN-6")
def a_group_is_as_long_as_the_rarest_spec_and_layers_are_dealt_out(bench: Bench) -> None:
    cases = (
        (10, 52, [10, 9, 9, 9, 9, 8, 8]),
        (10, 14, [10, 14]),
        (10, 15, [10, 8, 7]),
        (2, 3, [2, 2, 1]),
        (3, 4, [3, 4]),
    )
    for num_full, num_windows, sizes in cases:
        layers = named(*[large()] * num_full, *[sliding(8)] * num_windows)
        found = [len(names) for names in names_of(bench.planner.groups(layers, settings()))]
        equal(found, sizes, f"{num_full} full layers and {num_windows} windows")
    layers = named(large(), *[sliding(8)] * 6, *[large()] * 2)
    dealt = [("0", "7", "8"), ("1", "3", "5"), ("2", "4", "6")]
    equal(names_of(bench.planner.groups(layers, settings())), dealt, "six windows")


@example("KV-PLAN-7")
def no_hybrid(bench: Bench) -> None:
    """Without hybrid support windows become full attention that remembers them."""
    unify, groups = bench.planner.unify_hybrid, bench.planner.groups
    windowed = sliding(128, head_size_v=64, indexes_kv_by_block_stride=True)
    expected = named(large(), large(head_size_v=64, sliding_window=128),
                     large(attention_chunk_size=64))  # fmt: skip
    equal(unify(named(large(), windowed, local(64))), expected, "window and chunk")
    made = groups(named(large(), windowed, local(64)), settings(disable_hybrid=True))
    equal([g.spec for g in made], [UniformTypeKVCacheSpecs(16, expected)], "as a group")
    _, (_, over) = unify(named(latent(512, 256, dtype="uint8", **V4), window_over_latents()))
    shown = (type(over), over.block_size)
    equal(shown, (MLAAttentionSpec, 256), "a window over latents")
    for layers in (named(large(), large()), named(sliding(8)), named(large(), latent()), ()):
        equal(unify(layers), layers, "layers of one type")
    no_way = (named(large(), sliding(8), state(64)), named(sliding(8), sliding(9)),
              named(large(), large(32)))  # fmt: skip
    config = settings(disable_hybrid=True)
    for layers in no_way:
        with raises(ConfigError, field="disable_hybrid"):
            groups(layers, config)


BOUNDS: tuple[tuple[LayerSpec, dict[str, Any], int], ...] = (
    (large(), {}, 7),
    (large(), {"dcp_world_size": 2, "pcp_world_size": 2}, 2),
    (latent(), {}, 7),
    (sliding(6, block_size=4), {"max_num_batched_tokens": 4}, 4),
    (sliding(6, block_size=4), {"max_model_len_tokens": 5}, 3),
    (local(64), {"max_num_batched_tokens": 10}, 5),
    (local(64), {"max_model_len_tokens": 60}, 4),
    (state(64, num_speculative_blocks=3), {}, 4),
    (state(64, num_speculative_blocks=3), {"mamba_cache_mode": "align"}, 5),
    (state(64, num_speculative_blocks=3), {"mamba_cache_mode": "all"}, 10),
    (CROSS, {"max_encoder_tokens": 33}, 3),
    (ENCODER, {}, 0),
    (FullAttentionSpec(16, 1, 1, "float32"), {"max_model_len_tokens": 1}, 1),
    (UniformTypeKVCacheSpecs(16, named(large(), latent())), {}, 7),
)


@example("KV-PLAN-8")
def one_request_holds_at_most_so_many_blocks_of_a_type(bench: Bench) -> None:
    for spec, members, blocks in BOUNDS:
        config = settings(**{"max_model_len_tokens": 100, **members})
        found = bench.planner.spec_properties(spec, config)
        expected = blocks * found.page_size_bytes
        equal(found.max_memory_usage_bytes, expected, f"bytes of {spec} at most")
        both = bench.planner.max_memory_usage_bytes(named(spec, spec), config)
        equal(both, 2 * expected, f"bytes of two layers {spec}")
