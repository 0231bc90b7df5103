"""The host never waits for the device, and messages reach a slow one as they were."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import fields
from typing import Any

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from kvfast.device import DeviceTables
from kvfast.device.tables.staging import Staging
from kvfast.device.tables.state import Header
from tests.device.tables import FULL, MAMBA, rows_of, tables_of

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
