"""Tables on the device: what a step sends, what it need not send, and that the host never waits."""

from __future__ import annotations

from array import array
from collections.abc import Callable
from dataclasses import fields
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

import kvfast
from kvfast.device import DeviceTables, TableDifference
from kvfast.device.tables.staging import Staging
from kvfast.device.tables.state import Header
from kvspec.batched import BatchedManager, StepOutput, StepPlan
from kvspec.request import RequestInput
from kvspec.specs import CrossAttentionSpec, EncoderOnlyAttentionSpec, FullAttentionSpec
from tests.device.tables import FULL, MAMBA, TableCheck, config_of, engines, rows_of, tables_of


@pytest.mark.rule("KV-DEV-11")
def test_a_token_behind_the_row_has_no_slot(backend: Any) -> None:
    tables = tables_of(FULL, backend=backend, widths=[1])
    step = tables.update([0], [6], rows_of((0, 0, 0, 3), (1, 0, 0, 4)))
    assert step.slots[0] is not None
    assert step.slots[0].tolist() == [12, 13, 14, 15, -1, -1]


@pytest.mark.rule("KV-DEV-9")
def test_every_group_has_a_table_and_attention_over_the_sequence_has_slots() -> None:
    tables = tables_of(
        FULL,
        MAMBA,
        CrossAttentionSpec(8, 1, 8, "float16"),
        EncoderOnlyAttentionSpec(4, 1, 8, "float16"),
        widths=[None, None, 9, None],
    )
    assert [list(tables.table(g).shape) for g in range(4)] == [[2, 8], [2, 6], [2, 9], [2, 0]]
    step = tables.update([1], [1], rows_of((1, 0, 0, 3), (1, 1, 0, 4), (1, 2, 8, 5)))
    assert [slots is None for slots in step.slots] == [False, True, True, True]
    assert tables.block_tables(2).tolist() == [8 * [0] + [5]]
    assert tables.table(1)[1].tolist() == [4, 0, 0, 0, 0, 0]


# What travels.


def decode_tables(num: int) -> tuple[DeviceTables, BatchedManager]:
    config = config_of(FullAttentionSpec(16, 1, 8, "float16"), num_blocks=8 * num, longest=64)
    implementation = kvfast.implementation()
    manager = implementation.create(config, check_invariants=False)
    batched = implementation.batched(manager)
    for n in range(num):
        prompt = RequestInput(f"r{n}", range(1 + n % 16, 18))
        batched.register(implementation.make_request(manager, prompt))
    tables = DeviceTables(config, max_requests=num, max_tokens=17 * num)
    rows = np.empty((2 * num, 4), np.int32)
    plan = StepPlan(new=range(num))
    tables.step(plan, batched.step(plan, StepOutput(rows)), rows)
    return tables, batched


@pytest.mark.rule("KV-DEV-12")
def test_a_decode_step_stages_its_new_blocks_and_nothing_of_its_batch() -> None:
    """Decode 1,024 requests, 64 of which take a block per step: 8 bytes each, and a header."""
    num = 1024
    tables, batched = decode_tables(num)
    rows = np.empty((num, 4), np.int32)
    plan = StepPlan(decoding=range(num))
    told, taken = list[int](), list[int]()
    for _ in range(18):
        batched.append(range(num), [5] * num)
        result = batched.step(plan, StepOutput(rows))
        tables.step(plan, result, rows)
        told.append(tables.staged_bytes)
        taken.append(result.num_deltas)
    assert sum(taken) > num
    assert told[0] == 32 + 8 * taken[0] + 8 * num  # another batch than the prompts were
    assert told[1:] == [32 + 8 * number for number in taken[1:]]
    assert all(bytes_ <= 16 * number for bytes_, number in zip(told[1:], taken[1:], strict=True))
    assert tables.difference(batched) is None


@pytest.mark.rule("KV-DEV-12")
def test_a_batch_of_drafts_stays_the_same_and_a_rewind_is_8_bytes(backend: Any) -> None:
    tables = tables_of(FULL, backend=backend)
    tables.update([0, 1], [3, 3])
    tables.rewind([1], [2])
    step = tables.update([0, 1], [3, 3])
    assert tables.staged_bytes == 32 + 8
    assert step.positions.tolist() == [3, 4, 5, 1, 2, 3]
    tables.update([0, 1], [3, 2])
    assert tables.staged_bytes == 32 + 16
    tables.update([], [])
    assert tables.staged_bytes == 32
    assert tables.padded.rows.tolist() == [-1, -1]
    assert tables.num_computed.tolist() == [9, 6]


@pytest.mark.rule("KV-DEV-10")
def test_of_rows_for_one_entry_the_last_counts_also_among_several_messages(backend: Any) -> None:
    tables = tables_of(FULL, backend=backend, max_entries=2)
    tables.write(rows_of((0, 0, 0, 1), (0, 0, 1, 2), (1, 0, 0, 3)))
    tables.update([0], [1], rows_of((0, 0, 0, 4), (0, 0, 2, 5), (0, 0, 3, 6), (0, 0, 0, 7)))
    assert tables.table(0)[:, :5].tolist() == [[7, 2, 5, 6, 0], [3, 0, 0, 0, 0]]
    assert tables.staged_bytes == 2 * (32 + 16) + 32 + 8 + 8


@pytest.mark.rule("KV-DEV-10")
def test_of_a_list_whose_blocks_move_only_what_changed_is_told(backend: Any) -> None:
    """Check the example of KV-MAMBA-9."""
    tables = tables_of(MAMBA, FULL, backend=backend)
    tables.set_row(1, 0, [0, 1, 2, 3])
    tables.update([1], [1])
    tables.set_row(1, 0, array("i", [0, 1, 0, 3, 2, 4]))
    tables.update([1], [1], rows_of((1, 0, 4, 2), (1, 0, 5, 4)))
    assert tables.table(0).tolist() == [[0] * 6, [0, 1, 0, 3, 2, 4]]
    assert tables.staged_bytes == 32 + 3 * 8
    tables.set_row(0, 1, [5, 0, 6])
    tables.update([1], [1])
    assert tables.table(1)[0, :4].tolist() == [5, 0, 6, 0]


# Rows: used again, more of them.


def test_steps_of_the_same_size_write_to_the_same_memory(backend: Any) -> None:
    tables = tables_of(FULL, backend=backend)
    first = tables.update([0], [2], rows_of((0, 0, 0, 1)))
    second = tables.update([1], [2], rows_of((1, 0, 0, 2)))
    assert first.positions.data_ptr() == second.positions.data_ptr()
    assert first.slots[0] is not None
    assert first.slots[0].tolist() == [8, 9]


def test_a_difference_says_where_and_what() -> None:
    tables, batched = decode_tables(2)
    assert tables.difference(batched) is None
    tables.set_lengths([1], [17])
    found = tables.difference(batched)
    assert found == TableDifference(1, None, None, 17, 16)
    assert str(found) == "request 1: 17 computed tokens on the device, not 16"
    tables.set_lengths([1], [16])
    tables.write(rows_of((0, 0, 1, 9)))
    found = tables.difference(batched)
    assert str(found) == "request 0, group 0, index 1: block 9 on the device, not 2"


# Random schedules.


def schedules(seeds: range) -> list[TableCheck]:
    return list(engines(seeds, "torch"))


@pytest.mark.rule("KV-DEV-9", "KV-DEV-10", "KV-DEV-11", "KV-DEV-12")
def test_tables_are_what_the_manager_answers_after_every_step() -> None:
    played = schedules(range(60))
    assert sum(engine.num_steps for engine in played) == 1200
    assert sum(engine.num_rewound for engine in played) > 100
    assert max(engine.tables.max_requests for engine in played) > 2


@pytest.mark.rule("KV-DEV-9", "KV-DEV-10", "KV-DEV-11", "KV-DEV-12")
def test_tables_of_kernels_are_what_the_manager_answers() -> None:
    pytest.importorskip("triton", reason="Triton is not installed")
    played = list(engines(range(7, 14), "triton", num_steps=7))
    assert sum(engine.num_granted for engine in played) > 30


@pytest.mark.deep
def test_tables_are_right_under_many_schedules(backend: Any) -> None:
    num = 3000 if backend == "torch" else 60
    for _ in engines(range(1000, 1000 + num), backend):
        pass


NUM_WORDS = 20


class SlowDevice:
    """Copies are done as late as they may be: when an event behind them is waited for."""

    def __init__(self) -> None:
        self.queued: list[Callable[[], None]] = []
        self.num_done = 0
        self.arrived: list[list[int]] = []

    def __getitem__(self, part: slice) -> SlowDevice:
        return self

    def copy_(self, source: torch.Tensor, *, non_blocking: bool) -> None:
        assert non_blocking
        self.queued.append(lambda: self.arrived.append(source.tolist()))

    def work(self, until: int) -> None:
        for copy in self.queued[self.num_done : until]:
            copy()
        self.num_done = max(self.num_done, until)


class Event:
    """As CUDA's: behind the copies so far when it was recorded; before that nothing to wait for."""

    def __init__(self, device: SlowDevice) -> None:
        self.device = device
        self.behind = 0

    def record(self) -> None:
        self.behind = len(self.device.queued)

    def synchronize(self) -> None:
        self.device.work(self.behind)


def sent_to(device: Any) -> list[list[int]]:
    staging = Staging(NUM_WORDS, torch.device("cpu"))
    staging._events = [Event(device), Event(device)]
    wanted = []
    for number in range(7):
        header = Header(num_entries=number)
        words = torch.arange(number) + 100 * number
        staging.send(header, [words, words + 50], device)
        wanted.append([*header.to_list(), *words.tolist(), *(words + 50).tolist()])
    device.work(len(device.queued))
    assert staging.copied_bytes == 4 * sum(map(len, wanted))
    return wanted


@pytest.mark.rule("KV-DEV-13")
def test_a_buffer_is_not_written_while_a_copy_reads_it() -> None:
    device = SlowDevice()
    assert sent_to(device) == device.arrived


def test_the_host_waits_only_for_the_copy_before_the_last() -> None:
    device = SlowDevice()
    staging = Staging(NUM_WORDS, torch.device("cpu"))
    staging._events = [Event(device), Event(device)]
    done = []
    for number in range(4):
        staging.send(Header(num_entries=number), [], device)
        done.append(device.num_done)
    assert done == [0, 0, 1, 2]


class NoWaiting(TorchDispatchMode):  # type: ignore[misc] # torch does not say what it is
    """Fails where what is on the device decides on the host: it would wait on a real one."""

    def __init__(self, tables: DeviceTables) -> None:
        super().__init__()
        state = tables._device.state
        self.kept: list[torch.Tensor] = [getattr(state, field.name) for field in fields(state)]
        self.there = set[int]()
        self.note()

    def note(self) -> None:
        self.there = {one.untyped_storage().data_ptr() for one in self.kept} - {0}

    def is_there(self, value: object) -> bool:
        return isinstance(value, torch.Tensor) and value.untyped_storage().data_ptr() in self.there

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = func.overloadpacket.__name__
        flat = [x for arg in args for x in (arg if isinstance(arg, (list, tuple)) else [arg])]
        if any(map(self.is_there, flat)):
            assert name not in ("_local_scalar_dense", "nonzero", "masked_select", "equal"), name
            assert name != "copy_" or self.is_there(args[0]), "a copy to the host"
            masks = [x for x in flat[1:] if isinstance(x, torch.Tensor) and x.dtype == torch.bool]
            assert not name.startswith("index") or not masks, "as many as a mask has on the device"
        result = func(*args, **(kwargs or {}))
        made = result if isinstance(result, (list, tuple)) else [result]
        if any(map(self.is_there, flat)):
            self.kept += [one for one in made if isinstance(one, torch.Tensor)]
            self.note()
        return result


def busy_step(tables: DeviceTables) -> None:
    tables.rewind([0], [1])
    tables.set_row(1, 1, [0, 3, 4])
    tables.update([1, 0], [2, 0], rows_of((1, 0, 0, 2), (0, 0, 1, 2), (1, 0, 2, 2)))
    tables.block_tables(0)
    tables.update([1, 0], [2, 0])


@pytest.mark.rule("KV-DEV-13")
def test_a_step_never_waits_for_the_device() -> None:
    tables = tables_of(FULL, MAMBA, max_entries=2)
    tables.update([0], [3])
    with NoWaiting(tables):
        busy_step(tables)
