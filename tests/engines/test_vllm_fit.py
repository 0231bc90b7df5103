"""kvfast inside vLLM, as far as that needs no vLLM: versions, managers and outputs."""

from __future__ import annotations

import sys
from contextlib import nullcontext
from inspect import getsource
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

import kvfast
from kvfast.engines import vllm as on_vllm
from kvfast.engines.vllm import usual
from kvfast.engines.vllm.fit import config_of, given_by, reason_of
from kvfast.engines.vllm.versions import (
    CHANGES,
    NEWEST,
    OLDEST,
    UnsupportedEngineError,
    policy_of,
    release,
)
from kvspec.errors import ConfigError, UnsupportedError
from kvspec.profile import find_profile
from kvspec.specs import FullAttentionSpec, spec_fields


def module(monkeypatch: pytest.MonkeyPatch, path: str, **members: object) -> None:
    """Put a module of these members where `path` is imported from."""
    made = ModuleType(path)
    vars(made).update(members)
    monkeypatch.setitem(sys.modules, path, made)


def version(monkeypatch: pytest.MonkeyPatch, text: str) -> None:
    module(monkeypatch, "vllm")
    module(monkeypatch, "vllm.version", __version__=text)


@pytest.mark.parametrize("text", ["0.23.0", "0.34.0rc1", "1.24.0", "dev"])
def test_a_version_that_was_not_tried_keeps_its_manager(
    monkeypatch: pytest.MonkeyPatch, text: str
) -> None:
    version(monkeypatch, text)
    with pytest.raises(UnsupportedEngineError, match=r"is for vLLM 0\.24 to 0\.33") as caught:
        _ = on_vllm.request_block_hasher
    assert caught.value.found == text
    said: list[str] = []
    logger = SimpleNamespace(warning=lambda form, *values: said.append(form % values))
    module(monkeypatch, "vllm.logger", init_logger=lambda _: logger)
    for file, name in (("scheduler", "Scheduler"), ("async_scheduler", "AsyncScheduler")):
        module(monkeypatch, f"vllm.v1.core.sched.{file}", **{name: type(name, (), {})})
    for name in ("KvfastScheduler", "KvfastAsyncScheduler"):
        made = getattr(on_vllm, name)()
        assert made.kvfast_reason == str(caught.value)
        assert said.pop() == f"{caught.value}. vLLM's own manager is used."


@pytest.mark.parametrize("text", ["0.24.0", "0.27.1", "0.32.0+cu129", "0.33.2.dev3"])
def test_a_release_is_known_by_its_number(monkeypatch: pytest.MonkeyPatch, text: str) -> None:
    version(monkeypatch, text)
    assert release() == int(text[2:4])


def test_each_choice_that_changed_has_its_release() -> None:
    """Check that the table has every change from the choices of 0.24 to those of 0.33."""
    first, last = find_profile("vllm-0.24").policy, find_profile("vllm-0.33").policy
    names = [name for changed in CHANGES.values() for name in changed]
    assert len(names) == len(set(names))
    differ = {name for name in vars(first) if getattr(first, name) != getattr(last, name)}
    assert differ == set(names)
    assert (policy_of(OLDEST), policy_of(NEWEST)) == (first, last)
    assert all(OLDEST < since <= NEWEST for since in CHANGES)
    assert policy_of(27, enable_caching=False).unhashed_freed_to == "back"
    assert policy_of(27).unhashed_freed_to == "front"


def test_a_missing_vllm_is_a_typed_import_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "vllm.version", None)
    with pytest.raises(ImportError, match="no vLLM can be imported"):
        _ = on_vllm.KvfastScheduler
    with pytest.raises(AttributeError, match="no attribute 'Scheduler'"):
        _ = on_vllm.Scheduler


def stock(**changes: Any) -> Any:
    """Return the parts of a manager of vLLM 0.24 that `config_of` reads."""
    members = spec_fields(FullAttentionSpec(16, 1, 8, "float16"))
    members["kv_quant_mode"] = SimpleNamespace(name="NONE")  # there, an enum
    spec = type("FullAttentionSpec", (SimpleNamespace,), {})(**members)
    layers = SimpleNamespace(layer_names=["0"], kv_cache_spec=spec, is_eagle_group=False)
    core: Any = type("Part", (SimpleNamespace,), {"__module__": "vllm.v1.core.part"})
    parts = {
        "kv_cache_config": SimpleNamespace(
            num_blocks=8, kv_cache_tensors=[], kv_cache_groups=[layers]
        ),
        "max_model_len": 64,
        "enable_caching": True,
        "use_eagle": False,
        "metrics_collector": None,
        "block_pool": core(hash_block_size=16, enable_kv_cache_events=False),
        "coordinator": core(
            scheduler_block_size=16, retention_interval=None, single_type_managers=(core(),)
        ),
    }
    return core(**{**parts, **changes})


def test_a_plain_configuration_is_served(monkeypatch: pytest.MonkeyPatch) -> None:
    scheduler = SimpleNamespace(
        scheduler_config=SimpleNamespace(max_num_batched_tokens=32, watermark=0.25),
        dcp_world_size=1,
        pcp_world_size=1,
        connector=None,
        cache_config=SimpleNamespace(prefix_caching_hash_algo="xxhash"),
    )
    version(monkeypatch, "0.24.0")
    module(monkeypatch, "vllm.envs", VLLM_KV_EVENTS_USE_INT_BLOCK_HASHES=True)
    config = config_of(stock(), given_by(scheduler))
    assert (config.kv_cache.num_blocks, config.watermark) == (8, 0.25)
    assert (config.max_model_len_tokens, config.max_num_batched_tokens) == (64, 32)
    assert (config.hash_function, config.int_event_hashes) == ("given_16", True)
    assert kvfast.implementation().create(config).num_free_blocks == 7


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"metrics_collector": SimpleNamespace(sample_rate=0.5)}, "types.SimpleNamespace"),
        ({"coordinator": SimpleNamespace(single_type_managers=())}, "types.SimpleNamespace"),
        ({"max_model_len": 0}, "max_model_len_tokens"),
        ({"kv_cache_config": None}, "a configuration that it cannot read"),
    ],
)
def test_what_is_not_served_is_said(changes: dict[str, Any], reason: str) -> None:
    with pytest.raises((UnsupportedError, ConfigError)) as caught:
        config_of(stock(**changes), {})
    assert reason in reason_of(caught.value)
    assert "\n" not in reason_of(caught.value)


@pytest.mark.parametrize(
    ("member", "value", "expected"),
    [
        ("num_nans_in_logits", None, True),
        ("num_nans_in_logits", {}, True),  # as vLLM's V1 runner returns
        ("num_nans_in_logits", {"r": 1}, False),
        ("prompt_logprobs_dict", {"r": None}, False),
        ("pooler_output", [None], False),
        ("pools", [None], True),
        ("pools", [], False),
        ("logprobs", (), True),
        ("kv_connector_output", object(), False),
        ("sampled_token_ids", [], False),
    ],
)
def test_an_output_of_tokens_alone_is_usual(member: str, value: object, expected: bool) -> None:
    output: dict[str, object] = {"sampled_token_ids": [[1]], "logprobs": None, "pooler_output": []}
    output |= {"prompt_logprobs_dict": {}, "kv_connector_output": None, "num_nans_in_logits": {}}
    pools = member == "pools"
    member = "pooler_output" if pools else member
    absent = dict.fromkeys(("connector", "ec_connector", "perf_metrics"))
    scheduler = SimpleNamespace(**absent, defer_block_free=False)
    scheduler.batched_steps = SimpleNamespace(pools=pools)
    plan = SimpleNamespace(num_invalid_spec_tokens={})
    given = SimpleNamespace(**{**output, member: value})
    assert usual.is_usual(scheduler, plan, given) is expected


def replays(replayed: Any) -> None:
    """Assert that what follows a hit sees its whole window, and nothing is computed for nothing."""
    for window in range(8):
        for hit in range(20):
            cached, again = replayed(window, hit)
            computed = {*range(cached - again, 20)}  # of the layers that keep no blocks
            seen = {*range(max(cached - window, 0), 20)} if cached else {*range(20)}
            assert computed == seen, (window, hit)
            saves = hit > window  # else every token is computed, with the hit or without
            assert cached == (hit if saves else 0), (window, hit)


@pytest.mark.parametrize(
    ("there", "wrong"), [("", ""), ("hit > window", "hit >= window"), ("(hit, w", "(hit - 1, w")]
)
def test_the_end_of_a_hit_is_computed_again(there: str, wrong: str) -> None:
    made: dict[str, Any] = {"__name__": "usual"}
    exec(compile(getsource(usual).replace(there, wrong), "usual", "exec"), made)
    with pytest.raises(AssertionError) if there else nullcontext():
        replays(made["replayed"])
