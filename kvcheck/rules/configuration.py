"""KV-CFG: configuration, derived members, and refusals."""

from __future__ import annotations

import dataclasses

from kvcheck.play.verdicts import Level
from kvcheck.rules.bench import Bench
from kvcheck.rules.example import cases, example
from kvcheck.rules.judging import equal, holds, raises
from kvcheck.rules.specs import cross, full
from kvspec.errors import ConfigError, UnsupportedError
from kvspec.specs import FullAttentionSpec, LayerSpec, MLAAttentionSpec


@example("KV-CFG-1")
def specs_are_equal_values_of_one_type(bench: Bench) -> None:
    """Check that equal fields make equal specs; another field or type makes them differ."""
    equal(full(16), full(16))
    equal(hash(full(16)), hash(full(16)))
    holds(full(16) != full(16, head_size=16))
    holds(FullAttentionSpec(16, 1, 8, "float16") != MLAAttentionSpec(16, 1, 8, "float16"))


@example("KV-CFG-1", level=Level.SAFETY)
def specs_are_frozen(bench: Bench) -> None:
    """Check that a spec cannot be changed, and is validated when it is made."""
    with raises(dataclasses.FrozenInstanceError):
        full().block_size = 8  # type: ignore[misc]  # the point
    with raises(ConfigError, field="block_size"):
        full(0)


@cases("sha256_cbor", "sha256_cbor_64bit", "xxhash_cbor")
@example("KV-ERR-5", "KV-POL-8")
def hash_functions_are_served_as_the_capabilities_say(bench: Bench, function: str) -> None:
    bench.manager(6)  # with prefix caching at all
    config = bench.config(6, hash_function=function, trusted_tenants=True)
    if function in bench.subject.capabilities.hash_functions:
        equal(bench.create(config).config.hash_function, function)
        return
    with raises(UnsupportedError):
        bench.subject.create(config)


@cases(full(4), MLAAttentionSpec(4, 1, 8, "float16"), cross(4))
@example("KV-ERR-5", "KV-POL-8")
def specs_are_served_as_the_capabilities_say(bench: Bench, spec: LayerSpec) -> None:
    config = bench.config(6, spec, enable_caching=False)
    if type(spec) in bench.subject.capabilities.spec_types:
        bench.create(config)
        return
    with raises(UnsupportedError):
        bench.subject.create(config)
