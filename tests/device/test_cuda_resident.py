"""What only a GPU shows of runs: they are captured in a graph, and nothing waits for the device."""

from __future__ import annotations

import pytest
import torch

from kvspec.batched import StepPlan
from tests.device.models import DEVICE
from tests.device.test_resident import Decoding

pytestmark = pytest.mark.skipif(
    not DEVICE.startswith("cuda"), reason="needs a GPU: KVSPEC_TEST_DEVICE=cuda"
)


@pytest.mark.rule("KV-DEV-13", "KV-DEV-15")
def test_steps_of_runs_are_replays_of_one_graph() -> None:
    one = Decoding(7, 8, 9, backend="triton", num_blocks=40)
    assert one.begin(2) == 2
    one.resident.step()  # compiles
    padded = one.tables.padded
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        one.resident.step()
    graph.replay()
    assert padded.positions[:3].tolist() == [8, 9, 10]
    run = one.resident.end()
    assert (run.num_steps, run.granted) == (2, (2, 2, 2))
    one.resident.replay(run, one.batched, one.tokens(2))
    one.handles.reverse()
    assert one.begin(5) == 5
    for _ in range(6):
        graph.replay()
    assert padded.rows.tolist() == [-1] * 4
    run = one.resident.end()
    assert run.num_steps == 5
    one.resident.replay(run, one.batched, one.tokens(5))
    assert one.tables.difference(one.batched) is None
    one.step(StepPlan(decoding=one.handles))
    assert one.tables.difference(one.batched) is None


@pytest.mark.rule("KV-DEV-13")
def test_neither_the_beginning_nor_a_step_waits() -> None:
    one = Decoding(7, 8, 9, backend="triton")
    assert one.begin(1) == 1
    one.resident.step()
    one.resident.replay(one.resident.end(), one.batched, one.tokens(1))
    torch.cuda.set_sync_debug_mode("error")
    try:
        assert one.begin(3) == 3
        one.resident.step()
        one.resident.left[:1].fill_(0)
        one.resident.step()
    finally:
        torch.cuda.set_sync_debug_mode("default")
    assert one.resident.end().granted == (1, 2, 2)
