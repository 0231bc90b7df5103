"""KV-CFG-9: spec classes from outside the contract."""

from __future__ import annotations

from dataclasses import dataclass

import pytest

from kvspec.config import CustomSpec, SpecRegistry
from kvspec.errors import ConfigError, UnsupportedError
from kvspec.events import BlockStored
from kvspec.specs import FullAttentionSpec, LayerSpec
from tests.rules.builders import MakeManager, MakeRequest, admit, full
from tests.rules.specs import (
    cached_positions,
    counts_of,
    cross,
    lists_of,
    mamba,
    null_positions,
    sliding,
)


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


def managed_as(*specs: tuple[type[LayerSpec], LayerSpec]) -> SpecRegistry:
    """A registry that manages each class as the spec beside it."""
    return SpecRegistry(
        tuple(CustomSpec(kind, lambda _, spec=spec: spec) for kind, spec in specs)  # type: ignore[misc]  # mypy cannot infer a lambda with a default
    )


@pytest.mark.rule("KV-CFG-9", "KV-CFG-1")
def test_a_custom_spec_is_managed_as_its_answer(
    make_manager: MakeManager, make_request: MakeRequest
) -> None:
    """A ring of 4 and a state of 8, managed as a window of 6 and as Mamba of 4."""
    registry = managed_as((RingSpec, sliding(4, 6)), (StateSpec, mamba(4)))
    manager = make_manager(
        20, specs=[RingSpec(4), StateSpec(8)], registry=registry, enable_events=True
    )
    assert manager.config.scheduler_block_size_tokens == 4
    request = make_request(manager, "r", range(13))
    admit(manager, request)
    manager.remove_skipped_blocks(request, 13)
    assert null_positions(manager, request, 0) == [0, 1]
    assert null_positions(manager, request, 1) == [0, 1, 2]
    stored = [event for event in manager.take_events() if isinstance(event, BlockStored)]
    assert [event.spec_kind for event in stored] == ["sliding_window", "mamba"]
    assert manager.config.kv_cache.groups[0].spec == RingSpec(4)


@pytest.mark.rule("KV-CFG-9")
def test_the_function_sees_the_spec(make_manager: MakeManager, make_request: MakeRequest) -> None:
    """Two rings of different size become two different block sizes."""
    registry = SpecRegistry((CustomSpec(RingSpec, lambda spec: full(2 * spec.block_size)),))
    manager = make_manager(20, specs=[RingSpec(2), RingSpec(4)], registry=registry)
    request = make_request(manager, "r", range(8))
    admit(manager, request)
    assert [len(blocks) for blocks in lists_of(manager, request)] == [2, 1]
    assert manager.config.scheduler_block_size_tokens == 8
    assert manager.config.hash_block_size_tokens == 4


@pytest.mark.rule("KV-CFG-9", "KV-COORD-3", "KV-COORD-4")
def test_a_custom_spec_equals_what_it_is_managed_as(
    make_manager: MakeManager, make_request: MakeRequest
) -> None:
    """A ring managed as the full attention beside it is the same spec; a flag counts for both."""
    registry = managed_as((RingSpec, full(4)))
    with pytest.raises(ConfigError) as caught:
        make_manager(20, specs=[full(4), RingSpec(8)], registry=registry)
    assert caught.value.field == "kv_cache.groups"
    specs = [full(4), RingSpec(8), sliding(4, 6)]
    manager = make_manager(40, specs=specs, registry=registry, eagle_groups=[1])
    request = make_request(manager, "r", range(17))
    admit(manager, request)
    lengths = manager.find_longest_cache_hit_per_group(request, 17).hit_lengths_tokens
    assert lengths == (12, 12, 16)


@pytest.mark.rule("KV-CFG-9", "KV-CFG-7", "KV-CROSS-4")
def test_checks_see_what_it_is_managed_as(
    make_manager: MakeManager, make_request: MakeRequest
) -> None:
    """Retention is legal for a ring that is a window; caching is not for one that is cross."""
    window, encoder = managed_as((RingSpec, sliding(4, 5))), managed_as((RingSpec, cross(4)))
    manager = make_manager(20, specs=[RingSpec(4)], registry=window, retention_interval_tokens=8)
    request = make_request(manager, "r", range(20))
    admit(manager, request)
    assert cached_positions(manager, request) == [1, 3]
    assert counts_of(manager, request) == (5,)
    with pytest.raises(ConfigError) as caught:
        make_manager(20, specs=[RingSpec(4)], registry=encoder)
    assert caught.value.field == "enable_caching"


@pytest.mark.rule("KV-CFG-9")
def test_the_first_pair_that_fits_counts(make_manager: MakeManager) -> None:
    """Two pairs of one class: the second is never asked."""
    registry = managed_as((RingSpec, full(4)), (RingSpec, full(16)))
    config = make_manager(20, specs=[RingSpec(8)], registry=registry).config
    assert config.scheduler_block_size_tokens == 4


@pytest.mark.rule("KV-CFG-9")
@pytest.mark.parametrize(
    "spec",
    [StateSpec(8), WideRingSpec(8), TunedFullSpec(4, 1, 8, "float16")],
    ids=lambda spec: type(spec).__name__,
)
def test_a_class_without_a_pair_is_not_supported(
    make_manager: MakeManager, spec: LayerSpec
) -> None:
    """Not even a subclass of a registered class, or of a built-in one."""
    with pytest.raises(UnsupportedError) as caught:
        make_manager(20, specs=[spec], registry=managed_as((RingSpec, full(4))))
    assert type(spec).__name__ in caught.value.capability


@pytest.mark.rule("KV-CFG-9")
def test_the_answer_is_taken_once(make_manager: MakeManager) -> None:
    """An answer that is itself a custom spec is not asked about again."""
    registry = managed_as((RingSpec, StateSpec(8)), (StateSpec, full(4)))
    make_manager(20, specs=[StateSpec(8)], registry=registry)
    with pytest.raises(UnsupportedError):
        make_manager(20, specs=[RingSpec(8)], registry=registry)


@pytest.mark.rule("KV-CFG-9")
def test_a_registry_holds_for_its_configuration_only(make_manager: MakeManager) -> None:
    """Managers with different registries, and with none, stand side by side."""
    sizes = [
        make_manager(
            20, specs=[RingSpec(8)], registry=managed_as((RingSpec, full(size)))
        ).config.scheduler_block_size_tokens
        for size in (4, 16, 4)
    ]
    assert sizes == [4, 16, 4]
    with pytest.raises(UnsupportedError):
        make_manager(20, specs=[RingSpec(8)])


@pytest.mark.rule("KV-CFG-9")
def test_the_function_is_asked_once_per_group(make_manager: MakeManager) -> None:
    """When the manager is made, whatever else depends on the answer."""
    asked: list[LayerSpec] = []

    def managed(spec: LayerSpec) -> LayerSpec:
        asked.append(spec)
        return full(spec.block_size) if len(asked) < 2 else sliding(spec.block_size, 6)

    registry = SpecRegistry((CustomSpec(RingSpec, managed),))
    make_manager(20, specs=[RingSpec(4), RingSpec(4)], registry=registry)
    assert asked == [RingSpec(4), RingSpec(4)]
