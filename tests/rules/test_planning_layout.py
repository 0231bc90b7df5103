"""Rules of planning: workers, blocks, tensors (KV-PLAN-11 … KV-PLAN-16, KV-PLAN-24)."""

from __future__ import annotations

from dataclasses import replace

import pytest

from kvspec.config import KVCacheConfig, KVCacheGroup, KVCacheTensor
from kvspec.errors import CacheMemoryError, ConfigError
from kvspec.planning import AUTO_FIT, Planner
from kvspec.specs import UniformTypeKVCacheSpecs
from tests.rules.planning import (
    GIB,
    PAGE,
    cross,
    full,
    latent,
    named,
    names_of,
    settings,
    shared_by,
    window,
)


@pytest.mark.rule("KV-PLAN-11")
def test_all_workers_number_the_groups_alike(planner: Planner) -> None:
    """A group of which a worker has no layer stays there, empty and unflagged."""
    first = (("full.0", full()), ("window.1", window(8)))
    second = (("window.2", window(8)),)
    plan = planner.plan((first, second), settings(), (GIB, GIB))
    assert names_of(plan.configs[0].groups) == [("full.0",), ("window.1",), ()]
    assert names_of(plan.configs[1].groups) == [(), (), ("window.2",)]
    assert [g.spec for g in plan.configs[0].groups] == [g.spec for g in plan.configs[1].groups]


@pytest.mark.rule("KV-PLAN-11")
def test_a_group_of_one_type_lists_the_own_layers(planner: Planner) -> None:
    """Its page is then that of the worker."""
    first, second = (("a", full()),), (("b", latent()),)
    plan = planner.plan((first, second), settings(), (GIB, GIB))
    specs = [cache.groups[0].spec for cache in plan.configs]
    assert specs == [UniformTypeKVCacheSpecs(16, first), UniformTypeKVCacheSpecs(16, second)]


@pytest.mark.rule("KV-PLAN-11")
def test_workers_without_layers(planner: Planner) -> None:
    """They have no tensors and limit nothing; without any layer there is one block."""
    plan = planner.plan((named(full()), ()), settings(), (10 * PAGE, 0))
    assert [cache.num_blocks for cache in plan.configs] == [10, 10]
    assert plan.configs[1].tensors == ()
    assert names_of(plan.configs[1].groups) == [()]
    empty = planner.plan(((), ()), settings(), (0, 0))
    assert empty.configs == (KVCacheConfig(1, ()), KVCacheConfig(1, ()))


@pytest.mark.rule("KV-PLAN-11")
def test_workers_must_agree_on_a_layer(planner: Planner) -> None:
    """Ranks of tensor parallelism have the same layers; another spec is an error."""
    plan = planner.plan((named(full()), named(full())), settings(), (GIB, GIB))
    assert [names_of(cache.groups) for cache in plan.configs] == [[("0",)], [("0",)]]
    with pytest.raises(ConfigError, match="layer 0"):
        planner.plan((named(full()), named(latent())), settings(), (GIB, GIB))
    with pytest.raises(ConfigError) as caught:
        planner.plan((named(full()),), settings(), (GIB, GIB))
    assert caught.value.field == "available_memory_bytes"


@pytest.mark.rule("KV-PLAN-12")
def test_as_many_blocks_as_the_memory_holds(planner: Planner) -> None:
    """Ten layers of 65,536 bytes are 655,360 a block; 1 GiB holds 1,638."""
    groups = planner.groups(named(*[full()] * 10, *[window(8)] * 12), settings())
    assert names_of(groups)[0] == tuple(map(str, range(10)))
    assert len(groups) == 2  # 12 < 15: groups of twelve
    ten = (KVCacheGroup(tuple("abcdefghij"), full()), KVCacheGroup(tuple("klm"), window(8)))
    assert planner.config_from_groups(ten, settings(), GIB).num_blocks == 1_638
    assert planner.config_from_groups(ten, settings(), -1).num_blocks == 0


@pytest.mark.rule("KV-PLAN-12")
def test_a_number_of_blocks_replaces_the_memory(planner: Planner) -> None:
    """In the layout, the check and the search."""
    config = settings(64, num_blocks_override=5)
    plan = planner.plan((named(full(), full()),), config, (0,))
    assert plan.configs[0].num_blocks == 5
    with pytest.raises(CacheMemoryError):
        planner.plan((named(full()),), replace(config, num_blocks_override=4), (GIB,))
    fit = replace(config, num_blocks_override=4, original_max_model_len_tokens=AUTO_FIT)
    assert planner.plan((named(full()),), fit, (GIB,)).max_model_len_tokens == 48


@pytest.mark.rule("KV-PLAN-13")
def test_layers_of_different_groups_share_tensors(planner: Planner) -> None:
    """(a, b), (c, d), (e): a+c+e and b+d."""
    groups = tuple(KVCacheGroup(tuple(names), full()) for names in ("ab", "cd", "e"))
    cache = planner.config_from_groups(groups, settings(), 7 * 2 * PAGE)
    assert shared_by(cache) == [("a", "c", "e"), ("b", "d")]
    assert {tensor.size_bytes for tensor in cache.tensors} == {7 * PAGE}
    assert {tensor.block_stride_bytes for tensor in cache.tensors} == {None}


@pytest.mark.rule("KV-PLAN-13")
def test_with_one_group_each_layer_has_its_own_tensor(planner: Planner) -> None:
    """Of its own page."""
    layers = (("a", full()), ("b", latent()))
    group = KVCacheGroup(("a", "b"), UniformTypeKVCacheSpecs(16, layers))
    cache = planner.config_from_groups((group,), settings(), 3 * (PAGE + 18_432))
    assert [(t.shared_by, t.size_bytes) for t in cache.tensors] == [
        (("a",), 3 * PAGE),
        (("b",), 3 * 18_432),
    ]


@pytest.mark.rule("KV-PLAN-14")
def test_packed_tensors_lie_side_by_side(planner: Planner) -> None:
    """Two slots of 65,536 bytes: the stride is 131,072, the second begins in its middle."""
    groups = tuple(KVCacheGroup(tuple(names), full()) for names in ("ab", "cd"))
    config = settings(packed_layout=True)
    cache = planner.config_from_groups(groups, config, 7 * 2 * PAGE)
    assert cache.tensors == (
        KVCacheTensor(14 * PAGE, ("a", "c"), 0, 2 * PAGE),
        KVCacheTensor(14 * PAGE, ("b", "d"), PAGE, 2 * PAGE),
    )
    alone = planner.config_from_groups(groups[:1], config, 7 * 2 * PAGE)
    assert alone.tensors[0] == KVCacheTensor(7 * PAGE, ("a",))


@pytest.mark.rule("KV-PLAN-15")
def test_all_workers_get_the_smallest_number_of_blocks(planner: Planner) -> None:
    """100 and 80 blocks: both 80, and the first worker's tensor shrinks."""
    workers = (named(full()), named(full(), first=1))
    plan = planner.plan(workers, settings(), (100 * PAGE + 5, 80 * PAGE + 9))
    assert [cache.num_blocks for cache in plan.configs] == [80, 80]
    assert [cache.tensors[0].size_bytes for cache in plan.configs] == [5_242_880, 5_242_880]


@pytest.mark.rule("KV-PLAN-16")
def test_the_scheduler_works_with_the_first_layout(planner: Planner) -> None:
    """A group of one type is its first layer's spec there."""
    plan = planner.plan((named(latent(), full()),) * 2, settings(), (GIB, GIB))
    found = planner.scheduler_config(plan.configs)
    assert found == replace(
        plan.configs[0], groups=(replace(plan.configs[0].groups[0], spec=latent()),)
    )
    other = replace(plan.configs[1], num_blocks=plan.configs[1].num_blocks - 1)
    with pytest.raises(ConfigError) as caught:
        planner.scheduler_config((plan.configs[0], other))
    assert caught.value.field == "num_blocks"
    with pytest.raises(ConfigError):
        planner.scheduler_config(())


@pytest.mark.rule("KV-PLAN-24")
def test_missing_layers_are_reported(planner: Planner) -> None:
    """Six groups of ten for 52 windows: eight are missing."""
    layers = named(*[full()] * 10, *[window(8)] * 52)
    (warning,) = planner.plan((layers,), settings(), (GIB,)).warnings
    assert "8 padding layers" in warning
    assert "15.38 %" in warning
    assert planner.plan((named(full(), window(8)),), settings(), (GIB,)).warnings == ()
    assert planner.plan((named(full(), cross()),), settings(), (GIB,)).warnings == ()
