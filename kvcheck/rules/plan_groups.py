"""Examples of planning: pages, specs and groups (KV-PLAN-1 … KV-PLAN-8)."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from kvcheck.rules.bench import Bench
from kvcheck.rules.example import cases, example
from kvcheck.rules.judging import equal, holds, raises
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
    ChunkedLocalAttentionSpec,
    FullAttentionSpec,
    HiddenStateCacheSpec,
    LayerSpec,
    MambaSpec,
    MLAAttentionSpec,
    SlidingWindowMLASpec,
    SlidingWindowSpec,
    TQFullAttentionSpec,
    UniformTypeKVCacheSpecs,
)


@dataclass(frozen=True)
class RingSpec(LayerSpec):
    """A layer from outside the contract."""


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
    *(
        (TQFullAttentionSpec(16, 8, 128, "bfloat16", tq_slot_size=slot), page, page)
        for slot, page in ((0, 65_536), (1, 128), (2, 256), (40, 5_120))
    ),
    (MambaSpec(64, ((2, 3), (4,)), ("float32", "float16")), 32, None),
    (large(page_size_padded=70_000), 70_000, 65_536),
    (state(100, page_size_padded=128), 128, None),
    (replace(large(), dtype="uint8", kv_quant_mode="FP8_PER_TENSOR"), 32_768, 32_768),
    (replace(large(), dtype="int8", kv_quant_mode="INT8_PER_TOKEN_HEAD"), 33_792, 32_768),
    (replace(large(), dtype="uint8", kv_quant_mode="NVFP4"), 18_432, 18_432),
    (UniformTypeKVCacheSpecs(16, named(large(), latent())), 83_968, None),
)


def of_mode(mode: str) -> tuple[tuple[LayerSpec, int], ...]:
    """Latents and hidden states: one vector a token, so no mode adds scales or packs anything."""
    return (
        (latent(kv_quant_mode=mode), 18_432),
        (SlidingWindowMLASpec(16, 1, 96, "bfloat16", sliding_window=77, kv_quant_mode=mode), 3_072),
        (HiddenStateCacheSpec(16, 1, 256, "bfloat16", kv_quant_mode=mode), 8_192),
        (latent(cache_dtype_str="fp8_ds_mla", kv_quant_mode=mode), 10_496),
    )


@example("KV-PLAN-1")
def pages_have_the_bytes_of_their_type(bench: Bench) -> None:
    for spec, page, real in PAGES:
        found = bench.planner.spec_properties(spec, settings())
        sizes = (found.page_size_bytes, found.real_page_size_bytes, found.kind)
        equal(sizes, (page, real, spec.kind), f"the page of {spec}")


@cases("INT8_PER_TOKEN_HEAD", "FP8_PER_TOKEN_HEAD", "NVFP4", "HALF")
@example("KV-PLAN-1")
def latents_have_no_scales_whatever_their_mode(bench: Bench, mode: str) -> None:
    for spec, page in of_mode(mode):
        found = bench.planner.spec_properties(spec, settings())
        both = (found.page_size_bytes, found.real_page_size_bytes)
        equal(both, (page, page), f"the page of {spec}")


@example("KV-PLAN-1")
def a_spec_has_properties_besides_its_page(bench: Bench) -> None:
    """Besides the page a spec has slots, a window, and the padding of its alignment."""
    compressed = latent(512, 64, dtype="uint8", compress_ratio=4, **V4)
    padded = replace(compressed, page_size_padded=9_792)
    for spec, *expected in ((compressed, 16, None, padded), (sliding(100), 16, 100, sliding(100))):
        found = bench.planner.spec_properties(spec, settings())
        shown = [found.storage_block_size, found.sliding_window_tokens, found.normalized_spec]
        equal(shown, expected, f"slots, window and padding of {spec}")
    aligned = bench.planner.spec_properties(latent(576, alignment=576), settings())
    equal(aligned.page_size_bytes, 18_432)


PACKED = latent(cache_dtype_str="fp8_ds_mla")
"""A page of these has the same bytes whatever the number of heads."""

MERGED: tuple[tuple[tuple[LayerSpec, ...], LayerSpec | None], ...] = (
    ((large(), large()), large()),
    ((large(), large(sliding_window=512)), large(sliding_window=512)),
    ((large(), large(attention_chunk_size=64)), large(attention_chunk_size=64)),
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
    ((latent(), large()), None),
    ((large(), sink(16)), None),
    ((sink(16), sink(16)), sink(16)),
    ((sink(16), sink(32)), None),
    ((latent(576), latent(128)), latent(576)),
    ((latent(128), latent(576)), None),
    ((latent(576), latent(128, block_size=32)), None),
    ((latent(), latent(cache_dtype_str="fp8_ds_mla")), None),
    ((replace(latent(), num_kv_heads=2), latent()), None),
    ((PACKED, replace(PACKED, num_kv_heads=2)), None),
    ((window_over_latents(), window_over_latents()), window_over_latents()),
    ((sliding(8), sliding(8)), sliding(8)),
    ((sliding(8), sliding(9)), None),
    ((sliding(8), local(16)), None),
    ((), None),
)


@cases(*MERGED)
@example("KV-PLAN-2", since="0.2")
def specs_merge_when_they_agree_in_all_that_matters(
    bench: Bench, specs: tuple[LayerSpec, ...], merged: LayerSpec | None
) -> None:
    if merged is None:
        with raises(ConfigError):
            bench.planner.merge(specs)
    else:
        equal(bench.planner.merge(specs), merged, f"merging {specs}")


@cases(*MERGED)
@example("KV-PLAN-2", since="0.2")
def layers_are_uniform_if_they_merge(
    bench: Bench, specs: tuple[LayerSpec, ...], merged: LayerSpec | None
) -> None:
    is_uniform = merged is not None or not specs
    equal(bench.planner.is_uniform(named(*specs)), is_uniform, f"is_uniform of {specs}")


@cases(
    ({"num_kv_heads": 2}, {}, True),
    ({}, {"num_kv_heads": 2}, False),
    ({"head_size": 576}, {}, True),
    ({}, {"sliding_window": 129}, False),
    ({}, {"compress_ratio": 4}, False),
    ({}, {"model_version": None}, False),
    ({}, {"block_size": 32}, False),
)
@example("KV-PLAN-26", since="0.3")
def windows_over_latents_merge_into_the_first(
    bench: Bench, first: dict[str, Any], second: dict[str, Any], merges: bool
) -> None:
    latents = window_over_latents(cache_dtype_str=None, alignment=None)
    specs = [replace(latents, **members) for members in (first, second)]
    if merges:
        equal(bench.planner.merge(specs), specs[0])
        return
    with raises(ConfigError):
        bench.planner.merge(specs)


NARROW = replace(ENCODER, head_size=64)
WINDOW_OF_LATENTS = SlidingWindowMLASpec(16, 1, 96, "bfloat16", sliding_window=8)
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
    (named(ENCODER), True),
    (named(ENCODER, NARROW), True),
    (named(sliding(8), WINDOW_OF_LATENTS), True),
    *(
        (named(ENCODER, other), False)
        for other in (large(), CROSS, state(64), replace(ENCODER, block_size=32), RingSpec(16))
    ),
    (named(large(), CROSS), False),
    (named(sliding(8), local(8)), False),
    (named(state(64), CROSS), False),
    ((), False),
)


@cases(*ONE_TYPE)
@example("KV-PLAN-3")
def layers_of_one_type_share_a_group_although_their_pages_differ(
    bench: Bench, layers: Layers, is_one: bool
) -> None:
    expected = UniformTypeKVCacheSpecs(16, layers) if is_one else None
    equal(bench.planner.uniform_type(layers), expected, f"one type of {layers}")


@example("KV-PLAN-4")
def blocks_grow_or_pages_are_padded(bench: Bench) -> None:
    """Blocks grow, pages are padded, or it is an error that names the layer."""
    unify = bench.planner.unify_page_size
    grown = named(large(head_size=192), sliding(8, block_size=48, head_size=64))
    found = unify(named(large(head_size=192), sliding(8, head_size=64)))
    equal(found, grown, "a third of the head size")
    equal(tuple(unify(())), ())
    groups = bench.planner.groups(named(large(head_size=192), sliding(8, head_size=64)), settings())
    equal([group.spec.block_size for group in groups], [16, 48])
    strided = sliding(8, head_size=80, indexes_kv_by_block_stride=True)
    padded = named(large(head_size=192), replace(strided, page_size_padded=98_304))
    equal(unify(named(large(head_size=192), strided)), padded)
    wrong = (
        (named(large(head_size=192), sliding(8, head_size=80)), 40_960),
        (named(state(98_304), state(64)), 64),
        (named(large(), large(head_size=64, page_size_padded=32_768)), 32_768),
    )
    for layers, page in wrong:
        largest = bench.planner.spec_properties(layers[0][1], settings()).page_size_bytes
        with raises(PageSizeError, layer="1", value=page, wanted=largest) as error:
            unify(layers)
        holds(isinstance(error.value, NotImplementedError))


@example("KV-PLAN-5")
def groups_are_made_by_the_first_way_that_applies(bench: Bench) -> None:
    groups = bench.planner.groups
    equal(groups((), settings()), ())
    merged = groups(named(large(), large(sliding_window=8)), settings())
    equal([group.spec for group in merged], [large(sliding_window=8)])
    layers = named(large(), latent())
    expected = [UniformTypeKVCacheSpecs(16, layers)]
    equal([group.spec for group in groups(layers, settings())], expected)
    equal(names_of(merged), [("0", "1")])
    several = groups(named(*[large()] * 10, *[sliding(8)] * 20), settings(use_eagle=True))
    equal([len(group.layer_names) for group in several], [10, 10, 10])
    equal([group.is_eagle_group for group in several], [False] * 3)
    kinds = [large(), sliding(8), sliding(8)]
    equal([group.spec for group in several], kinds)


@example("KV-PLAN-5", "KV-PLAN-23")
def hidden_states_stand_beside_a_single_group_and_alone(bench: Bench) -> None:
    """Hidden states stand beside a single group, too, and alone are layers like any other."""
    hidden = HiddenStateCacheSpec(16, 1, 256, "bfloat16")
    windowed = replace(sliding(8, head_size=80), num_kv_heads=1)
    beside = bench.planner.groups(named(windowed, windowed, hidden), settings())
    equal(names_of(beside), [("0", "1"), ("2",)])
    filling = replace(hidden, block_size=10, page_size_padded=5_120)
    equal(beside[1].spec, filling)
    long = replace(hidden, block_size=32)
    alone = bench.planner.groups(named(hidden, long, hidden), settings())
    equal(names_of(alone), [("0", "1", "2")])
    equal(alone[0].spec, long)


@example("KV-PLAN-6")
def a_group_is_as_long_as_the_rarest_spec(bench: Bench) -> None:
    """A group is as long as the rarest spec, and layers are dealt out."""
    dealings = (
        (10, 52, [10, 9, 9, 9, 9, 8, 8]),
        (10, 14, [10, 14]),
        (10, 15, [10, 8, 7]),
        (2, 3, [2, 2, 1]),
        (3, 4, [3, 4]),
    )
    for num_full, num_windows, sizes in dealings:
        layers = named(*[large()] * num_full, *[sliding(8)] * num_windows)
        found = [len(names) for names in names_of(bench.planner.groups(layers, settings()))]
        equal(found, sizes, f"{num_full} full layers and {num_windows} windows")
    layers = named(large(), *[sliding(8)] * 6, *[large()] * 2)
    dealt = [("0", "7", "8"), ("1", "3", "5"), ("2", "4", "6")]
    equal(names_of(bench.planner.groups(layers, settings())), dealt)


@example("KV-PLAN-7")
def without_hybrid_support_windows_become_full_attention_that_remembers_them(bench: Bench) -> None:
    unify, groups = bench.planner.unify_hybrid, bench.planner.groups
    members: dict[str, Any] = {"head_size_v": 64, "kv_quant_mode": "NVFP4"}
    windowed = sliding(128, indexes_kv_by_block_stride=True, **members)
    padded = replace(local(64), page_size_padded=70_000)
    expected = named(large(), large(sliding_window=128, **members),
                     large(attention_chunk_size=64, page_size_padded=70_000))  # fmt: skip
    equal(unify(named(large(), windowed, padded)), expected)
    one = named(large(), replace(windowed, page_size_padded=80_000))
    remembered = large(sliding_window=128, page_size_padded=80_000, **members)
    equal(unify(one), named(large(), remembered))
    made = groups(named(large(), windowed, padded), settings(disable_hybrid=True))
    equal([g.spec for g in made], [UniformTypeKVCacheSpecs(16, expected)])
    for layers in (named(large(), large()), named(sliding(8)), named(large(), latent()), ()):
        equal(unify(layers), layers)
    no_way = (named(large(), sliding(8), state(64)), named(sliding(8), sliding(9)),
              named(large(), large(32)))  # fmt: skip
    config = settings(disable_hybrid=True)
    for layers in no_way:
        with raises(ConfigError, field="disable_hybrid"):
            groups(layers, config)


@example("KV-PLAN-7")
def a_window_over_latents_takes_the_blocks_of_full_attention(
    bench: Bench,
) -> None:
    unify = bench.planner.unify_hybrid
    _, (_, over) = unify(named(latent(512, 256, dtype="uint8", **V4), window_over_latents()))
    shown = (type(over), over.block_size, getattr(over, "page_size_padded", None))
    equal(shown, (MLAAttentionSpec, 256, 149_760), "its type, block and page")
    members: dict[str, Any] = {**V4, "kv_quant_mode": "FP8_PER_TENSOR", "compress_ratio": 2}
    windowed = SlidingWindowMLASpec(8, 1, 512, "uint8", sliding_window=128, **members)
    attention = latent(512, 64, dtype="uint8", **{**members, "compress_ratio": 1})
    _, (_, found) = unify(named(attention, windowed))
    expected = latent(512, 64, dtype="uint8", **members)
    normalized = bench.planner.spec_properties(expected, settings()).normalized_spec
    equal(found, normalized, "its other members")


BOUNDS: tuple[tuple[LayerSpec, dict[str, Any], int], ...] = (
    (large(), {}, 7),
    (large(), {"dcp_world_size": 2, "pcp_world_size": 2}, 2),
    (latent(), {}, 7),
    (sliding(6, block_size=4), {"max_num_batched_tokens": 4}, 4),
    (sliding(6, block_size=4), {"max_model_len_tokens": 5}, 3),
    (sliding(17), {"max_model_len_tokens": 1000}, 3),
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


@cases(*BOUNDS)
@example("KV-PLAN-8")
def one_request_holds_at_most_so_many_blocks_of_a_type(
    bench: Bench, spec: LayerSpec, members: dict[str, Any], blocks: int
) -> None:
    config = settings(**{"max_model_len_tokens": 100, **members})
    found = bench.planner.spec_properties(spec, config)
    expected = blocks * found.page_size_bytes
    capped = isinstance(spec, ChunkedLocalAttentionSpec | SlidingWindowSpec)
    most = found.max_admission_blocks_per_request
    equal(most, blocks if capped else None, f"blocks of {spec} at most")
    equal(found.max_memory_usage_bytes, expected, f"bytes of {spec} at most")
    both = bench.planner.max_memory_usage_bytes(named(spec, spec), config)
    equal(both, 2 * expected, f"bytes of two layers {spec}")
