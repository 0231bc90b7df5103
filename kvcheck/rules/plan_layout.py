"""Examples of planning: workers, tensors and the rarer layouts (KV-PLAN-11 …)."""

from __future__ import annotations

from dataclasses import replace

from kvcheck.rules.bench import Bench
from kvcheck.rules.example import cases, example
from kvcheck.rules.judging import equal, holds, raises
from kvcheck.rules.plan_specs import (
    CROSS,
    GIB,
    PAGE,
    V4,
    large,
    latent,
    named,
    names_of,
    settings,
    shared_by,
    sliding,
    window_over_latents,
)
from kvspec.config import KVCacheConfig, KVCacheGroup, KVCacheTensor
from kvspec.errors import PageSizeError
from kvspec.planning import Layers
from kvspec.specs import (
    FullAttentionSpec,
    HiddenStateCacheSpec,
    LayerSpec,
    SlidingWindowMLASpec,
    SlidingWindowSpec,
    UniformTypeKVCacheSpecs,
)


@example("KV-PLAN-11")
def all_workers_number_the_groups_alike(bench: Bench) -> None:
    """A group of which a worker has no layer stays there, empty; one of one type lists its own."""
    first = (("full.0", large()), ("window.1", sliding(8)))
    second = (("window.2", sliding(8)),)
    plan = bench.planner.plan((first, second), settings(), (GIB, GIB))
    expected = [[("full.0",), ("window.1",), ()], [(), (), ("window.2",)]]
    equal([names_of(cache.groups) for cache in plan.configs], expected)
    specs = [[group.spec for group in cache.groups] for cache in plan.configs]
    equal(specs[0], specs[1])
    one, other = (("a", large()),), (("b", latent()),)
    plan = bench.planner.plan((one, other), settings(), (GIB, GIB))
    own = [UniformTypeKVCacheSpecs(16, one), UniformTypeKVCacheSpecs(16, other)]
    equal([cache.groups[0].spec for cache in plan.configs], own)
    same = bench.planner.plan((named(large()),) * 2, settings(), (GIB, GIB))
    equal([names_of(cache.groups) for cache in same.configs], [[("0",)]] * 2)


@example("KV-PLAN-11")
def workers_without_layers_limit_nothing(bench: Bench) -> None:
    plan = bench.planner.plan((named(large()), ()), settings(), (10 * PAGE, 0))
    blocks = [(cache.num_blocks, len(cache.tensors)) for cache in plan.configs]
    equal(blocks, [(10, 1), (10, 0)])
    equal(names_of(plan.configs[1].groups), [()])
    stages = (named(large()), named(large(), first=1), ())
    plan = bench.planner.plan(stages, settings(), (100 * PAGE, 80 * PAGE, 0))
    blocks = [(cache.num_blocks, len(cache.tensors)) for cache in plan.configs]
    equal(blocks, [(80, 1), (80, 1), (80, 0)])
    empty = bench.planner.plan(((), ()), settings(), (0, 0))
    equal(empty.configs, (KVCacheConfig(1, ()),) * 2)


@example("KV-PLAN-11", "KV-PLAN-22")
def the_worker_that_has_the_last_layer_has_the_eagle_group(bench: Bench) -> None:
    attention = latent(512, 64, dtype="uint8", compress_ratio=4, **V4)
    mine, others = named(attention, window_over_latents()), named(attention, first=2)
    plan = bench.planner.plan((others, mine), settings(1_000, use_eagle=True), (GIB, GIB))
    flags = [[group.is_eagle_group for group in cache.groups] for cache in plan.configs]
    equal(sorted(map(sum, flags)), [0, 1])


@example("KV-PLAN-13")
def layer_i_of_each_group_shares_tensor_i_and_one_group_shares_nothing(bench: Bench) -> None:
    groups = tuple(KVCacheGroup(tuple(names), large()) for names in ("ab", "cd", "e"))
    cache = bench.planner.config_from_groups(groups, settings(), 7 * 2 * PAGE)
    equal(shared_by(cache), [("a", "c", "e"), ("b", "d")], "tensors of three groups")
    sizes = {(tensor.size_bytes, tensor.block_stride_bytes) for tensor in cache.tensors}
    equal(sizes, {(7 * PAGE, None)}, "their sizes")
    layers = (("a", large()), ("b", latent()))
    group = KVCacheGroup(("a", "b"), UniformTypeKVCacheSpecs(16, layers))
    cache = bench.planner.config_from_groups((group,), settings(), 3 * (PAGE + 18_432))
    found = [(tensor.shared_by, tensor.size_bytes) for tensor in cache.tensors]
    equal(found, [(("a",), 3 * PAGE), (("b",), 3 * 18_432)], "tensors of one group")


@example("KV-PLAN-14")
def packed_tensors_lie_side_by_side_within_a_block(bench: Bench) -> None:
    """The stride is two slots of 65,536 bytes, and the second begins in its middle."""
    groups = tuple(KVCacheGroup(tuple(names), large()) for names in ("ab", "cd"))
    config = settings(packed_layout=True)
    cache = bench.planner.config_from_groups(groups, config, 7 * 2 * PAGE)
    expected = (
        KVCacheTensor(14 * PAGE, ("a", "c"), 0, 2 * PAGE),
        KVCacheTensor(14 * PAGE, ("b", "d"), PAGE, 2 * PAGE),
    )
    equal(cache.tensors, expected, "two tensors")
    alone = bench.planner.config_from_groups(groups[:1], config, 7 * 2 * PAGE)
    equal(alone.tensors[0], KVCacheTensor(7 * PAGE, ("a",)), "one group")
    three = tuple(KVCacheGroup(tuple(names), large()) for names in ("abc", "def"))
    cache = bench.planner.config_from_groups(three, config, 7 * 3 * PAGE)
    equal([tensor.offset_bytes for tensor in cache.tensors], [0, PAGE, 2 * PAGE])


@example("KV-PLAN-15")
def all_workers_get_the_smallest_number_of_blocks(bench: Bench) -> None:
    """Tensors shrink to whole numbers of bytes."""
    stages = (named(large()), named(large(), first=1))
    plan = bench.planner.plan(stages, settings(), (100 * PAGE + 5, 80 * PAGE + 9))
    equal([cache.num_blocks for cache in plan.configs], [80, 80])
    sizes = [[tensor.size_bytes for tensor in cache.tensors] for cache in plan.configs]
    equal(sizes, [[5_242_880], [5_242_880]])
    holds(all(type(size) is int for listed in sizes for size in listed))


@example("KV-PLAN-16")
def the_scheduler_works_with_the_first_layout(bench: Bench) -> None:
    """A group of one type is its first layer's spec there."""
    plan = bench.planner.plan((named(latent(), large()),) * 2, settings(), (GIB, GIB))
    first = plan.configs[0]
    expected = replace(first, groups=(replace(first.groups[0], spec=latent()),))
    equal(bench.planner.scheduler_config(plan.configs), expected)
    groups = tuple(replace(group, layer_names=("other",)) for group in first.groups)
    found = bench.planner.scheduler_config((first, replace(first, groups=groups)))
    equal(found.groups[0].layer_names, first.groups[0].layer_names)


COMPRESSED = latent(512, 256, dtype="uint8", compress_ratio=4, **V4)
INDEXER = latent(132, 256, dtype="uint8", compress_ratio=4, **{**V4, "cache_dtype_str": None})
SPARSE = latent(512, 256, dtype="uint8", compress_ratio=128, **V4)
SPARSE_WIDE = latent(512, 256, dtype="uint8", compress_ratio=1, **V4)
WINDOW = window_over_latents()


def version_4(num_windows: int) -> Layers:
    """Five layers of each of two page sizes, one of a third, and windows behind them."""
    return named(*[COMPRESSED, INDEXER] * 5, SPARSE, *[WINDOW] * num_windows)


@example("KV-PLAN-22")
def latents_that_mix_page_sizes_lie_side_by_side_in_a_block(bench: Bench) -> None:
    """Eight windows beside five: two groups of four; a tensor per slot and page size."""
    config = settings(256, 64, block_size=256, use_eagle=True)
    groups = bench.planner.groups(version_4(8), config)
    found = [(len(group.layer_names), group.is_eagle_group) for group in groups]
    equal(found, [(11, False), (4, False), (4, True)], "layers and flags")
    equal(names_of(groups)[1], ("11", "13", "15", "17"))
    cache = bench.planner.config_from_groups(groups, config, 10 * 232_128 + 1)
    strides = {tensor.block_stride_bytes for tensor in cache.tensors}
    equal((len(cache.tensors), strides, cache.num_blocks), (11, {232_128}, 10))
    mixed = (*version_4(5), ("full", FullAttentionSpec(256, 1, 64, "bfloat16")))
    with raises(PageSizeError):
        bench.planner.groups(mixed, settings())


@example("KV-PLAN-25", "KV-PLAN-22", since="0.3")
def windows_of_one_length_share_groups(bench: Bench) -> None:
    """Of two page sizes that no group of full attention has, and of two that both have."""
    small = replace(window_over_latents(cache_dtype_str=None), head_size=64)
    large_pages = named(*[SPARSE_WIDE] * 3, *[WINDOW, small] * 3)
    config = settings(256, 64, block_size=256)
    groups = bench.planner.groups(large_pages, config)
    equal(names_of(groups), [("0", "1", "2"), ("3", "5", "7"), ("4", "6", "8")])
    both = named(*[COMPRESSED, INDEXER] * 3, *[WINDOW] * 3, *[small] * 3)
    found = names_of(bench.planner.groups(both, config))[1:]
    equal(found, [("6", "9", "7", "10", "8", "11")], "tuple by tuple")
    odd = named(*[COMPRESSED] * 4, *[WINDOW] * 4, replace(WINDOW, sliding_window=64))
    equal([len(names) for names in names_of(bench.planner.groups(odd, config))], [4, 4, 1])
    equals = named(*[COMPRESSED] * 4, *[WINDOW] * 6)  # 4 and 6 both pad 2
    equal([len(names) for names in names_of(bench.planner.groups(equals, config))], [4, 6])


@cases((8, [4, 4]), (6, [6]), (7, [7]), (10, [5, 5]), (11, [6, 5]))
@example("KV-PLAN-25", since="0.3")
def the_group_size_pads_least(bench: Bench, num_windows: int, sizes: list[int]) -> None:
    """Beside five layers of full attention of each page size."""
    groups = bench.planner.groups(version_4(num_windows), settings(256, 64, block_size=256))
    equal([len(group.layer_names) for group in groups[1:]], sizes)


@example("KV-PLAN-14", "KV-PLAN-22")
def two_page_sizes_side_by_side_are_packed(bench: Bench) -> None:
    """Nobody asked for it: the stride is 2 · 37,440 + 8,640 bytes."""
    config = settings(256, 64, block_size=256)
    layers = named(COMPRESSED, COMPRESSED, INDEXER, WINDOW, WINDOW)
    groups = bench.planner.groups(layers, config)
    equal(names_of(groups), [("0", "1", "2"), ("3", "4")])
    cache = bench.planner.config_from_groups(groups, config, 83_520)
    found = [(t.shared_by, t.offset_bytes, t.block_stride_bytes) for t in cache.tensors]
    slots = ((("0", "3"), 0), (("1", "4"), 37_440), (("2",), 74_880))
    equal(found, [(*slot, 83_520) for slot in slots])


SHORT = SlidingWindowMLASpec(
    4, 1, 256, "float32", sliding_window=8, alignment=576, model_version="deepseek_v4"
)
UNALIGNED = window_over_latents(cache_dtype_str=None, alignment=None)


@cases(
    (version_4(5), SHORT, 8_640),  # its page of 4,608 bytes takes the next larger one there is
    (named(INDEXER), WINDOW, 37_440),  # no page size of full attention would hold it
    (named(latent(512, 64, dtype="uint8", model_version="deepseek_v4")), UNALIGNED, None),
)
@example("KV-PLAN-22")
def windows_are_padded_to_a_page_size_of_full_attention(
    bench: Bench, layers: Layers, window: LayerSpec, padded: int | None
) -> None:
    config = settings(256, 64, block_size=256)
    last = bench.planner.groups((*layers, ("window", window)), config)[-1].spec
    expected = replace(window, page_size_padded=padded)  # type: ignore[call-arg]  # of all windows
    own = (("window", expected),)
    equal(last, UniformTypeKVCacheSpecs(window.block_size, own))


def beside_hidden_states(
    head_size: int, block_size: int = 2
) -> tuple[FullAttentionSpec, SlidingWindowSpec, HiddenStateCacheSpec]:
    """Full attention and a window with 4 × `head_size` bytes a token, hidden states with 512."""
    window = SlidingWindowSpec(block_size, 1, head_size, "bfloat16", sliding_window=8)
    hidden = HiddenStateCacheSpec(block_size, 1, 256, "bfloat16")
    return FullAttentionSpec(block_size, 1, head_size, "bfloat16"), window, hidden


@example("KV-PLAN-23")
def hidden_states_fill_the_page_of_the_others(bench: Bench) -> None:
    """10,240 bytes hold 20 tokens of 512 bytes; groups are as large as the others."""
    small, window, hidden = beside_hidden_states(80, 32)
    groups = bench.planner.groups(named(small, small, window, hidden), settings())
    equal(names_of(groups), [("0",), ("1",), ("2",), ("3",)])
    equal(groups[-1].spec, replace(hidden, block_size=20, page_size_padded=10_240))
    (alone,) = bench.planner.groups(named(small, hidden), settings())
    equal(type(alone.spec), UniformTypeKVCacheSpecs)
    small, window, hidden = beside_hidden_states(64)
    layers = named(small, small, window, window, hidden, hidden, hidden)
    dealt = [("0", "1"), ("2", "3"), ("4", "6"), ("5",)]
    equal(names_of(bench.planner.groups(layers, settings())), dealt)


@example("KV-PLAN-23")
def a_token_of_hidden_states_must_fit(bench: Bench) -> None:
    """A page of 512 bytes holds one token, a page of 504 none, and the error says so."""
    small, window, hidden = beside_hidden_states(64)
    groups = bench.planner.groups(named(small, window, hidden), settings())
    equal(groups[-1].spec, replace(hidden, block_size=1, page_size_padded=512))
    with raises(PageSizeError, layer="2", value=512, wanted=504):
        bench.planner.groups(named(*beside_hidden_states(63)), settings())


@cases(
    (named(*[large()] * 10, *[sliding(8)] * 52), ("8", "52", "sliding_window", "15.38 %")),
    (named(*[large()] * 10, *[sliding(8)] * 14), ("4", "10", "full_attention", "40.00 %")),
    (named(large(), sliding(8)), ()),
    (named(large(), CROSS), ()),
)
@example("KV-PLAN-24")
def missing_layers_are_reported_with_their_waste(
    bench: Bench, layers: Layers, said: tuple[str, ...]
) -> None:
    """Six groups of ten for 52 windows: eight layers are missing, 15.38 % of them."""
    warnings = bench.planner.plan((layers,), settings(), (GIB,)).warnings
    equal(len(warnings), 1 if said else 0)
    equal([word for word in said if word in warnings[0]], list(said))
