"""Properties that only a GPU shows: no waits, graph capture, the order of streams."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch

import kvfast
from kvfast.device import (
    Backend,
    Crossover,
    DeviceTables,
    KVPools,
    PageOperations,
    PrefixIndex,
    Swapper,
)
from kvfast.device.base.backend import BACKENDS
from kvfast.device.tier.offload import Offload
from kvspec.batched import StepPlan
from kvspec.request import RequestInput
from tests.device.models import DEVICE, cache, contents, filled, full
from tests.device.models import config_of as one_group
from tests.device.tables import FULL, MAMBA, config_of, rows_of
from tests.device.test_resident import Decoding

pytestmark = pytest.mark.skipif(
    not DEVICE.startswith("cuda"), reason="needs a GPU: KVSPEC_TEST_DEVICE=cuda"
)

CONFIG = cache(full())
LONG = 200_000_000
"""Cycles of a GPU, some tenth of a second: longer than the host takes for anything here."""


@contextmanager
def no_waiting() -> Iterator[None]:
    torch.cuda.synchronize()
    torch.cuda.set_sync_debug_mode("error")
    try:
        yield
    finally:
        torch.cuda.set_sync_debug_mode("default")


def test_waiting_is_found() -> None:
    number = torch.ones(1, device=DEVICE)
    with pytest.raises(RuntimeError), no_waiting():
        number.item()
    with pytest.raises(RuntimeError), no_waiting():
        torch.ones(1).to(DEVICE)


def tokens(num: int) -> tuple[torch.Tensor, torch.Tensor]:
    return torch.ones(num, 2, 6, device=DEVICE), torch.ones(num, 2, 3, device=DEVICE)


@pytest.mark.rule("KV-DEV-7")
@pytest.mark.parametrize("mode", ["NONE", "INT8_PER_TOKEN_HEAD"])
def test_no_operation_waits_for_the_device(mode: str, backend: Backend) -> None:
    dtype = "float16" if mode == "NONE" else "int8"
    operations = PageOperations(filled(cache(full(dtype, mode))), backend=backend)
    keys, values = tokens(2)
    slots = torch.arange(5, 7, device=DEVICE)
    ids = torch.arange(1, 5, device=DEVICE, dtype=torch.int32)
    with no_waiting():
        for _ in range(2):  # the first time compiles
            operations.write("0.0", keys, values, slots)
            operations.write("0.0", keys, values, [9, -1])
            operations.gather("0.0", slots, dtype=torch.float32)
            operations.gather("0.0", [9, -1])
            operations.copy_blocks([1], [2])
            operations.copy_blocks(ids[:2], ids[2:], group=0)
            operations.copy_slots(0, [5], [9])
            operations.zero_blocks([3])
            operations.zero_blocks(ids)


@pytest.mark.rule("KV-DEV-7")
def test_ids_in_pinned_memory_may_be_overwritten_at_once(backend: Backend) -> None:
    pools = filled(CONFIG)
    operations = PageOperations(pools, backend=backend)
    operations.zero_blocks([1])  # compiles
    ids = torch.tensor([4, 5]).pin_memory()
    with no_waiting():
        torch.cuda._sleep(LONG)
        operations.zero_blocks(ids)
        ids.fill_(6)
    assert not pools.pages[0][4:6].any()
    assert pools.pages[0][6].any()


@pytest.mark.rule("KV-DEV-13")
def test_no_step_of_tables_waits_for_the_device(backend: Backend) -> None:
    tables = DeviceTables(
        config_of(FULL, MAMBA), max_requests=2, max_tokens=16, max_entries=2, device=DEVICE,
        backend=backend,
    )  # fmt: skip
    with no_waiting():
        tables.update([0], [3], rows_of((0, 0, 0, 1)))
        tables.rewind([0], [1])
        tables.set_row(1, 1, [0, 3, 4])
        tables.update([1, 0], [2, 0], rows_of((1, 0, 0, 2), (0, 0, 1, 2), (1, 0, 2, 2)))
        tables.block_tables(0)
        step = tables.update([1, 0], [2, 0])
    assert step.positions.tolist() == [2, 3]


def captured(call: Callable[[], object]) -> torch.cuda.CUDAGraph:
    call()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        call()
    return graph


@pytest.mark.rule("KV-DEV-3", "KV-DEV-5", "KV-DEV-6")
def test_operations_can_be_captured_in_a_graph(backend: Backend) -> None:
    pools, expected = filled(CONFIG), filled(CONFIG)
    operations, other = PageOperations(pools, backend=backend), PageOperations(expected)
    keys, values = tokens(3)
    slots = torch.tensor([5, 9, -1], device=DEVICE)
    sources, destinations = (torch.tensor([block], device=DEVICE) for block in (1, 3))
    read: list[torch.Tensor] = []

    def step() -> None:
        operations.zero_blocks(destinations)
        operations.write("0.0", keys, values, slots)
        operations.copy_blocks(sources, destinations)
        read[:] = operations.gather("0.0", slots)

    graph = captured(step)
    keys.fill_(3.0)
    slots.copy_(torch.tensor([13, -1, 17], device=DEVICE))
    sources.fill_(4)
    destinations.fill_(5)
    graph.replay()
    other.write("0.0", *tokens(2), [5, 9])
    other.copy_blocks([1], [3])
    other.zero_blocks([5])
    other.write("0.0", keys, values, slots)
    other.copy_blocks([4], [5])
    assert contents(pools) == contents(expected)
    assert read[0][:, 0, 0].tolist() == [3.0, 0.0, 3.0]


@pytest.mark.rule("KV-DEV-13")
def test_a_step_of_tables_is_captured_once_and_replayed_with_others() -> None:
    pytest.importorskip("triton", reason="Triton is not installed")
    tables, plain = (
        DeviceTables(config_of(FULL), max_requests=8, max_tokens=32, device=DEVICE, backend=backend)
        for backend in BACKENDS[::-1]
    )
    first = ([0, 1], [3, 4], rows_of((0, 0, 0, 1), (1, 0, 0, 2)))
    for one in (tables, plain):
        one.update(*first)
    tables.update([], [])
    plain.update([], [])
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        tables.apply()
    batches: list[Any] = [([1], [1], rows_of((1, 0, 1, 5))), ([0, 1, 7], [2, 1, 9])]
    for batch in (*batches, ([0, 1, 7], [2, 1, 1])):
        tables.stage(*batch)
        graph.replay()
        plain.update(*batch)
        for name in ("rows", "query_start", "seq_lens", "places", "positions"):
            mine, theirs = getattr(tables.padded, name), getattr(plain.padded, name)
            assert torch.equal(mine, theirs), name
        assert tables.padded.slots[0] is not None
        assert plain.padded.slots[0] is not None
        assert torch.equal(tables.padded.slots[0], plain.padded.slots[0])


# Streams.


def swapping() -> tuple[KVPools, KVPools, Swapper]:
    pytest.importorskip("triton", reason="Triton is not installed")
    pools, host = filled(CONFIG), KVPools(CONFIG, pin_memory=True)
    swapper = Swapper(pools, host)
    swapper.swap_out([6], [6]).synchronize()  # compiled from here on
    return pools, host, swapper


@pytest.mark.rule("KV-DEV-8")
def test_a_swap_comes_after_what_was_queued_and_the_host_goes_on() -> None:
    pools, host, swapper = swapping()
    with no_waiting():
        torch.cuda._sleep(LONG)
        pools.pages[0][1:3].fill_(9)
        out = swapper.swap_out([1, 2], [4, 5])
        out.wait()
        pools.pages[0][1:3].fill_(8)  # after the copy: it waited
        assert not out.is_done
    torch.cuda.synchronize()
    assert out.is_done
    assert bool((host.pages[0][4:6] == 9).all())
    assert bool((pools.pages[0][1:3] == 8).all())


@pytest.mark.rule("KV-DEV-8")
def test_what_is_queued_after_the_wait_comes_after_the_swap() -> None:
    pools, host, swapper = swapping()
    host.pages[0][4] = 9
    with no_waiting():
        with torch.cuda.stream(swapper.streams._copying):  # type: ignore[attr-defined] # a GPU's
            torch.cuda._sleep(LONG)
        back = swapper.swap_in([4], [1])
        back.wait()
        read = pools.pages[0][1].clone()
        assert not back.is_done
    back.synchronize()
    assert bool((read == 9).all())


@pytest.mark.rule("KV-DEV-8")
def test_blocks_that_go_out_over_spare_blocks_come_back() -> None:
    pools, _, swapper = swapping()
    before, blocks = contents(pools), [3, 1, 6, 2, 5]
    offload = Offload(swapper, 2)
    with torch.cuda.stream(swapper.streams._copying):  # type: ignore[attr-defined] # a GPU's
        torch.cuda._sleep(LONG)
    with no_waiting():
        offload.copy(blocks, blocks)
        for pages in pools.pages:
            pages[1:].fill_(7)  # at once: nothing was awaited
        swapper.swap_in([*blocks], [*blocks]).wait()
    kept = contents(pools)
    offload.synchronize()
    size = len(before[0]) // CONFIG.num_blocks
    for block in blocks:
        at = slice(block * size, (block + 1) * size)
        assert [one[at] for one in kept] == [one[at] for one in before]


# Runs and prompts.


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
    with no_waiting():
        assert one.begin(3) == 3
        one.resident.step()
        one.resident.left[:1].fill_(0)
        one.resident.step()
    assert one.resident.end().granted == (1, 2, 2)


@pytest.mark.rule("KV-DEV-18", "KV-DEV-19")
def test_neither_hashing_nor_look_up_waits_for_the_device() -> None:
    implementation = kvfast.implementation()
    manager = implementation.create(one_group(4, enable_events=True))
    index = PrefixIndex(implementation, manager, device=DEVICE, crossover=Crossover(1))
    request = implementation.make_request(manager, RequestInput("a", range(9)))
    tokens, starts = torch.arange(18) % 9, [0, 9, 18]
    index.lookup(tokens, starts)  # the first time compiles
    manager.allocate_slots(request, 9)
    there = tokens.to(DEVICE)
    with no_waiting():
        index.update(manager.take_events())
        found = index.lookup(there, starts)
        manager.evict_blocks([1])
        index.update(manager.take_events())
        after = index.lookup(tokens, starts)
    assert (found.tolist(), after.tolist()) == ([8, 8], [0, 0])
