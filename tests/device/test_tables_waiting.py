"""A step never waits for the device: nothing that is there decides anything on the host."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import fields
from typing import Any

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from kvfast.device import DeviceTables
from kvfast.device.tables.state import DeviceState
from tests.device.tables import FULL, MAMBA, rows_of, tables_of


class NoWaiting(TorchDispatchMode):  # type: ignore[misc] # torch does not say what it is
    """Fails where what is on the device decides on the host: it would wait on a real one."""

    def __init__(self, tables: DeviceTables) -> None:
        super().__init__()
        state = tables._device.state
        self.kept: list[torch.Tensor] = [getattr(state, field.name) for field in fields(state)]
        self.there = set[int]()
        self.note()

    def note(self) -> None:
        """Memory of the device; that of empty arrays is nowhere."""
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


def test_a_step_that_waits_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    tables = tables_of(FULL, MAMBA)
    outputs = tables._device.outputs
    for wait in (
        lambda state: state.num_computed.max().item(),
        lambda state: state.entries[state.entries > 0],
        lambda state: torch.empty(2, dtype=torch.int32).copy_(state.rows),
    ):

        def waits(wait: Callable[[DeviceState], object] = wait) -> None:
            outputs()
            wait(tables._device.state)

        monkeypatch.setattr(tables._device, "outputs", waits)
        with pytest.raises(AssertionError), NoWaiting(tables):
            tables.update([0], [1])
