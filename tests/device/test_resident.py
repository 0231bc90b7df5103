"""Runs of decode steps on the device: what they promise, in words and under random schedules."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch

import kvfast
from kvfast.device import (
    Backend,
    DeviceTables,
    ResidentDecode,
    ResidentOrderError,
    RunDifferenceError,
)
from kvfast.device.resident.plan import Demand
from kvspec.batched import BatchedManager, StepOutput, StepPlan
from kvspec.config import ManagerConfig
from kvspec.errors import InvalidArgumentError, UnsupportedError
from kvspec.request import RequestInput
from kvspec.specs import CircularBufferSpec, LayerSpec, RSWASpec, SlidingWindowSpec
from tests.device.tables import (
    FULL,
    MAMBA,
    ResidentCheck,
    config_of,
    kernel_device,
    resident_engines,
    rows_of,
)

WINDOW = SlidingWindowSpec(4, 1, 8, "float16", sliding_window=5)


pytestmark = pytest.mark.usefixtures("one_thread")


class Decoding:
    """Requests that were admitted, entered into tables, and have one token left to compute."""

    def __init__(
        self,
        *prompts: int,
        specs: tuple[LayerSpec, ...] = (FULL,),
        backend: Backend = "torch",
        max_blocks: int = 30,
        config: ManagerConfig | None = None,
        **options: Any,
    ) -> None:
        config = config or config_of(*specs, **options)
        implementation = kvfast.implementation()
        manager = implementation.create(config)
        self.batched: BatchedManager = implementation.batched(manager)
        device = kernel_device(backend)
        self.tables = DeviceTables(
            config, max_requests=4, max_tokens=64, device=device, backend=backend
        )
        self.handles = [
            self.batched.register(
                implementation.make_request(manager, RequestInput(f"r{n}", [n] * length))
            )
            for n, length in enumerate(prompts)
        ]
        self.rows = torch.zeros((64, 4), dtype=torch.int32)
        self.step(StepPlan(new=self.handles))
        self.batched.append(self.handles, [7] * len(prompts))
        self.resident = ResidentDecode(self.tables, max_blocks=max_blocks)

    def step(self, plan: StepPlan) -> Any:
        result = self.batched.step(plan, StepOutput(self.rows))
        return self.tables.step(plan, result, self.rows)

    def begin(self, max_steps: int = 8, **options: Any) -> int:
        return self.resident.begin(self.batched, self.handles, max_steps, **options)

    def tokens(self, num_steps: int) -> list[list[int]]:
        return [[9] * len(self.handles)] * num_steps


@pytest.mark.rule("KV-DEV-15")
def test_no_more_steps_are_planned_than_there_are_blocks_for() -> None:
    one = Decoding(8, 8, num_blocks=8)  # 3 of 7 are free
    assert one.begin(20) == 4
    one.resident.end()
    assert Decoding(8, 8, num_blocks=6).begin(20) == 0  # each needs one, and one is free
    assert Decoding(8, 7, num_blocks=6).begin(20) == 1
    assert Decoding(8, 8, max_blocks=1).begin(20) == 0
    assert Decoding(8, 8, num_blocks=6).begin(20, max_tokens=[20, 0]) == 4
    assert Decoding(8).begin(100) == 23  # then 31 are computed, and one is sampled
    assert Decoding(8).begin(9, max_tokens=3) == 3
    nobody = Decoding()
    assert nobody.begin() == 0
    nobody.step(StepPlan())


@pytest.mark.rule("KV-DEV-15", "KV-POOL-6")
def test_a_run_ends_before_a_block_without_a_key_leaves_its_window() -> None:
    specs = (FULL, WINDOW)
    one = Decoding(8, specs=specs, num_blocks=30)  # nothing cached: block 0 is freed at 9
    assert one.begin(20) == 0
    cached = ManagerConfig(one.tables.config.kv_cache, 32)
    # Blocks 0 and 1 have keys; new ones, from token 8 on, have none when the run begins.
    two = Decoding(8, config=cached)
    assert two.begin(20) == 8
    while int(two.resident.num_steps) < 8:
        two.resident.step()
    run = two.resident.end()
    two.resident.replay(run, two.batched, two.tokens(8))
    assert two.tables.difference(two.batched) is None


@pytest.mark.rule("KV-DEV-17")
def test_a_batch_from_before_the_run_is_told_again(backend: Backend) -> None:
    one = Decoding(6, 9, 12, backend=backend)
    plan = StepPlan(decoding=list(one.handles))
    one.step(plan)
    one.batched.append(one.handles, [1, 2, 3])
    one.handles.pop(1)
    one.handles.reverse()
    assert one.begin(1) == 1
    one.resident.step()
    one.resident.replay(one.resident.end(), one.batched, one.tokens(1))
    step = one.step(plan)
    assert (step.rows.tolist(), step.positions.tolist()) == ([0, 1, 2], [8, 10, 14])


@pytest.mark.rule("KV-DEV-16")
def test_a_step_beyond_the_planned_ones_grants_nothing(backend: Backend) -> None:
    one = Decoding(8, 7, backend=backend)  # 32 blocks: the reserve would do for more steps
    assert one.begin(2) == 2
    rows = [one.resident.step().rows.tolist() for _ in range(4)]
    assert rows == [[0, 1], [0, 1], [-1, -1], [-1, -1]]
    run = one.resident.end()
    assert (run.num_steps, run.granted) == (2, (2, 2))
    one.resident.replay(run, one.batched, one.tokens(2))
    assert one.tables.difference(one.batched) is None


@pytest.mark.rule("KV-DEV-16")
def test_a_reserve_that_is_too_small_ends_the_run(
    backend: Backend, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Demand, "num_blocks", lambda self, num_steps: 1)
    one = Decoding(8, 7, 8, backend=backend)
    assert one.begin(5) == 5
    rows = [one.resident.step().rows.tolist() for _ in range(2)]
    assert rows == [[-1] * 3] * 2
    run = one.resident.end()
    assert (run.num_steps, run.granted, len(run.rows)) == (0, (0, 0, 0), 0)
    one.resident.replay(run, one.batched, [])
    assert one.tables.difference(one.batched) is None


@pytest.mark.rule("KV-DEV-17")
def test_a_manager_that_was_changed_meanwhile_is_found_out() -> None:
    one = Decoding(8, 8, 4)
    handles = one.handles[:2]
    assert one.resident.begin(one.batched, handles, 1) == 1
    one.resident.step()
    run = one.resident.end()
    # Its last block has no key, so it is freed to the front of the queue.
    (freed,) = one.batched.manager.get_blocks(one.batched.request_of(one.handles[2])).to_lists()
    one.batched.free(one.handles[2:])
    with pytest.raises(RunDifferenceError) as error:
        one.resident.replay(run, one.batched, [[1, 1]])
    assert error.value.step == 0
    assert error.value.host[0] == (0, 0, 2, freed[0])
    assert error.value.device == tuple(map(tuple, run.rows.tolist()))
    assert "step 0 of the run: the manager took" in str(error.value)


@pytest.mark.rule("KV-DEV-17")
def test_a_refusal_of_the_manager_is_a_difference() -> None:
    one = Decoding(8, 8, num_blocks=8)
    assert one.begin(1) == 1
    one.resident.step()
    run = one.resident.end()
    other = one.batched.register(
        kvfast.implementation().make_request(one.batched.manager, RequestInput("x", range(8)))
    )
    one.batched.admit([other])  # takes what the run was promised
    with pytest.raises(RunDifferenceError) as error:
        one.resident.replay(run, one.batched, one.tokens(1))
    assert (error.value.what, error.value.host) == ("refused", (1,))


def test_what_was_not_told_of_lists_is_told_first() -> None:
    one = Decoding(8)
    (handle,) = one.handles
    one.batched.decode([handle], num_lookahead_tokens=6)  # no rows are written
    one.batched.append([handle], [3])
    assert one.batched.num_pending_deltas() == 2
    one.tables.set_lengths([handle], [9])
    assert one.begin(3) == 3
    for _ in range(3):
        one.resident.step()
    run = one.resident.end()
    assert run.rows.tolist() == []
    one.resident.replay(run, one.batched, one.tokens(3))
    assert one.tables.difference(one.batched) is None


def test_tables_that_have_grown_are_used(backend: Backend) -> None:
    one = Decoding(8, 4, backend=backend)
    one.tables.update([9], [3], rows_of((9, 0, 0, 15)))
    assert one.tables.max_requests == 16
    assert one.begin(1) == 1
    assert len(one.resident.left) == 16
    one.resident.step()
    one.resident.replay(one.resident.end(), one.batched, one.tokens(1))
    assert one.tables.difference(one.batched) is None


def test_calls_out_of_turn_are_refused() -> None:
    one = Decoding(8)
    with pytest.raises(ResidentOrderError):
        one.resident.step()
    with pytest.raises(ResidentOrderError):
        one.resident.end()
    assert one.begin(1) == 1
    with pytest.raises(ResidentOrderError):
        one.begin(1)
    rows = rows_of((0, 0, 2, 5))
    for call in (
        lambda: one.tables.update([0], [1], rows),
        lambda: one.tables.difference(one.batched),
        lambda: one.tables.set_lengths([5], [1]),
    ):
        with pytest.raises(ResidentOrderError) as error:
            call()
        assert (error.value.phase, error.value.expected) == ("running", "ended")
    one.resident.step()
    run = one.resident.end()
    with pytest.raises(ResidentOrderError):
        one.resident.end()
    with pytest.raises(ResidentOrderError):
        one.begin(1)
    one.resident.replay(run, one.batched, [[1]])
    with pytest.raises(ResidentOrderError):
        one.resident.replay(run, one.batched, [[1]])


def test_requests_must_decode_and_tables_know_them() -> None:
    one = Decoding(8, 8)
    one.batched.append([one.handles[1]], [1])
    with pytest.raises(InvalidArgumentError) as error:
        one.begin()
    assert error.value.field == "handles[1]"
    one = Decoding(8)
    one.tables.set_lengths([0], [7])
    with pytest.raises(InvalidArgumentError) as error:
        one.begin()
    assert (error.value.field, "not 7" in str(error.value)) == ("handles[0]", True)


@pytest.mark.parametrize(
    "spec",
    [
        MAMBA,
        CircularBufferSpec(4, 1, 8, "float16"),
        RSWASpec(4, 1, 8, "float16", rswa_window=5),
        replace(WINDOW, extra_retained_tokens=1),
        WINDOW,
    ],
    ids=["states", "ring", "rswa", "retained", "window-in-an-order"],
)
def test_other_lists_than_growing_ones_are_not_supported(spec: LayerSpec) -> None:
    config = replace(config_of(FULL, spec), eviction_order="lfu" if spec is WINDOW else "lru")
    tables = DeviceTables(config, max_requests=2, max_tokens=4)
    with pytest.raises(UnsupportedError):
        ResidentDecode(tables, max_blocks=4)


def test_groups_without_slots_have_no_new_blocks() -> None:
    from kvcheck.rules.specs import cross

    one = DeviceTables(config_of(FULL, cross(4)), max_requests=2, max_tokens=4)
    resident = ResidentDecode(one, max_blocks=4)
    assert resident.new_blocks(1) is None
    found = resident.new_blocks(0)
    assert found is not None
    assert found.tolist() == [-1, -1]


def runs(seeds: range) -> list[ResidentCheck]:
    return list(resident_engines(seeds))


@pytest.mark.rule("KV-DEV-15", "KV-DEV-16", "KV-DEV-17")
def test_random_runs_between_random_steps() -> None:
    played = runs(range(150))
    assert sum(engine.num_run_steps for engine in played) > 100
    assert sum(engine.num_taken for engine in played) > 50
    assert sum(engine.num_stopped for engine in played) > 5
    assert sum(engine.num_short for engine in played) > 20


@pytest.mark.rule("KV-DEV-15", "KV-DEV-16", "KV-DEV-17")
def test_random_runs_of_kernels() -> None:
    pytest.importorskip("triton", reason="Triton is not installed")
    played = list(resident_engines(range(7, 12), "triton", num_steps=16))
    assert sum(engine.num_run_steps for engine in played) > 5


@pytest.mark.deep
def test_many_random_runs(backend: Any) -> None:
    for _ in resident_engines(range(1000, 4000 if backend == "torch" else 1100), backend):
        pass
