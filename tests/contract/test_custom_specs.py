"""Custom specs (KV-CFG-9), where a wrapper around an implementation may ask once more."""

from __future__ import annotations

import pytest

from kvcheck.rules.bench import Bench
from kvcheck.rules.custom_specs import RingSpec
from kvcheck.rules.specs import full, sliding
from kvspec.config import CustomSpec, SpecRegistry
from kvspec.specs import LayerSpec


@pytest.mark.rule("KV-CFG-9")
def test_the_function_is_asked_once_per_group(bench: Bench) -> None:
    asked: list[LayerSpec] = []

    def managed(spec: LayerSpec) -> LayerSpec:
        asked.append(spec)
        return full(spec.block_size) if len(asked) < 2 else sliding(spec.block_size, 6)

    registry = SpecRegistry((CustomSpec(RingSpec, managed),))
    bench.subject.create(bench.config(20, RingSpec(4), RingSpec(4), registry=registry))
    assert asked == [RingSpec(4), RingSpec(4)]
