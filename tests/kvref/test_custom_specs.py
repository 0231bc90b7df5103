"""Spec classes from outside the contract, managed as built-in ones."""

from __future__ import annotations

from dataclasses import dataclass

import pytest

import kvref
from kvcheck.rules.specs import full, sliding
from kvspec.config import CustomSpec, SpecRegistry
from kvspec.errors import ConfigError, UnsupportedError
from kvspec.events import BlockStored
from kvspec.specs import (
    SPEC_TYPES,
    FullAttentionSpec,
    LayerSpec,
    MLAAttentionSpec,
    UniformTypeKVCacheSpecs,
)
from tests.contract.builders import admit, make_config, new_manager, new_request

KVREF = kvref.implementation()


@dataclass(frozen=True)
class RingSpec(LayerSpec):
    """A ring of `ring_tokens` tokens."""

    ring_tokens: int = 8


class TunedFullSpec(FullAttentionSpec):
    """A subclass: it may behave differently, so it is not taken for its base."""


def test_a_custom_spec_is_managed_as_what_it_names() -> None:
    """As MLA: the events name that kind, and blocks are zeroed as those of MLA."""
    registry = SpecRegistry(
        (CustomSpec(RingSpec, lambda spec: MLAAttentionSpec(spec.block_size, 1, 8, "float16")),)
    )
    manager = new_manager(KVREF, 6, specs=[RingSpec(4)], registry=registry, enable_events=True)
    admit(manager, new_request(KVREF, manager, "r", range(8)))
    (stored,) = manager.take_events()
    assert isinstance(stored, BlockStored)
    assert stored.spec_kind == "mla_attention"
    assert manager.take_new_block_ids() == (1, 2)


def test_a_custom_spec_may_become_different_ones() -> None:
    """A ring larger than a block is a window, a smaller one full attention."""

    def managed_as(spec: LayerSpec) -> LayerSpec:
        assert isinstance(spec, RingSpec)
        return sliding(4, spec.ring_tokens) if spec.ring_tokens > 4 else full(4)

    registry = SpecRegistry((CustomSpec(RingSpec, managed_as),))
    manager = new_manager(
        KVREF, 6, specs=[RingSpec(4, 8), RingSpec(4, 2)], registry=registry, enable_events=True
    )
    admit(manager, new_request(KVREF, manager, "r", range(4)))
    kinds = [e.spec_kind for e in manager.take_events() if isinstance(e, BlockStored)]
    assert kinds == ["sliding_window", "full_attention"]


def test_a_registry_belongs_to_one_configuration() -> None:
    """Without it the same spec is not supported, and the error names it."""
    for spec in (RingSpec(4), TunedFullSpec(4, 1, 8, "float16")):
        with pytest.raises(UnsupportedError) as caught:
            KVREF.create(make_config(specs=[spec]))
        assert type(spec).__name__ in caught.value.capability
        assert caught.value.implementation == "kvref"


@pytest.mark.parametrize("answer", [None, RingSpec(4), 7])
def test_what_no_built_in_spec_is_cannot_be_managed(answer: LayerSpec) -> None:
    """A registry that answers something else is refused as well."""
    registry = SpecRegistry((CustomSpec(RingSpec, lambda spec: answer),))
    with pytest.raises(UnsupportedError):
        KVREF.create(make_config(specs=[RingSpec(4)], registry=registry))


@pytest.mark.parametrize("custom", [None, [CustomSpec(RingSpec, lambda spec: full())], (RingSpec,)])
def test_a_registry_lists_custom_specs(custom: tuple[CustomSpec, ...]) -> None:
    """Anything but a tuple of CustomSpec is refused."""
    with pytest.raises(ConfigError) as caught:
        SpecRegistry(custom)
    assert caught.value.field == "custom"


def test_the_capabilities_name_every_spec_that_a_group_may_have() -> None:
    """All of the contract, but for the one that only planning knows."""
    assert KVREF.capabilities.name == "kvref"
    assert KVREF.capabilities.spec_types == set(SPEC_TYPES) - {UniformTypeKVCacheSpecs}
    with pytest.raises(UnsupportedError):
        KVREF.create(make_config(specs=[UniformTypeKVCacheSpecs(4, (("layer", full(4)),))]))
