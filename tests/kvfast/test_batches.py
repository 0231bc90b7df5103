"""Results of `batched` for managers that are wrapped."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import kvcheck
from kvfast._core.batch import FastBatch
from kvfast._implementation import FastImplementation
from kvspec.batched import BatchedManager
from kvspec.errors import InvariantViolation
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
