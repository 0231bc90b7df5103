"""Compare the tables on the device with the manager, for tests and debugging."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch

from kvfast.device.tables.geometry import Geometry
from kvfast.device.tables.state import DeviceState
from kvspec.batched import BatchedManager
from kvspec.errors import InvalidArgumentError
from kvspec.request import Request


@dataclass(frozen=True)
class TableDifference:
    """The first place at which the device and the host differ.

    `handle` names the request; `group` and `index` an entry of its block list, None where the
    length differs. `device` is its value there (None: there is no such entry), `host` the right
    one.
    """

    handle: int
    group: int | None
    index: int | None
    device: int | None
    host: int

    def __str__(self) -> str:
        there = "nothing" if self.device is None else f"{self.device}"
        if self.group is None:
            return f"request {self.handle}: {there} computed tokens on the device, not {self.host}"
        where = f"request {self.handle}, group {self.group}, index {self.index}"
        return f"{where}: block {there} on the device, not {self.host}"


def first_difference(
    state: DeviceState, geometry: Geometry, batched: BatchedManager
) -> TableDifference | None:
    """Compare lengths and all blocks that are not null of all registered requests."""
    lengths = state.num_computed.tolist()
    tables = [
        state.entries[base : base + geometry.max_requests * group.width]
        .view(geometry.max_requests, group.width)
        .cpu()
        for base, group in zip(geometry.bases, geometry.groups, strict=True)
    ]
    for handle, request in _registered(batched, geometry.max_requests):
        length = lengths[handle] if handle < len(lengths) else 0
        if length != request.num_computed_tokens:
            return TableDifference(handle, None, None, length, request.num_computed_tokens)
        lists = batched.manager.get_blocks(request).groups
        for group, (table, blocks) in enumerate(zip(tables, lists, strict=True)):
            found = _first_other(table, handle, list(blocks))
            if found is not None:
                index, device = found
                return TableDifference(handle, group, index, device, blocks[index])
    return None


def _first_other(
    table: torch.Tensor, handle: int, blocks: list[int]
) -> tuple[int, int | None] | None:
    """Return the first entry with another block, and that block; None if all are right."""
    row = table[handle].tolist() if handle < len(table) else []
    for index, block in enumerate(blocks):
        device = row[index] if index < len(row) else None
        if block and device != block:
            return index, device
    return None


def _registered(batched: BatchedManager, num_handles: int) -> Iterator[tuple[int, Request]]:
    """Yield all requests, by handle; those beyond `num_handles` up to the first gap."""
    handle = 0
    while True:
        try:
            yield handle, batched.request_of(handle)
        except InvalidArgumentError:
            if handle >= num_handles:
                return
        handle += 1
