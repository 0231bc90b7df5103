"""KV-PLAN: what cannot be planned is named with its value; bounds that are just met are met."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from kvspec.config import KVCacheConfig, KVCacheGroup
from kvspec.errors import CacheMemoryError, ConfigError, PageSizeError
from kvspec.planning import Planner
from kvspec.specs import (
    FullAttentionSpec,
    LayerSpec,
    MambaSpec,
    SlidingWindowMLASpec,
    SlidingWindowSpec,
    UniformTypeKVCacheSpecs,
)
from tests.rules.planning import (
    GIB,
    PROFILE,
    V4,
    chunk,
    cross,
    encoder_only,
    full,
    groups_of,
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

Call = Callable[[Planner], object]


ENCODER = (KVCacheGroup(("a",), encoder_only()),)
LAYOUTS = (KVCacheConfig(9, groups_of(16)), KVCacheConfig(8, groups_of(16)))
BAD: dict[str, tuple[Call, str, object]] = {
    "padding": (
        lambda p: p.spec_properties(full(page_size_padded=65_535), settings()),
        "page_size_padded",
        65_535,
    ),
    "mode": (
        lambda p: p.spec_properties(full(kv_quant_mode="HALF"), settings()),
        "kv_quant_mode",
        "HALF",
    ),
    "ratio": (
        lambda p: p.spec_properties(latent(compress_ratio=3), settings()),
        "compress_ratio",
        3,
    ),
    "spec": (lambda p: p.spec_properties(LayerSpec(16), settings()), "spec", "LayerSpec"),
    "nothing_stored": (
        lambda p: p.spec_properties(MambaSpec(16, (), ()), settings()),
        "page_size_bytes",
        0,
    ),
    "no_specs": (lambda p: p.merge(()), "specs", ()),
    "two_types": (lambda p: p.merge((full(), window(8))), "specs", "SlidingWindowSpec"),
    "a_member": (lambda p: p.merge((full(), full(head_size=64))), "head_size", 64),
    "a_block_size": (lambda p: p.merge((latent(), latent(block_size=32))), "block_size", 32),
    "a_larger_page": (
        lambda p: p.merge((latent(128), latent(576))),
        "page_size_bytes",
        18_432,
    ),
    "two_windows": (
        lambda p: p.merge((full(sliding_window=512), full(sliding_window=256))),
        "sliding_window",
        [256, 512],
    ),
    "two_chunks": (
        lambda p: p.merge((full(attention_chunk_size=64), full(attention_chunk_size=32))),
        "attention_chunk_size",
        [32, 64],
    ),
    "window_and_chunk": (
        lambda p: p.merge((full(sliding_window=512), full(attention_chunk_size=64))),
        "attention_chunk_size",
        64,
    ),
    "no_single_type": (lambda p: p.unify_hybrid(named(full(), state(64))), "disable_hybrid", True),
    "chunk_inside_a_block": (
        lambda p: p.groups(named(chunk(24)), settings()),
        "attention_chunk_size",
        24,
    ),
    "memory_of_one_worker": (
        lambda p: p.plan((named(full()),), settings(), (GIB, 7)),
        "available_memory_bytes",
        (GIB, 7),
    ),
    "no_memory": (
        lambda p: p.plan((named(full()),), settings(), (0,)),
        "available_memory_bytes",
        0,
    ),
    "no_length_fits": (
        lambda p: p.plan((named(full()),), settings(original_max_model_len_tokens=-1), (65_536,)),
        "available_memory_bytes",
        (65_536,),
    ),
    "workers_disagree": (
        lambda p: p.plan((named(full()), named(latent())), settings(), (GIB, GIB)),
        "workers, layer 0",
        latent(),
    ),
    "dcp": (
        lambda p: p.plan((named(window(8)),), settings(dcp_world_size=2), (GIB,)),
        "dcp_world_size",
        2,
    ),
    "pcp": (
        lambda p: p.plan((named(window(8)),), settings(pcp_world_size=3), (GIB,)),
        "pcp_world_size",
        3,
    ),
    "no_layout": (lambda p: p.scheduler_config(()), "configs", ()),
    "layouts_disagree": (lambda p: p.scheduler_config(LAYOUTS), "num_blocks", 8),
    "no_group": (lambda p: p.capacity(KVCacheConfig(9, ()), settings()), "groups", ()),
    "no_need": (
        lambda p: p.capacity(KVCacheConfig(9, ENCODER), settings()),
        "groups",
        ENCODER,
    ),
    "dcp_of_groups": (
        lambda p: p.block_sizes(KVCacheConfig(9, groups_of(16, 24)), settings(dcp_world_size=2)),
        "dcp_world_size",
        2,
    ),
    "pcp_of_groups": (
        lambda p: p.block_sizes(KVCacheConfig(9, groups_of(16, 24)), settings(pcp_world_size=3)),
        "pcp_world_size",
        3,
    ),
    "hash_size": (
        lambda p: p.block_sizes(KVCacheConfig(9, groups_of(16, 24)), settings(hash_block_size=5)),
        "hash_block_size",
        5,
    ),
}


@pytest.mark.rule("KV-PLAN-2", "KV-PLAN-21", "KV-ERR-5")
@pytest.mark.parametrize(("call", "field", "value"), BAD.values(), ids=BAD.keys())
def test_what_cannot_be_planned_is_named_with_its_value(
    planner: Planner, call: Call, field: str, value: object
) -> None:
    with pytest.raises(ConfigError) as caught:
        call(planner)
    assert (caught.value.field, caught.value.value) == (field, value)
    assert caught.value.allowed


def test_a_spec_of_nobody_is_named_where_blocks_are_counted(planner: Planner) -> None:
    """A layer that says what it stores, and no planner knows how it is managed."""
    with pytest.raises(ConfigError) as caught:
        planner.max_memory_usage_bytes(named(LayerSpec(16)), settings())
    assert (caught.value.field, caught.value.value) == ("spec", "LayerSpec")


HIDDEN = hidden(2)


def beside_hidden_states(head_size: int) -> tuple[FullAttentionSpec, SlidingWindowSpec]:
    """Full attention and a window with pages of 8 × `head_size` bytes."""
    small = FullAttentionSpec(2, 1, head_size, "bfloat16")
    return small, replace(
        window(8), block_size=2, num_kv_heads=1, head_size=head_size, head_size_v=head_size
    )


@pytest.mark.rule("KV-PLAN-23")
def test_a_page_of_one_token_of_hidden_states_will_do(planner: Planner) -> None:
    """512 bytes a token: a page of 512 holds one, a page of 504 none, and the error says so."""
    groups = planner.groups(named(*beside_hidden_states(64), HIDDEN), settings())
    assert groups[-1].spec == replace(HIDDEN, block_size=1, page_size_padded=512)
    with pytest.raises(PageSizeError) as caught:
        planner.groups(named(*beside_hidden_states(63), HIDDEN), settings())
    assert (caught.value.layer, caught.value.value, caught.value.wanted) == ("2", 512, 504)


@pytest.mark.rule("KV-PLAN-23")
def test_hidden_states_come_in_groups_as_large_as_the_others(planner: Planner) -> None:
    """Two layers of each type: groups of two, also of hidden states."""
    small, windowed = beside_hidden_states(64)
    layers = named(small, small, windowed, windowed, HIDDEN, HIDDEN, HIDDEN)
    groups = planner.groups(layers, settings())
    assert names_of(groups) == [("0", "1"), ("2", "3"), ("4", "6"), ("5",)]


@pytest.mark.rule("KV-PLAN-7")
def test_a_window_that_becomes_full_attention_keeps_its_members(planner: Planner) -> None:
    """Sizes of keys and values, padding, and the window itself; a chunk likewise."""
    windowed = window(100, head_size=64, head_size_v=32, page_size_padded=30_000)
    chunked = replace(chunk(64), page_size_padded=70_000)
    _, (_, first), (_, second) = planner.unify_hybrid(named(full(), windowed, chunked))
    assert first == full(head_size=64, head_size_v=32, page_size_padded=30_000, sliding_window=100)
    assert second == full(page_size_padded=70_000, attention_chunk_size=64)


@pytest.mark.rule("KV-PLAN-3")
def test_layers_of_cross_attention_are_one_type_and_of_two_types_none(planner: Planner) -> None:
    different = replace(cross(), head_size=64)
    found = planner.uniform_type(named(cross(), different))
    assert found == UniformTypeKVCacheSpecs(16, named(cross(), different))
    for mixed in (named(full(), cross()), named(window(8), chunk(8)), named(state(64), cross())):
        assert planner.uniform_type(mixed) is None


@pytest.mark.rule("KV-PLAN-12")
def test_a_layout_without_layers_has_the_null_block_alone(planner: Planner) -> None:
    assert planner.config_from_groups((), settings(), GIB) == KVCacheConfig(1, ())


@pytest.mark.rule("KV-PLAN-15")
def test_a_layout_of_the_right_size_stays_and_one_without_tensors_shrinks(
    planner: Planner,
) -> None:
    """A second worker has half the memory, a third no layers."""
    workers = (named(full()), named(full()), ())
    plan = planner.plan(workers, settings(), (20 * 65_536, 10 * 65_536, 0))
    assert [cache.num_blocks for cache in plan.configs] == [10, 10, 10]
    sizes = [[tensor.size_bytes for tensor in cache.tensors] for cache in plan.configs]
    assert sizes == [[655_360], [655_360], []]


@pytest.mark.rule("KV-PLAN-12")
def test_less_than_no_memory_holds_no_block(planner: Planner) -> None:
    """Not even one of a single byte."""
    byte = (KVCacheGroup(("a",), MambaSpec(16, ((1,),), ("uint8",))),)
    for memory, num_blocks in ((-1, 0), (0, 0), (1, 1), (7, 7)):
        assert planner.config_from_groups(byte, settings(), memory).num_blocks == num_blocks


@pytest.mark.rule("KV-PLAN-24")
def test_a_warning_says_how_much_of_which_layers(planner: Planner) -> None:
    """Groups of ten: 52 windows leave eight places of sixty empty."""
    layers = named(*[full()] * 10, *[window(8)] * 52)
    (warning,) = planner.plan((layers,), settings(), (GIB,)).warnings
    assert warning.startswith(f"8 padding layers beside 52 of {window(8).kind}:")
    assert "15.38 %" in warning


@pytest.mark.rule("KV-PLAN-7")
def test_a_window_over_latents_keeps_its_members(planner: Planner) -> None:
    """All but its window and its own short blocks."""
    members: dict[str, Any] = {
        "kv_quant_mode": "FP8_PER_TENSOR",
        "cache_dtype_str": "fp8_ds_mla",
        "alignment": 576,
        "compress_ratio": 2,
        "model_version": "deepseek_v4",
    }
    windowed = SlidingWindowMLASpec(8, 1, 512, "uint8", sliding_window=128, **members)
    attention = latent(512, 64, dtype="uint8", **{**members, "compress_ratio": 1})
    _, (_, found) = planner.unify_hybrid(named(attention, windowed))
    expected = latent(512, 64, dtype="uint8", **members)
    assert found == planner.spec_properties(expected, settings()).normalized_spec
    assert (found.block_size, found.compress_ratio) == (64, 2)  # type: ignore[attr-defined]  # a latent


@pytest.mark.rule("KV-PLAN-14")
def test_each_packed_tensor_begins_where_the_last_one_ends(planner: Planner) -> None:
    """Three slots of 65,536 bytes."""
    page = 65_536
    groups = tuple(KVCacheGroup(tuple(names), full()) for names in ("abc", "def"))
    cache = planner.config_from_groups(groups, settings(packed_layout=True), 7 * 3 * page)
    assert [tensor.offset_bytes for tensor in cache.tensors] == [0, page, 2 * page]


@pytest.mark.rule("KV-PLAN-9")
def test_the_profile_counts_one_group_of_several_page_sizes_once(planner: Planner) -> None:
    """64 tokens in blocks of 16: four blocks, each a page of either layer."""
    config = settings(64, policy=PROFILE)
    layers = named(full(), latent())
    plan = planner.plan((layers,), config, (4 * (65_536 + 18_432),))
    assert [cache.num_blocks for cache in plan.configs] == [4]
    with pytest.raises(CacheMemoryError):
        planner.plan((layers,), config, (4 * (65_536 + 18_432) - 1,))


@pytest.mark.rule("KV-PLAN-9", "KV-FULL-8")
def test_bytes_are_whole_numbers(planner: Planner) -> None:
    """Also with sinks: two blocks of them, four of the request, and the null block."""
    with pytest.raises(CacheMemoryError) as caught:
        planner.check_enough_memory(named(sink(32)), settings(64), 65_536)
    assert (caught.value.needed_bytes, type(caught.value.needed_bytes)) == (7 * 65_536, int)


@pytest.mark.rule("KV-PLAN-11", "KV-PLAN-22")
def test_a_group_stays_marked_for_drafting_on_the_worker_that_has_its_layer(
    planner: Planner,
) -> None:
    """The last layer is the drafting head's; a worker without it has no such group."""
    attention, windowed = (
        latent(512, 64, dtype="uint8", compress_ratio=4, **V4),
        (window_over_latents()),
    )
    mine, others = named(attention, windowed), named(attention, first=2)
    plan = planner.plan((others, mine), settings(1_000, use_eagle=True), (GIB, GIB))
    marked = [[group.is_eagle_group for group in cache.groups] for cache in plan.configs]
    assert sorted(map(sum, marked)) == [0, 1]
