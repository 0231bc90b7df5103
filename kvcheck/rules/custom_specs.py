"""Spec classes from outside the contract (KV-CFG-9)."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

from kvcheck.play.verdicts import Level
from kvcheck.rules.bench import Bench
from kvcheck.rules.example import example
from kvcheck.rules.judging import equal, holds, raises
from kvcheck.rules.specs import cross, full, mamba, sliding
from kvspec.config import CustomSpec, SpecRegistry
from kvspec.errors import ConfigError, UnsupportedError
from kvspec.events import BlockStored
from kvspec.interface import Feature
from kvspec.specs import FullAttentionSpec, LayerSpec


@dataclass(frozen=True)
class RingSpec(LayerSpec):
    """A layer that keeps the last tokens in a ring."""


@dataclass(frozen=True)
class StateSpec(LayerSpec):
    """A layer that keeps a state."""


@dataclass(frozen=True)
class WideRingSpec(RingSpec):
    """A subclass of a registered class."""


@dataclass(frozen=True)
class TunedFullSpec(FullAttentionSpec):
    """A subclass of a built-in class."""


def managed_as(*pairs: tuple[type[LayerSpec], LayerSpec]) -> SpecRegistry:
    """Return a registry that manages each class as the spec beside it."""

    def answer(answered: LayerSpec, _: LayerSpec) -> LayerSpec:
        return answered

    return SpecRegistry(tuple(CustomSpec(kind, partial(answer, spec)) for kind, spec in pairs))


@example("KV-CFG-9", "KV-CFG-1")
def a_custom_spec_is_managed_as_its_answer(bench: Bench) -> None:
    """Check that a custom spec is managed as resolved, and keeps its type in the config."""
    registry = managed_as((RingSpec, sliding(4, 6)), (StateSpec, mamba(4)))
    manager = bench.manager(20, RingSpec(4), StateSpec(8), registry=registry, enable_events=True)
    equal(manager.config.scheduler_block_size_tokens, 4)
    request = manager.started("r", range(13))
    manager.remove_skipped_blocks(request, 13)
    found = [manager.null_positions(request, group) for group in (0, 1)]
    equal(found, [[0, 1], [0, 1, 2]], "nulls")
    told = [e.spec_kind for e in manager.take_events() if isinstance(e, BlockStored)]
    equal(told, ["sliding_window", "mamba"], "kinds in events")
    equal(manager.config.kv_cache.groups[0].spec, RingSpec(4))


@example("KV-CFG-9")
def the_function_sees_the_spec(bench: Bench) -> None:
    """Check that two rings of different size get two different block sizes."""
    asked: list[LayerSpec] = []

    def answer(spec: LayerSpec) -> LayerSpec:
        asked.append(spec)
        return full(2 * spec.block_size)

    registry = SpecRegistry((CustomSpec(RingSpec, answer),))
    config = bench.config(20, RingSpec(2), RingSpec(4), registry=registry)
    manager = bench.create(config)
    equal(asked[:2], [RingSpec(2), RingSpec(4)], "what was asked")
    request = manager.started("r", range(8))
    equal([len(blocks) for blocks in manager.lists(request)], [2, 1])
    sizes = manager.config.scheduler_block_size_tokens, manager.config.hash_block_size_tokens
    equal(sizes, (8, 4), "block sizes of scheduler and hashes")


@example("KV-CFG-9", "KV-COORD-3", "KV-COORD-4")
def a_custom_spec_equals_what_it_is_managed_as(bench: Bench) -> None:
    """Check that a custom spec equals what it is managed as: a flag counts for both."""
    registry = managed_as((RingSpec, full(4)))
    make = partial(bench.manager, 20, full(4), RingSpec(8), registry=registry)
    with raises(ConfigError, field="kv_cache.groups"):
        make()
    specs = (full(4), RingSpec(8), sliding(4, 6))
    manager = bench.manager(40, *specs, registry=registry, eagle_groups=[1])
    request = manager.started("r", range(17))
    own = manager.find_longest_cache_hit_per_group(request, 17)
    equal(tuple(own.hit_lengths_tokens), (12, 12, 16))


@example("KV-CFG-9", "KV-CFG-7", "KV-CROSS-4")
def checks_see_what_a_spec_is_managed_as(bench: Bench) -> None:
    """Check that retention and caching are decided by what a spec is managed as."""
    ring, encoder = managed_as((RingSpec, sliding(4, 5))), managed_as((RingSpec, cross(4)))
    manager = bench.manager(20, RingSpec(4), registry=ring, retention_interval_tokens=8)
    request = manager.started("r", range(20))
    make = partial(bench.manager, 20, RingSpec(4), registry=encoder)
    with raises(ConfigError, field="enable_caching"):
        make()
    found = (manager.cached_positions(request), manager.counts(request))
    equal(found, ([1, 3], (5,)), "cached, and the count")


@example("KV-CFG-9")
def a_registry_holds_for_its_configuration_only(bench: Bench) -> None:
    """Check that a registry holds for its configuration only, and its first fitting pair counts."""
    for size in (4, 16, 4):
        registry = managed_as((RingSpec, full(size)), (RingSpec, full(32)))
        config = bench.manager(20, RingSpec(8), registry=registry).config
        equal(config.scheduler_block_size_tokens, size)


@example("KV-CFG-9", level=Level.SAFETY)
def a_class_without_a_pair_is_not_supported(bench: Bench) -> None:
    """Check that a class without a pair is unsupported, and one that resolves to such a class."""
    bench.need(Feature.CUSTOM_SPECS)
    ring = managed_as((RingSpec, full(4)))
    chain = ((RingSpec, StateSpec(8)), (StateSpec, full(4)))
    for spec, registry in (
        (StateSpec(8), ring),
        (WideRingSpec(8), ring),
        (TunedFullSpec(4, 1, 8, "float16"), ring),
        (RingSpec(8), managed_as(*chain)),
        (RingSpec(8), SpecRegistry()),
    ):
        config = bench.config(20, spec, registry=registry)
        with raises(UnsupportedError) as error:
            bench.subject.create(config)
        if registry is ring:
            holds(type(spec).__name__ in error.value.capability)
    bench.manager(20, StateSpec(8), registry=managed_as(*chain))
