"""Examples of planning: workers, tensors and the rarer layouts (KV-PLAN-11 …)."""

from __future__ import annotations

from dataclasses import replace

from kvcheck.rules.examples.bench import Bench
from kvcheck.rules.examples.example import example
from kvcheck.rules.examples.plan_specs import (
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
    bench.equal("groups of two stages", expected, found)
    one, other = (("a", large()),), (("b", latent()),)
    plan = bench.planner.plan((one, other), settings(), (GIB, GIB))
    own = [UniformTypeKVCacheSpecs(16, one), UniformTypeKVCacheSpecs(16, other)]
    bench.equal("a group of one type", own, [cache.groups[0].spec for cache in plan.configs])
    plan = bench.planner.plan((named(large()), ()), settings(), (10 * PAGE, 0))
    blocks = [(cache.num_blocks, len(cache.tensors)) for cache in plan.configs]
    bench.equal("blocks and tensors beside a worker without layers", [(10, 1), (10, 0)], blocks)
    empty = bench.planner.plan(((), ()), settings(), (0, 0))
    bench.equal("no layers at all", (KVCacheConfig(1, ()),) * 2, empty.configs)
    two = (named(large()), named(latent()))
    bench.raises(
        "two specs of a layer", ConfigError, bench.planner.plan, two, settings(), (GIB,) * 2
    )


@example("KV-PLAN-13")
def tensors(bench: Bench) -> None:
    """Layer i of each group shares tensor i, and one group shares nothing."""
    groups = tuple(KVCacheGroup(tuple(names), large()) for names in ("ab", "cd", "e"))
    cache = bench.planner.config_from_groups(groups, settings(), 7 * 2 * PAGE)
    bench.equal("tensors of three groups", [("a", "c", "e"), ("b", "d")], shared_by(cache))
    sizes = {(tensor.size_bytes, tensor.block_stride_bytes) for tensor in cache.tensors}
    bench.equal("their sizes", {(7 * PAGE, None)}, sizes)
    layers = (("a", large()), ("b", latent()))
    group = KVCacheGroup(("a", "b"), UniformTypeKVCacheSpecs(16, layers))
    cache = bench.planner.config_from_groups((group,), settings(), 3 * (PAGE + 18_432))
    found = [(tensor.shared_by, tensor.size_bytes) for tensor in cache.tensors]
    bench.equal("tensors of one group", [(("a",), 3 * PAGE), (("b",), 3 * 18_432)], found)


@example("KV-PLAN-14")
def packed(bench: Bench) -> None:
    """Packed tensors lie side by side within a block."""
    groups = tuple(KVCacheGroup(tuple(names), large()) for names in ("ab", "cd"))
    config = settings(packed_layout=True)
    cache = bench.planner.config_from_groups(groups, config, 7 * 2 * PAGE)
    expected = (
        KVCacheTensor(14 * PAGE, ("a", "c"), 0, 2 * PAGE),
        KVCacheTensor(14 * PAGE, ("b", "d"), PAGE, 2 * PAGE),
    )
    bench.equal("two tensors", expected, cache.tensors)
    alone = bench.planner.config_from_groups(groups[:1], config, 7 * 2 * PAGE)
    bench.equal("one group", KVCacheTensor(7 * PAGE, ("a",)), alone.tensors[0])


@example("KV-PLAN-15")
def smallest(bench: Bench) -> None:
    """All workers get the smallest number of blocks."""
    stages = (named(large()), named(large(), first=1))
    plan = bench.planner.plan(stages, settings(), (100 * PAGE + 5, 80 * PAGE + 9))
    found = [(cache.num_blocks, cache.tensors[0].size_bytes) for cache in plan.configs]
    bench.equal("blocks and bytes of 100 and of 80", [(80, 5_242_880)] * 2, found)


@example("KV-PLAN-16")
def scheduler(bench: Bench) -> None:
    """The scheduler has the first layout, with the first layer's spec for a group of one type."""
    plan = bench.planner.plan((named(latent(), large()),) * 2, settings(), (GIB, GIB))
    found = bench.planner.scheduler_config(plan.configs)
    first = plan.configs[0]
    expected = replace(first, groups=(replace(first.groups[0], spec=latent()),))
    bench.equal("the layout", expected, found)
    other = replace(first, num_blocks=first.num_blocks - 1)
    unequal = (first, other)
    bench.raises("unequal blocks", ConfigError, bench.planner.scheduler_config, unequal)
    bench.raises("no layout", ConfigError, bench.planner.scheduler_config, ())


def version_4(num_windows: int) -> Layers:
    """Five layers of each of two page sizes, one of a third, and windows behind them."""
    compressed = latent(512, 256, dtype="uint8", compress_ratio=4, **V4)
    indexer = latent(132, 256, dtype="uint8", compress_ratio=4, **{**V4, "cache_dtype_str": None})
    sparse = latent(512, 256, dtype="uint8", compress_ratio=128, **V4)
    return named(*[compressed, indexer] * 5, sparse, *[window_over_latents()] * num_windows)


@example("KV-PLAN-22")
def page_sizes_side_by_side(bench: Bench) -> None:
    """Latents that mix page sizes lie side by side in a block."""
    config = settings(256, 64, block_size=256, use_eagle=True)
    groups = bench.planner.groups(version_4(8), config)
    found = [(len(group.layer_names), group.is_eagle_group) for group in groups]
    bench.equal("layers and flags", [(11, False), (4, False), (4, True)], found)
    cache = bench.planner.config_from_groups(groups, config, 10 * 232_128 + 1)
    strides = {tensor.block_stride_bytes for tensor in cache.tensors}
    shown = (len(cache.tensors), strides, cache.num_blocks)
    bench.equal("tensors, stride and blocks", (11, {232_128}, 10), shown)
    short = SlidingWindowMLASpec(
        4, 1, 256, "float32", sliding_window=8, alignment=576, model_version="deepseek_v4"
    )
    last = bench.planner.groups((*version_4(5), ("short", short)), config)[-1].spec
    padded = UniformTypeKVCacheSpecs(4, (("short", replace(short, page_size_padded=8_640)),))
    bench.equal("a window of a smaller page", padded, last)
    mixed = (*version_4(5), ("full", FullAttentionSpec(256, 1, 64, "bfloat16")))
    bench.raises("other layers besides", PageSizeError, bench.planner.groups, mixed, settings())


@example("KV-PLAN-23")
def hidden_states(bench: Bench) -> None:
    """Hidden states fill the page of the others."""
    small = FullAttentionSpec(32, 1, 80, "bfloat16")
    hidden = HiddenStateCacheSpec(32, 1, 256, "bfloat16")
    windowed = SlidingWindowSpec(32, 1, 80, "bfloat16", sliding_window=8)
    groups = bench.planner.groups(named(small, small, windowed, hidden), settings())
    bench.equal("groups", [("0",), ("1",), ("2",), ("3",)], names_of(groups))
    expected = replace(hidden, block_size=20, page_size_padded=10_240)
    bench.equal("blocks of 512 bytes a token", expected, groups[-1].spec)
    tiny = FullAttentionSpec(2, 1, 8, "bfloat16")
    narrow = SlidingWindowSpec(2, 1, 8, "bfloat16", sliding_window=8)
    layers = named(tiny, narrow, replace(hidden, block_size=2))
    bench.raises("a page below one token", PageSizeError, bench.planner.groups, layers, settings())


@example("KV-PLAN-24")
def missing_layers(bench: Bench) -> None:
    """Missing layers are reported with their waste."""
    layers = named(*[large()] * 10, *[sliding(8)] * 52)
    warnings = bench.planner.plan((layers,), settings(), (GIB,)).warnings
    bench.equal("warnings", 1, len(warnings))
    numbers = [number for number in ("8", "15.38") if number in warnings[0]]
    bench.equal(f"numbers in {warnings[0]!r}", ["8", "15.38"], numbers)
    for full_groups in (named(large(), sliding(8)), named(large(), CROSS)):
        plan = bench.planner.plan((full_groups,), settings(), (GIB,))
        bench.equal(f"warnings for {full_groups}", (), plan.warnings)


PLAN_LAYOUT = (
    workers, tensors, packed, smallest, scheduler, page_sizes_side_by_side, hidden_states,
    missing_layers,
)  # fmt: skip
