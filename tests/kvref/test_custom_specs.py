"""Spec classes that cannot be managed; how others are: `kvcheck.rules.custom_specs`."""

from __future__ import annotations

from dataclasses import dataclass

import pytest

import kvref
from kvcheck.rules.specs import full
from kvspec.config import CustomSpec, SpecRegistry
from kvspec.errors import ConfigError, KVSpecError, UnsupportedError
from kvspec.specs import SPEC_TYPES, LayerSpec, UniformTypeKVCacheSpecs
from tests.contract.builders import make_config

KVREF = kvref.implementation()


@dataclass(frozen=True)
class RingSpec(LayerSpec):
    """A ring of `ring_tokens` tokens."""

    ring_tokens: int = 8


@pytest.mark.parametrize(
    ("found", "error"), [(None, ConfigError), (7, ConfigError), (RingSpec(4), UnsupportedError)]
)
def test_a_registry_returns_built_in_specs(found: LayerSpec, error: type[KVSpecError]) -> None:
    registry = SpecRegistry((CustomSpec(RingSpec, lambda spec: found),))
    with pytest.raises(error):
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
