"""Spec classes that cannot be managed; how others are: `kvcheck.rules.custom_specs`."""

from __future__ import annotations

from dataclasses import dataclass

import pytest

import kvref
from kvcheck.rules.specs import full
from kvspec.config import CustomSpec, SpecRegistry
from kvspec.errors import ConfigError, UnsupportedError
from kvspec.specs import SPEC_TYPES, LayerSpec, UniformTypeKVCacheSpecs
from tests.contract.builders import make_config

KVREF = kvref.implementation()


@dataclass(frozen=True)
class RingSpec(LayerSpec):
    """A ring of `ring_tokens` tokens."""

    ring_tokens: int = 8


@pytest.mark.parametrize("answer", [None, RingSpec(4), 7])
def test_what_no_built_in_spec_is_cannot_be_managed(answer: LayerSpec) -> None:
    """A registry that answers something else is refused as well."""
    registry = SpecRegistry((CustomSpec(RingSpec, lambda spec: answer),))
    with pytest.raises(UnsupportedError):
        KVREF.create(make_config(specs=[RingSpec(4)], registry=registry))


@pytest.mark.parametrize("custom", [None, [CustomSpec(RingSpec, lambda spec: full())], (RingSpec,)])
def test_a_registry_lists_custom_specs(custom: tuple[CustomSpec, ...]) -> None:
    with pytest.raises(ConfigError) as caught:
        SpecRegistry(custom)
    assert caught.value.field == "custom"


def test_the_capabilities_name_every_spec_that_a_group_may_have() -> None:
    assert KVREF.capabilities.name == "kvref"
    assert KVREF.capabilities.spec_types == set(SPEC_TYPES) - {UniformTypeKVCacheSpecs}
    with pytest.raises(UnsupportedError):
        KVREF.create(make_config(specs=[UniformTypeKVCacheSpecs(4, (("layer", full(4)),))]))
