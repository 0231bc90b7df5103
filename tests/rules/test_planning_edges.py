"""Rules of planning at the values where one answer turns into another."""

from __future__ import annotations

from dataclasses import dataclass, replace

import pytest

from kvspec.config import KVCacheGroup
from kvspec.errors import CacheMemoryError, ConfigError
from kvspec.planning import Layers, Planner
from kvspec.specs import (
    LayerSpec,
    SlidingWindowMLASpec,
    SlidingWindowSpec,
    TQFullAttentionSpec,
    UniformTypeKVCacheSpecs,
)
from tests.rules.planning import (
    GIB,
    PAGE,
    PROFILE,
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
    state,
    window,
    window_over_latents,
)


@dataclass(frozen=True)
class RingSpec(LayerSpec):
    """A layer from outside the contract."""


@pytest.mark.rule("KV-PLAN-1")
def test_a_slot_of_one_byte_is_a_slot_size(planner: Planner) -> None:
    """16 tokens and 8 heads of one byte each; 0 is none, and the page that of full attention."""
    for slot_bytes, page in ((0, PAGE), (1, 16 * 8), (2, 2 * 16 * 8)):
        spec = TQFullAttentionSpec(16, 8, 128, "bfloat16", tq_slot_size=slot_bytes)
        assert planner.spec_properties(spec, settings()).page_size_bytes == page


@pytest.mark.rule("KV-PLAN-1")
@pytest.mark.parametrize("mode", ["INT8_PER_TOKEN_HEAD", "FP8_PER_TOKEN_HEAD", "NVFP4", "HALF"])
def test_the_mode_changes_nothing_about_latents(planner: Planner, mode: str) -> None:
    """One vector a token, neither key nor value: no scales, no packing, no mode that is unknown."""
    windowed = SlidingWindowMLASpec(16, 1, 96, "bfloat16", sliding_window=77, kv_quant_mode=mode)
    packed = latent(cache_dtype_str="fp8_ds_mla", kv_quant_mode=mode)
    for spec, page in (
        (latent(kv_quant_mode=mode), 16 * 576 * 2),
        (windowed, 16 * 96 * 2),
        (hidden(kv_quant_mode=mode), 16 * 256 * 2),
        (packed, 16 * 656),
    ):
        found = planner.spec_properties(spec, settings())
        assert found.page_size_bytes == found.real_page_size_bytes == page


@pytest.mark.rule("KV-PLAN-2")
def test_a_merged_spec_remembers_the_chunk_of_any_layer(planner: Planner) -> None:
    """The first layer has none; a window likewise."""
    chunked, windowed = full(attention_chunk_size=64), full(sliding_window=512)
    assert planner.merge((full(), chunked)) == chunked
    assert planner.merge((full(), windowed)) == windowed


@pytest.mark.rule("KV-PLAN-3")
def test_encoder_only_layers_are_one_type_whatever_their_sizes(planner: Planner) -> None:
    """Not with another type or longer blocks; windows are one type with windows over latents."""
    wide, narrow = (encoder_only(head_size=size) for size in (128, 64))
    alone = named(wide, narrow)
    assert planner.uniform_type(alone) == UniformTypeKVCacheSpecs(16, alone)
    for other in (full(), cross(), state(64), replace(wide, block_size=32)):
        assert planner.uniform_type(named(wide, other)) is None
    latents = SlidingWindowMLASpec(16, 1, 96, "bfloat16", sliding_window=8)
    windows = named(window(8), latents)
    assert planner.uniform_type(windows) == UniformTypeKVCacheSpecs(16, windows)


@pytest.mark.rule("KV-PLAN-3")
def test_two_types_that_nobody_knows_are_not_one(planner: Planner) -> None:
    """Neither of them is full attention, a window, a chunk, a state or cross attention."""
    unlike = named(encoder_only(), RingSpec(16))
    assert planner.uniform_type(unlike) is None


@pytest.mark.rule("KV-PLAN-7")
def test_the_error_names_the_types_that_no_single_group_holds(planner: Planner) -> None:
    """Each once, as classes; a window has become full attention by then."""
    with pytest.raises(ConfigError) as caught:
        planner.unify_hybrid(named(full(), state(64), state(128), window(8)))
    assert "['FullAttentionSpec', 'MambaSpec']" in str(caught.value)


@pytest.mark.rule("KV-PLAN-5")
def test_hidden_states_stand_beside_a_single_group_too(planner: Planner) -> None:
    """Windows are no full attention, so one type cannot hold both: 5,120 bytes hold ten tokens."""
    windowed = SlidingWindowSpec(16, 1, 80, "bfloat16", sliding_window=8)
    groups = planner.groups(named(windowed, windowed, hidden()), settings())
    assert names_of(groups) == [("0", "1"), ("2",)]
    assert groups[1].spec == hidden(10, page_size_padded=5_120)


@pytest.mark.rule("KV-PLAN-5", "KV-PLAN-23")
def test_hidden_states_alone_are_layers_like_any_other(planner: Planner) -> None:
    """Blocks of 16 and 32 tokens, 512 bytes each: the first grow to 32, and all are of one spec."""
    short, long = hidden(16), hidden(32)
    groups = planner.groups(named(short, long, short), settings())
    assert names_of(groups) == [("0", "1", "2")]
    assert groups[0].spec == long


@pytest.mark.rule("KV-PLAN-9")
def test_a_single_byte_is_too_little_memory_but_not_none(planner: Planner) -> None:
    """A request of 64 tokens needs four blocks, and there is the null block."""
    with pytest.raises(CacheMemoryError) as caught:
        planner.check_enough_memory(named(full()), settings(), 1)
    assert (caught.value.needed_bytes, caught.value.available_bytes) == (5 * PAGE, 1)


def is_just_enough(planner: Planner, layers: Layers, length: int, memory_bytes: int) -> bool:
    """Whether the profile accepts a plan with this memory, and refuses it with a byte less."""
    config = settings(length, 64, block_size=16, policy=PROFILE)
    planner.plan((layers,), config, (memory_bytes,))
    try:
        planner.plan((layers,), config, (memory_bytes - 1,))
    except CacheMemoryError as error:
        return error.needed_bytes == memory_bytes
    return False


@pytest.mark.rule("KV-PLAN-9", "KV-PLAN-12")
def test_the_profile_adds_up_the_pages_of_one_group(planner: Planner) -> None:
    """Two layers of one page size and one of another: a block takes three pages, not four."""
    layers = named(full(), full(), latent())
    assert is_just_enough(planner, layers, 64, 4 * (2 * PAGE + 18_432))


@pytest.mark.rule("KV-PLAN-9", "KV-PLAN-12")
def test_the_profile_counts_groups_of_one_page_size_as_they_are(planner: Planner) -> None:
    """64 tokens: four blocks of full attention, and cdiv(min(8 - 1 + 64, 64), 16) + 1 of it."""
    assert is_just_enough(planner, named(full(), window(8)), 64, (4 + 5) * PAGE)


def two_page_sizes() -> Layers:
    """Full attention with pages of 37,440 (2 layers) and 8,640 bytes, and two windows of 37,440."""
    compressed = latent(512, 256, dtype="uint8", compress_ratio=4, **V4)
    indexer = latent(132, 256, dtype="uint8", compress_ratio=4, **{**V4, "cache_dtype_str": None})
    return named(compressed, compressed, indexer, window_over_latents(), window_over_latents())


@pytest.mark.rule("KV-PLAN-9", "KV-PLAN-22")
def test_the_profile_counts_two_page_sizes_in_two_groups(planner: Planner) -> None:
    """One block of 256 tokens, cdiv(min(128 - 1 + 64, 256), 64) + 1 of windows, each twice both."""
    assert is_just_enough(planner, two_page_sizes(), 256, (1 + 4) * 2 * (37_440 + 8_640))


@pytest.mark.rule("KV-PLAN-14", "KV-PLAN-22")
def test_two_page_sizes_side_by_side_are_packed(planner: Planner) -> None:
    """Nobody asked for it: the stride is 2 · 37,440 + 8,640 bytes."""
    config = settings(256, 64, block_size=256)
    groups = planner.groups(two_page_sizes(), config)
    assert names_of(groups) == [("0", "1", "2"), ("3", "4")]
    cache = planner.config_from_groups(groups, config, 83_520)
    assert [(t.shared_by, t.offset_bytes, t.block_stride_bytes) for t in cache.tensors] == [
        (("0", "3"), 0, 83_520),
        (("1", "4"), 37_440, 83_520),
        (("2",), 74_880, 83_520),
    ]


@pytest.mark.rule("KV-PLAN-15")
def test_a_tensor_that_shrinks_has_a_whole_number_of_bytes(planner: Planner) -> None:
    """Ten blocks and seven: both seven, and no size is a float."""
    plan = planner.plan((named(full()), named(full())), settings(), (10 * PAGE, 7 * PAGE))
    sizes = [tensor.size_bytes for cache in plan.configs for tensor in cache.tensors]
    assert [(size, type(size)) for size in sizes] == [(7 * PAGE, int)] * 2


@pytest.mark.rule("KV-PLAN-21")
def test_a_chunk_of_whole_blocks_is_planned(planner: Planner) -> None:
    """Of one block as of four, in a group of equal layers or of one type."""
    for size in (16, 64):
        (group,) = planner.groups(named(chunk(size), chunk(size)), settings())
        assert group == KVCacheGroup(("0", "1"), chunk(size))
        unlike = named(chunk(size), replace(chunk(size), head_size=64))
        (group,) = planner.groups(unlike, settings())
        assert group.spec == UniformTypeKVCacheSpecs(16, unlike)


@pytest.mark.rule("KV-PLAN-22")
def test_a_window_with_a_page_size_of_full_attention_needs_no_padding(planner: Planner) -> None:
    """64 · 512 bytes both, without an alignment: the windows' spec stays as it is."""
    attention = latent(512, 64, dtype="uint8", model_version="deepseek_v4")
    windowed = window_over_latents(cache_dtype_str=None, alignment=None)
    _, group = planner.groups(named(attention, windowed), settings())
    assert group.spec == UniformTypeKVCacheSpecs(64, (("1", windowed),))


@pytest.mark.rule("KV-PLAN-24")
def test_missing_layers_are_reported_for_two_groups(planner: Planner) -> None:
    """Ten layers and fourteen are two groups of fourteen: four are missing beside ten."""
    layers = named(*[full()] * 10, *[window(8)] * 14)
    (warning,) = planner.plan((layers,), settings(), (GIB,)).warnings
    assert warning.startswith(f"4 padding layers beside 10 of {full().kind}:")
    assert "40.00 %" in warning
