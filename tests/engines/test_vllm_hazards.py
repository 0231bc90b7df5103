"""vLLM 0.33's own connectors under the checker of hazards; also with mistakes in their order."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests.commands import said_by

Patch = Callable[[pytest.MonkeyPatch], None]


pytestmark = pytest.mark.usefixtures("engine", "later")


@pytest.fixture(autouse=True)
def hazards(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KVSPEC_SHADOW_HAZARDS", "1")


def no_flush(monkeypatch: pytest.MonkeyPatch) -> None:
    """The worker does not await stores whose blocks have gone to others."""
    from examples.vllm.planted import Connector, without_flush

    build = "_build_connector_meta"
    monkeypatch.setattr(Connector, build, without_flush(getattr(Connector, build)))


def no_hold(monkeypatch: pytest.MonkeyPatch) -> None:
    """A store does not hold the blocks that it reads."""
    from vllm.v1.simple_kv_offload import manager

    def bound(self: Any, pool: Any) -> None:
        kept = ("blocks", "cached_block_hashes_by_block", "get_cached_block")
        rest = {"touch": lambda blocks: None, "free_blocks": lambda blocks: None}
        self._gpu_block_pool = SimpleNamespace(**{n: getattr(pool, n) for n in kept}, **rest)

    monkeypatch.setattr(manager.SimpleCPUOffloadScheduler, "bind_gpu_block_pool", bound)


def no_deferral(monkeypatch: pytest.MonkeyPatch) -> None:
    """Blocks are free one step too early: before a step under way has ended."""
    from vllm.v1.core.sched.scheduler import Scheduler

    monkeypatch.setattr(Scheduler, "_request_blocks_can_be_freed", lambda *_: True)


def no_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    """An aborted request gives its blocks back while its load is under way."""
    from vllm.v1.core.sched.scheduler import Scheduler

    own, learn = Scheduler.finish_requests, Scheduler._update_from_kv_xfer_finished

    def finished(self: Any, name: str, status: Any) -> Any:
        self.finished_recving_kv_req_ids.add(name)
        return own(self, name, status)

    def learned(self: Any, told: Any) -> None:
        told.finished_recving &= self.requests.keys()
        learn(self, told)

    monkeypatch.setattr(Scheduler, "finish_requests", finished)
    monkeypatch.setattr(Scheduler, "_update_from_kv_xfer_finished", learned)


def run(both: Any, num_steps: int) -> str | None:
    """Run step by step, and abort every tenth request whose load is under way."""
    for number in range(num_steps):
        if difference := both.run(1):
            return str(difference)
        held = both.sides[0].scheduler.kv_holding_waiting
        for name in [each.request_id for each in held][: number % 10 == 0]:
            for side in both.sides:
                side.scheduler.finish_requests(
                    name, side.scheduler.requests[name].status.FINISHED_ABORTED
                )
    return None


@pytest.mark.parametrize("name", ["offloading", "simple", "simple, lazy", "nixl", "mooncake"])
def test_vllms_own_connectors_have_no_hazard(pair: Any, name: str) -> None:
    """With steps one after the other, and two under way. kvfast makes the same plans."""
    for kind in ("", ", async"):
        for shadow in (True, False):
            both = pair(f"own {name}{kind}", shadow=shadow)
            assert run(both, 200) is None
            assert both.worker.num_loads > 3
        assert name in ("nixl", "mooncake") or both.worker.num_stores > 20


@pytest.mark.parametrize(
    ("setup", "mistake", "rule"),
    [
        ("offloading", no_flush, "KV-HAZ-3"),
        ("simple", no_hold, "KV-HAZ-3"),
        ("simple, async", no_deferral, "KV-HAZ-4"),
        ("nixl", no_wait, "KV-HAZ-4"),
    ],
)
def test_a_mistake_in_the_order_is_named_by_its_rule(
    shadowed: Any, monkeypatch: pytest.MonkeyPatch, setup: str, mistake: Patch, rule: str
) -> None:
    mistake(monkeypatch)
    both = shadowed(f"own {setup}")
    with suppress(AssertionError, KeyError, AttributeError):  # vLLM's, once it is in disorder
        run(both, 400)
    assert f"step: {rule}" in str(both.mirror.difference)


def test_the_record_is_one_that_the_command_reads(
    shadowed: Any,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setenv("KVSPEC_SHADOW_HAZARDS", str(tmp_path / "record.jsonl"))
    assert shadowed("own offloading").run(60) is None
    said = said_by(f"hazards {tmp_path}/record.jsonl", capsys)
    assert "lines, 0 hazards" in said[0]


def with_nans(monkeypatch: pytest.MonkeyPatch) -> None:
    """Half of the steps count NaN in the logits of a request, and none in the others'."""
    from examples.vllm.lockstep import Lockstep

    own = Lockstep.sampled

    def sampled(self: Any, plan: Any, chunks: Any) -> Any:
        made = own(self, plan, chunks)
        failed = self.rng.random() < 0.5
        made.num_nans_in_logits = {name: failed * (not i) for i, name in enumerate(made.req_ids)}
        return made

    monkeypatch.setattr(Lockstep, "sampled", sampled)


def test_a_hit_of_what_failed_is_found(shadowed: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    both = shadowed("full")
    assert both.run(100) is None
    with_nans(monkeypatch)
    assert "KV-HAZ-5" in str(both.run(400))


@pytest.mark.parametrize("keeps", [False, True])
def test_a_hit_of_what_failed_to_arrive_is_found(
    shadowed: Any, monkeypatch: pytest.MonkeyPatch, *, keeps: bool
) -> None:
    """`keeps`: vLLM keeps the keys of blocks whose load has failed."""
    from vllm.v1.core.kv_cache_manager import KVCacheManager

    if keeps:
        monkeypatch.setattr(KVCacheManager, "evict_blocks", lambda *_: None)
    both, said = shadowed("full, loads fail and end"), list[str]()
    both.mirror.report = said.append
    for _ in range(200):
        both.run(1)
    assert any("KV-HAZ-5" in each for each in said) is keeps
