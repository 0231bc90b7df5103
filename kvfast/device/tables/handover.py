"""Hand tables over to code that decides steps instead of the host."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from kvfast.device.base.arguments import host_ints
from kvfast.device.tables.arrays import DeviceStep
from kvfast.device.tables.batch import unknown_batch
from kvfast.device.tables.geometry import Geometry
from kvfast.device.tables.input import check_handles
from kvfast.device.tables.state import DeviceState
from kvfast.device.tables.tables import DeviceTables
from kvspec.batched import BatchedManager, Ints


class Handover:
    """Access of a run to the tables. Between `begin` and `end` they can't receive steps."""

    def __init__(self, tables: DeviceTables) -> None:
        self.tables = tables

    @property
    def geometry(self) -> Geometry:
        """Current addresses of entries."""
        return self.tables._geometry

    @property
    def state(self) -> DeviceState:
        """Arrays on the device."""
        return self.tables._device.state

    def checked_handles(self, field: str, handles: Ints) -> torch.Tensor:
        """Return int64 [n] on the host; each has a row, and occurs once."""
        chosen = host_ints(field, handles)
        check_handles(field, chosen, self.geometry)
        return chosen

    def lengths_of(self, handles: torch.Tensor) -> torch.Tensor:
        """Return the computed tokens of each, including those to be sent with the next step."""
        return self.tables._lengths.copy(handles)[handles]

    def begin(self, batched: BatchedManager, handles: torch.Tensor) -> None:
        """Send all pending changes to the device, which decides from here on."""
        self.tables._reach(int(handles.max()) + 1)
        num_rows = batched.num_pending_deltas()
        if num_rows:
            rows = torch.empty((num_rows, 4), dtype=torch.int32)
            self.tables.write(rows[: batched.take_deltas(rows)])
        self.tables._tell()
        self.tables._is_handed_over = True

    def outputs(self, num_requests: int, longest: int) -> DeviceStep:
        """Compute what a step needs that was decided on the device."""
        device = self.tables._device
        device.outputs()
        return device.step(num_requests, num_requests, min(1, num_requests), longest)

    def end(self, handles: Sequence[int], granted: Sequence[int]) -> None:
        """Add the tokens that the device computed; the host does not know its batch."""
        lengths = self.tables._lengths
        lengths.add_computed(torch.tensor(handles), torch.tensor(granted))
        self.tables._batch = unknown_batch()
        self.tables._is_handed_over = False
