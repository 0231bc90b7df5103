"""Whole steps of kvfast, audited and monitored, and its metrics."""

from __future__ import annotations

import re
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.parser import text_string_to_metric_families

import kvcheck
import kvfast
from kvfast._core.batch import FastBatch
from kvfast._implementation import FastImplementation
from kvfast.metrics import FAMILIES, ManagerMetrics
from kvspec.batched import BatchedManager
from kvspec.errors import InvalidArgumentError, InvariantViolation
from kvspec.interface import KVCacheManager
from kvspec.request import RequestInput
from kvspec.sequential import SequentialManager
from tests.contract.builders import make_config

FAST = FastImplementation("uncompiled")


def manager(*, check_invariants: bool) -> KVCacheManager:
    return FAST.create(make_config(10), check_invariants=check_invariants)


def admitted(batch: BatchedManager) -> int:
    request = FAST.make_request(batch.manager, RequestInput("r", range(9)))
    handle = batch.register(request)
    assert list(batch.admit([handle]).num_scheduled_tokens) == [9]
    return handle


def test_a_bare_manager_has_native_steps() -> None:
    assert isinstance(FAST.batched(manager(check_invariants=False)), FastBatch)


def test_an_audited_manager_is_audited_after_each_batched_call() -> None:
    audited = manager(check_invariants=True)
    batch = FAST.batched(audited)
    handle = admitted(batch)
    assert batch.manager is audited
    inner = audited.inner  # type: ignore[attr-defined]  # an audit's
    inner.core.pool.set_refs(1, 7)
    with pytest.raises(InvariantViolation):
        batch.decode([handle])


def test_a_monitor_sees_the_calls_of_a_step(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)  # it writes the record of a violation
    watched = kvcheck.monitor(manager(check_invariants=False), every=1)
    batch = FAST.batched(watched)
    assert isinstance(batch, SequentialManager)
    admitted(batch)
    inner: Any = watched.inner
    inner.core.pool.set_refs(1, 7)
    with pytest.raises(InvariantViolation):
        batch.decode([0])


NAME = 'a "model"\nwith a \\'


def manager_of_metrics(*, log_stats: bool = True) -> KVCacheManager:
    return kvfast.implementation().create(make_config(11, log_stats=log_stats))


def look_up(made: KVCacheManager, name: str, *, preempted: bool = False) -> None:
    """Serve a prompt of nine tokens, whose second request hits eight."""
    request = kvfast.implementation().make_request(made, RequestInput(name, range(1, 10)))
    request.num_preemptions = int(preempted)
    hit = made.get_computed_blocks(request)
    made.allocate_slots(
        request,
        9 - hit.hit_length_tokens,
        num_new_computed_tokens=hit.hit_length_tokens,
        new_computed_blocks=hit.blocks,
    )
    made.record_prefix_cache_stats(request, hit.hit_length_tokens)
    made.free(request)


def samples(text: str) -> dict[str, float]:
    found = {}
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            assert sample.labels == {"model_name": NAME, "engine": "3"}
            found[sample.name] = sample.value
    return found


def test_sums_are_those_of_the_manager_and_only_grow() -> None:
    made = manager_of_metrics()
    metrics = ManagerMetrics(made, model_name=NAME, engine="3")
    for name in ("a", "b"):
        look_up(made, name)
        assert metrics.observe().queries_tokens == 9
    look_up(made, "c", preempted=True)
    assert made.reset_prefix_cache()
    held = kvfast.implementation().make_request(made, RequestInput("d", range(20)))
    made.allocate_slots(held, 20)
    assert samples(metrics.text())["kvspec:preempted_queries_total"] == 0, "not before it observes"
    assert metrics.observe().reset
    expected = {
        "vllm:kv_cache_usage_perc": 0.5,
        "vllm:prefix_cache_queries_total": 18,
        "vllm:prefix_cache_hits_total": 8,
        "kvspec:preempted_queries_total": 9,
        "kvspec:preempted_hits_total": 8,
        "kvspec:prefix_cache_resets_total": 1,
    }
    assert samples(metrics.text()) == expected
    metrics.observe()
    assert samples(metrics.text()) == expected
    registry = CollectorRegistry()
    registry.register(metrics)
    assert generate_latest(registry).decode() == metrics.text()


def test_the_text_needs_no_other_package(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "prometheus_client", None)
    assert "kv_cache_usage_perc" in ManagerMetrics(manager_of_metrics(), model_name="m").text()


def test_names_and_kinds_are_those_that_vllm_gives() -> None:
    spec = find_spec("vllm")
    if spec is None or spec.origin is None:
        pytest.skip("vllm is not installed")
    source = (Path(spec.origin).parent / "v1" / "metrics" / "loggers.py").read_text("utf-8")
    made = re.findall(r'self\._(gauge|counter)_cls\(\s*name="(vllm:\w+)"', source)
    kinds = {name: kind == "counter" for kind, name in made}
    for each in FAMILIES:
        assert each.name.startswith("kvspec:") or kinds[each.name] == each.is_counter


def test_a_manager_that_counts_nothing_is_refused() -> None:
    with pytest.raises(InvalidArgumentError, match="log_stats"):
        ManagerMetrics(manager_of_metrics(log_stats=False), model_name="m")
