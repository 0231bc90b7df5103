"""Examples of planning: pages, specs and groups (KV-PLAN-1 … KV-PLAN-8)."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from kvcheck.rules.examples.bench import Bench
from kvcheck.rules.examples.example import example
from kvcheck.rules.examples.plan_specs import (
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
def pages(bench: Bench) -> None:
    """Pages have the bytes of their type."""
    for spec, page, real in PAGES:
        found = bench.planner.spec_properties(spec, settings())
        sizes = (found.page_size_bytes, found.real_page_size_bytes, found.kind)
        bench.equal(f"the page of {spec}", (page, real, spec.kind), sizes)
    compressed = latent(512, 64, dtype="uint8", compress_ratio=4, **V4)
    found = bench.planner.spec_properties(compressed, settings())
    expected = (16, replace(compressed, page_size_padded=9_792))
    bench.equal("slots and padding", expected, (found.storage_block_size, found.normalized_spec))
    for spec, field in IMPOSSIBLE:
        properties = bench.planner.spec_properties
        bench.raises(f"the page of {spec}", ConfigError, properties, spec, settings(), field=field)


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
def merging(bench: Bench) -> None:
    """Specs merge when they agree in all that matters."""
    for specs, merged in MERGED:
        if merged is None:
            bench.raises(f"merging {specs}", ConfigError, bench.planner.merge, specs)
        else:
            bench.equal(f"merging {specs}", merged, bench.planner.merge(specs))
        is_uniform = merged is not None or not specs
        bench.equal(f"is_uniform of {specs}", is_uniform, bench.planner.is_uniform(named(*specs)))


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
def one_type(bench: Bench) -> None:
    """Layers of one type share a group although their pages differ."""
    for layers, is_one in ONE_TYPE:
        expected = UniformTypeKVCacheSpecs(16, layers) if is_one else None
        bench.equal(f"one type of {layers}", expected, bench.planner.uniform_type(layers))


@example("KV-PLAN-4")
def equal_pages(bench: Bench) -> None:
    """Blocks grow, pages are padded, or it is an error that names the layer."""
    unify = bench.planner.unify_page_size
    grown = named(large(head_size=192), sliding(8, block_size=48, head_size=64))
    found = unify(named(large(head_size=192), sliding(8, head_size=64)))
    bench.equal("a third of the head size", grown, found)
    groups = bench.planner.groups(named(large(head_size=192), sliding(8, head_size=64)), settings())
    bench.equal("block sizes of groups", [16, 48], [group.spec.block_size for group in groups])
    strided = sliding(8, head_size=80, indexes_kv_by_block_stride=True)
    padded = named(large(head_size=192), replace(strided, page_size_padded=98_304))
    bench.equal("a page that does not divide", padded, unify(named(large(head_size=192), strided)))
    wrong = (
        (named(large(head_size=192), sliding(8, head_size=80)), 40_960),
        (named(state(98_304), state(64)), 64),
        (named(large(), large(head_size=64, page_size_padded=32_768)), 32_768),
    )
    for layers, page in wrong:
        error = bench.raises(f"pages of {layers}", PageSizeError, unify, layers)
        shown = (getattr(error, "layer", None), getattr(error, "value", None))
        bench.equal("layer and page in the error", ("1", page), shown)


@example("KV-PLAN-5")
def first_way(bench: Bench) -> None:
    """Groups are made by the first way that applies."""
    groups = bench.planner.groups
    bench.equal("no layers", (), groups((), settings()))
    merged = groups(named(large(), large(sliding_window=8)), settings())
    bench.equal("merged", [large(sliding_window=8)], [group.spec for group in merged])
    layers = named(large(), latent())
    expected = [UniformTypeKVCacheSpecs(16, layers)]
    bench.equal("of one type", expected, [group.spec for group in groups(layers, settings())])
    several = groups(named(*[large()] * 10, *[sliding(8)] * 20), settings(use_eagle=True))
    bench.equal("several", [10, 10, 10], [len(group.layer_names) for group in several])
    bench.equal("flags", [False] * 3, [group.is_eagle_group for group in several])


@example("KV-PLAN-6")
def group_sizes(bench: Bench) -> None:
    """A group is as long as the rarest spec, and layers are dealt out."""
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
        bench.equal(f"{num_full} full layers and {num_windows} windows", sizes, found)
    layers = named(large(), *[sliding(8)] * 6, *[large()] * 2)
    dealt = [("0", "7", "8"), ("1", "3", "5"), ("2", "4", "6")]
    bench.equal("six windows", dealt, names_of(bench.planner.groups(layers, settings())))


@example("KV-PLAN-7")
def no_hybrid(bench: Bench) -> None:
    """Without hybrid support windows become full attention that remembers them."""
    unify, groups = bench.planner.unify_hybrid, bench.planner.groups
    windowed = sliding(128, head_size_v=64, indexes_kv_by_block_stride=True)
    expected = named(large(), large(head_size_v=64, sliding_window=128),
                     large(attention_chunk_size=64))  # fmt: skip
    bench.equal("window and chunk", expected, unify(named(large(), windowed, local(64))))
    made = groups(named(large(), windowed, local(64)), settings(disable_hybrid=True))
    bench.equal("as a group", [UniformTypeKVCacheSpecs(16, expected)], [g.spec for g in made])
    _, (_, over) = unify(named(latent(512, 256, dtype="uint8", **V4), window_over_latents()))
    shown = (type(over), over.block_size)
    bench.equal("a window over latents", (MLAAttentionSpec, 256), shown)
    for layers in (named(large(), large()), named(sliding(8)), named(large(), latent()), ()):
        bench.equal("layers of one type", layers, unify(layers))
    no_way = (named(large(), sliding(8), state(64)), named(sliding(8), sliding(9)),
              named(large(), large(32)))  # fmt: skip
    config = settings(disable_hybrid=True)
    for layers in no_way:
        what = f"one group of {layers}"
        bench.raises(what, ConfigError, groups, layers, config, field="disable_hybrid")


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
def bounds(bench: Bench) -> None:
    """One request holds at most so many blocks of a type."""
    for spec, members, blocks in BOUNDS:
        config = settings(**{"max_model_len_tokens": 100, **members})
        found = bench.planner.spec_properties(spec, config)
        expected = blocks * found.page_size_bytes
        bench.equal(f"bytes of {spec} at most", expected, found.max_memory_usage_bytes)
        both = bench.planner.max_memory_usage_bytes(named(spec, spec), config)
        bench.equal(f"bytes of two layers {spec}", 2 * expected, both)


PLAN_GROUPS = (
    pages, merging, one_type, equal_pages, first_way, group_sizes, no_hybrid, bounds,
)  # fmt: skip
