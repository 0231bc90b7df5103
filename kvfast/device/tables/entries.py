"""Entries of tables that are still to be sent to the device."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from kvfast.device.tables.geometry import Geometry
from kvfast.device.tables.input import no_rows


class Entries:
    """The entries to send, and their addresses. The methods trust their arguments.

    - `rows`: entries to send with the next step, in order; `lists`: whole block lists, by (handle,
      group).
    - `moving`: by number, tables of the groups whose blocks move, as the device has them, so that
      only changes of a list are sent.
    """

    def __init__(self, geometry: Geometry) -> None:
        self.geometry = geometry
        self.rows: list[torch.Tensor] = []
        self.lists: dict[tuple[int, int], Sequence[int]] = {}
        self.moving = {
            g: torch.zeros((geometry.max_requests, group.width), dtype=torch.int32)
            for g, group in enumerate(geometry.groups)
            if group.moves
        }
        self._set_offsets()

    def _set_offsets(self) -> None:
        # 32 bits, since they number all entries.
        self._bases = torch.tensor(self.geometry.bases, dtype=torch.int32)
        self._widths = torch.tensor([g.width for g in self.geometry.groups], dtype=torch.int32)

    def grow(self, geometry: Geometry) -> None:
        """Make room for more rows, at new addresses."""
        more = geometry.max_requests - self.geometry.max_requests
        self.geometry = geometry
        for g, table in self.moving.items():
            self.moving[g] = torch.cat([table, table.new_zeros((more, table.shape[1]))])
        self._set_offsets()

    def take(self) -> tuple[torch.Tensor, torch.Tensor]:
        """Return all addresses to send, each once, with their blocks. The last row counts."""
        addresses, rows = self._distinct(self.rows)
        for number, table in self.moving.items():
            handles, _, indices, blocks = rows[rows[:, 1] == number].T
            table[handles.long(), indices.long()] = blocks
        if self.lists:
            addresses, rows = self._distinct([rows, *self._changed()])
        self.rows, self.lists = [], {}
        return addresses, rows[:, 3]

    def _distinct(self, told: list[torch.Tensor]) -> tuple[torch.Tensor, torch.Tensor]:
        """Return addresses and their rows; of several rows for one address the last."""
        rows = told[0] if len(told) == 1 else torch.cat([no_rows(), *told])
        handles, indices = rows[:, 0], rows[:, 2]
        if len(self.geometry.groups) == 1:
            addresses = indices.add(handles, alpha=self.geometry.groups[0].width)
        else:
            of_row = rows[:, 1].long()
            addresses = self._bases[of_row] + handles * self._widths[of_row] + indices
        if rows.shape[0] < 2 or int(addresses.diff().min()) > 0:  # in the form of a step
            return addresses, rows
        in_order, order = addresses.sort(stable=True)
        is_last = in_order[1:] != in_order[:-1]
        if bool(is_last.all()):
            return addresses, rows
        last = torch.cat([order[:-1][is_last], order[-1:]])
        return addresses[last], rows[last]

    def _changed(self) -> list[torch.Tensor]:
        """Return the rows that update the device's lists."""
        told = []
        for (handle, group), given in self.lists.items():
            blocks = torch.tensor(list(given), dtype=torch.int32)
            indices = torch.arange(len(blocks))
            if group in self.moving:
                table = self.moving[group][handle]
                indices = (table[: len(blocks)] != blocks).nonzero()[:, 0]
                table[: len(blocks)] = blocks
            rows = torch.empty((len(indices), 4), dtype=torch.int32)
            rows[:, 0], rows[:, 1], rows[:, 2] = handle, group, indices
            rows[:, 3] = blocks[indices]
            told.append(rows)
        return told
