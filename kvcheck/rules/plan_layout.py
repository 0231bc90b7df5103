"""Examples of planning: workers, tensors and the rarer layouts (KV-PLAN-11 …)."""

from __future__ import annotations

from dataclasses import replace

from kvcheck.rules.bench import Bench
from kvcheck.rules.example import example
from kvcheck.rules.judging import equal, raises
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
from kvspec.errors import ConfigError, PageSizeError
from kvspec.planning import Layers
from kvspec.specs import (
    FullAttentionSpec,
    HiddenStateCacheSpec,
    SlidingWindowMLASpec,
    SlidingWindowSpec,
    UniformTypeKVCacheSpecs,
)


@example("KV-PLAN-11")
def workers(bench: Bench) -> None:
    """All workers number the groups alike, and each has its own layers in them."""
    first = (("full.0", large()), ("window.1", sliding(8)))
    second = (("window.2", sliding(8)),)
    plan = bench.planner.plan((first, second), settings(), (GIB, GIB))
    found = [names_of(cache.groups) for cache in plan.configs]
    expected = [[("full.0",), ("window.1",), ()], [(), (), ("window.2",)]]
    equal(found, expected, "groups of two stages")
    one, other = (("a", large()),), (("b", latent()),)
    plan = bench.planner.plan((one, other), settings(), (GIB, GIB))
    own = [UniformTypeKVCacheSpecs(16, one), UniformTypeKVCacheSpecs(16, other)]
    equal([cache.groups[0].spec for cache in plan.configs], own, "a group of one type")
    plan = bench.planner.plan((named(large()), ()), settings(), (10 * PAGE, 0))
    blocks = [(cache.num_blocks, len(cache.tensors)) for cache in plan.configs]
    equal(blocks, [(10, 1), (10, 0)], "blocks and tensors beside a worker without layers")
    empty = bench.planner.plan(((), ()), settings(), (0, 0))
    equal(empty.configs, (KVCacheConfig(1, ()),) * 2, "no layers at all")
    two = (named(large()), named(latent()))
    with raises(ConfigError):
        bench.planner.plan(two, settings(), (GIB,) * 2)


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


@example("KV-PLAN-15")
def all_workers_get_the_smallest_number_of_blocks(bench: Bench) -> None:
    stages = (named(large()), named(large(), first=1))
    plan = bench.planner.plan(stages, settings(), (100 * PAGE + 5, 80 * PAGE + 9))
    found = [(cache.num_blocks, cache.tensors[0].size_bytes) for cache in plan.configs]
    equal(found, [(80, 5_242_880)] * 2, "blocks and bytes of 100 and of 80")


@example("KV-PLAN-16")
def scheduler(bench: Bench) -> None:
    """The scheduler has the first layout, with the first layer's spec for a group of one type."""
    plan = bench.planner.plan((named(latent(), large()),) * 2, settings(), (GIB, GIB))
    found = bench.planner.scheduler_config(plan.configs)
    first = plan.configs[0]
    expected = replace(first, groups=(replace(first.groups[0], spec=latent()),))
    equal(found, expected, "the layout")
    other = replace(first, num_blocks=first.num_blocks - 1)
    unequal = (first, other)
    with raises(ConfigError):
        bench.planner.scheduler_config(unequal)
    with raises(ConfigError):
        bench.planner.scheduler_config(())


def version_4(num_windows: int) -> Layers:
    """Five layers of each of two page sizes, one of a third, and windows behind them."""
    compressed = latent(512, 256, dtype="uint8", compress_ratio=4, **V4)
    indexer = latent(132, 256, dtype="uint8", compress_ratio=4, **{**V4, "cache_dtype_str": None})
    sparse = latent(512, 256, dtype="uint8", compress_ratio=128, **V4)
    return named(*[compressed, indexer] * 5, sparse, *[window_over_latents()] * num_windows)


@example("KV-PLAN-22")
def latents_that_mix_page_sizes_lie_side_by_side_in_a_block(bench: Bench) -> None:
    config = settings(256, 64, block_size=256, use_eagle=True)
    groups = bench.planner.groups(version_4(8), config)
    found = [(len(group.layer_names), group.is_eagle_group) for group in groups]
    equal(found, [(11, False), (4, False), (4, True)], "layers and flags")
    cache = bench.planner.config_from_groups(groups, config, 10 * 232_128 + 1)
    strides = {tensor.block_stride_bytes for tensor in cache.tensors}
    shown = (len(cache.tensors), strides, cache.num_blocks)
    equal(shown, (11, {232_128}, 10), "tensors, stride and blocks")
    short = SlidingWindowMLASpec(
        4, 1, 256, "float32", sliding_window=8, alignment=576, model_version="deepseek_v4"
    )
    last = bench.planner.groups((*version_4(5), ("short", short)), config)[-1].spec
    padded = UniformTypeKVCacheSpecs(4, (("short", replace(short, page_size_padded=8_640)),))
    equal(last, padded, "a window of a smaller page")
    mixed = (*version_4(5), ("full", FullAttentionSpec(256, 1, 64, "bfloat16")))
    with raises(PageSizeError):
        bench.planner.groups(mixed, settings())


@example("KV-PLAN-23")
def hidden_states_fill_the_page_of_the_others(bench: Bench) -> None:
    small = FullAttentionSpec(32, 1, 80, "bfloat16")
    hidden = HiddenStateCacheSpec(32, 1, 256, "bfloat16")
    windowed = SlidingWindowSpec(32, 1, 80, "bfloat16", sliding_window=8)
    groups = bench.planner.groups(named(small, small, windowed, hidden), settings())
    equal(names_of(groups), [("0",), ("1",), ("2",), ("3",)], "groups")
    expected = replace(hidden, block_size=20, page_size_padded=10_240)
    equal(groups[-1].spec, expected, "blocks of 512 bytes a token")
    tiny = FullAttentionSpec(2, 1, 8, "bfloat16")
    narrow = SlidingWindowSpec(2, 1, 8, "bfloat16", sliding_window=8)
    layers = named(tiny, narrow, replace(hidden, block_size=2))
    with raises(PageSizeError):
        bench.planner.groups(layers, settings())


@example("KV-PLAN-24")
def missing_layers_are_reported_with_their_waste(bench: Bench) -> None:
    layers = named(*[large()] * 10, *[sliding(8)] * 52)
    warnings = bench.planner.plan((layers,), settings(), (GIB,)).warnings
    equal(len(warnings), 1, "warnings")
    numbers = [number for number in ("8", "15.38") if number in warnings[0]]
    equal(numbers, ["8", "15.38"], f"numbers in {warnings[0]!r}")
    for full_groups in (named(large(), sliding(8)), named(large(), CROSS)):
        plan = bench.planner.plan((full_groups,), settings(), (GIB,))
        equal(plan.warnings, (), f"warnings for {full_groups}")
