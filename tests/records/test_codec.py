"""The JSON codec: values survive the round trip, and malformed ones are refused by name."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvcheck.judge.pasted import source
from kvspec import codec, event_codec
from kvspec.config import (
    HASH_FUNCTIONS,
    NOT_NAMED,
    CustomSpec,
    KVCacheConfig,
    ManagerConfig,
    SpecRegistry,
)
from kvspec.errors import ConfigError, FormatError, InvalidArgumentError
from kvspec.files.objects import Where
from kvspec.planning import PlanningConfig
from kvspec.policy import OLDER, Policy
from kvspec.specs import SPEC_TYPES, LayerSpec, SlidingWindowSpec
from tests.cases import Case, cases
from tests.records import strategies

HERE = Where("some.jsonl", 7)
FULL = {"type": "FullAttentionSpec", "block_size": 16, "num_kv_heads": 8, "head_size": 64}


def there_and_back(
    value: Any, encode: Callable[[Any], Any], decode: Callable[[Any, Where], Any]
) -> None:
    """Encode and decode through real JSON text, so that only JSON's own types are used."""
    written = json.loads(json.dumps(encode(value)))
    assert decode(written, HERE) == value
    assert encode(decode(written, HERE)) == written


@pytest.mark.parametrize("spec_type", SPEC_TYPES, ids=lambda cls: cls.__name__)
@settings(max_examples=40)
@given(data=st.data())
def test_every_spec_type_comes_back(spec_type: type[LayerSpec], data: st.DataObject) -> None:
    spec = data.draw(strategies.specs_of(spec_type))
    assert type(spec) is spec_type
    there_and_back(spec, codec.encode_spec, codec.decode_spec)


@given(strategies.manager_configs)
def test_manager_configs_come_back(config: ManagerConfig) -> None:
    there_and_back(config, codec.encode_manager_config, codec.decode_manager_config)


@given(strategies.planning_configs)
def test_planning_configs_come_back(config: PlanningConfig) -> None:
    there_and_back(config, codec.encode_planning_config, codec.decode_planning_config)


@pytest.mark.parametrize("int_hashes", [False, True])
@given(data=st.data())
def test_events_come_back(int_hashes: bool, data: st.DataObject) -> None:
    there_and_back(
        data.draw(strategies.events(int_hashes)),
        event_codec.encode_event,
        lambda value, where: event_codec.decode_event(value, where, int_hashes=int_hashes),
    )


@pytest.mark.rule("KV-POL-1", "KV-POL-10", "KV-POL-18")
@pytest.mark.parametrize("key", OLDER)
def test_a_policy_without_a_key_is_older_than_the_key(key: str) -> None:
    config = ManagerConfig(KVCacheConfig(4, ()), 8)
    written = codec.encode_manager_config(config)
    chosen = written["policy"].pop(key)
    assert chosen == getattr(Policy(), key)
    older: dict[str, Any] = {key: OLDER[key]}
    assert codec.decode_manager_config(written, HERE).policy == Policy(**older)
    written["policy"][key] = chosen
    assert codec.decode_manager_config(written, HERE) == config
    assert codec.decode_policy({}, HERE) == Policy()


@pytest.mark.rule("KV-POL-26")
def test_a_configuration_and_its_record_hold_the_resolved_retention() -> None:
    dense, sparse = Policy(), Policy(default_retention="boundaries")
    cache = KVCacheConfig(4, ())
    for policy, interval in ((dense, None), (sparse, 0)):
        config = ManagerConfig(cache, 8, policy=policy)
        assert config.retention_interval_tokens is interval
        for named in (None, 0, 8):
            one = ManagerConfig(cache, 8, policy=policy, retention_interval_tokens=named)
            assert one.retention_interval_tokens == named
            there_and_back(one, codec.encode_manager_config, codec.decode_manager_config)
            assert eval(source(one)) == one  # what a report shows makes it again
        assert "interval" not in source(config)
        assert replace(config, policy=dense).retention_interval_tokens is interval
        asked = replace(config, policy=sparse, retention_interval_tokens=NOT_NAMED)
        assert asked.retention_interval_tokens == 0
        written = codec.encode_manager_config(config)
        assert written["prefix_cache_retention_interval"] is interval
    with pytest.raises(ConfigError, match="default_retention"):
        Policy(default_retention="sparse")


@pytest.mark.rule("KV-HASH-11", "KV-HASH-12")
@pytest.mark.parametrize("function", HASH_FUNCTIONS)
def test_a_weak_function_without_trusted_tenants_is_older_than_that(function: str) -> None:
    """Accept a record without the member; one that has it false is refused as by its manager."""
    is_weak = function != "sha256_cbor"
    config = ManagerConfig(KVCacheConfig(4, ()), 8, hash_function=function, trusted_tenants=is_weak)
    written = codec.encode_manager_config(config)
    assert written.pop("trusted_tenants", None) is (True if is_weak else None)
    assert codec.decode_manager_config(written, HERE).trusted_tenants is is_weak
    written["trusted_tenants"] = False
    if is_weak:
        with pytest.raises(FormatError, match="trusted_tenants"):
            codec.decode_manager_config(written, HERE)
    else:
        assert codec.decode_manager_config(written, HERE).trusted_tenants is False


def test_custom_specs_cannot_be_written() -> None:
    """Refuse a registry, which holds code: without it a record would replay otherwise."""
    registry = SpecRegistry((CustomSpec(SlidingWindowSpec, lambda spec: spec),))
    config = ManagerConfig(KVCacheConfig(4, ()), 8, registry=registry)
    with pytest.raises(InvalidArgumentError, match="registry"):
        codec.encode_manager_config(config)


def changed_config(value: Any, where: Where) -> object:
    config = ManagerConfig(KVCacheConfig(4, ()), 8, policy=Policy.vllm_0_24())
    changed = {**codec.encode_manager_config(config), **value}
    return codec.decode_manager_config(changed, where.member("config"))


DECODE: dict[str, Callable[[Any, Where], object]] = {
    "spec": codec.decode_spec,
    "config": changed_config,
    "event": lambda value, where: event_codec.decode_event(value, where, int_hashes=False),
    "int": lambda value, where: event_codec.decode_event(value, where, int_hashes=True),
}


@pytest.mark.parametrize("case", cases(__file__, "malformed.txt"), ids=str)
def test_what_is_malformed_is_refused_by_name(case: Case) -> None:
    kind, _, _ = case.name.partition(":")
    with pytest.raises(FormatError) as caught:
        DECODE[kind](json.loads(case.given[0]), HERE)
    case.expect([str(caught.value)])


def test_a_layer_given_twice_is_refused() -> None:
    spec = {**FULL, "dtype": "int8"}
    with pytest.raises(FormatError, match="layer 'a' is given twice"):
        codec.decode_layers([["a", spec], ["a", spec]], HERE)
