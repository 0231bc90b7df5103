"""The arrays of `DeviceTables` on the device, the operations on them, and their updates."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

from kvfast.device.base.arguments import check_group
from kvfast.device.base.backend import Backend, form_of
from kvfast.device.tables.batch import Batch
from kvfast.device.tables.geometry import Geometry
from kvfast.device.tables.staging import Staging
from kvfast.device.tables.state import HEADER_WORDS, Header, carry_over, new_state


@dataclass(frozen=True)
class DeviceStep:
    """A step of n requests and m tokens on the device.

    Arrays are on the device: views of buffers that the next step overwrites, to be read on the
    stream on which the step was sent. A place is the number of an entry that was granted tokens.

    - `rows` int32 [n]: the row (handle) of each place. `query_start` int32 [n + 1]: first tokens.
    - `seq_lens` int32 [n]: tokens of each place's sequence, including those of the step.
    - `places` int32 [m], `positions` int64 [m]: each token's place and position.
    - `slots`: for each group int64 [m], or None where blocks hold no slots (KV-BATCH-9).
    - `max_query_tokens`, `max_seq_tokens`: the largest of the step, known on the host.
    """

    rows: torch.Tensor
    query_start: torch.Tensor
    seq_lens: torch.Tensor
    places: torch.Tensor
    positions: torch.Tensor
    slots: tuple[torch.Tensor | None, ...]
    max_query_tokens: int
    max_seq_tokens: int


class DeviceArrays:
    """Arrays for one geometry, and messages to them. The methods trust their arguments, except
    groups.

    `max_entries`: entries that one message holds. `header`: of the last one.
    """

    def __init__(
        self,
        geometry: Geometry,
        max_tokens: int,
        max_entries: int,
        device: torch.device,
        backend: Backend,
    ) -> None:
        self.geometry = geometry
        self._form = form_of(__package__, backend)
        self.max_entries = max_entries
        self.header = Header()
        num_words = HEADER_WORDS + 2 * max_entries + 4 * geometry.max_requests
        self.state = new_state(geometry, max_tokens, num_words, device)
        self.staging = Staging(num_words, device)
        self.gathered: dict[int, torch.Tensor] = {}
        self._size = (0, 0)
        self._views = self._views_of(0, 0)

    def take_over(self, before: DeviceArrays) -> None:
        """Begin with what another one with fewer rows knows."""
        carry_over(before.state, self.state, before.geometry, self.geometry)

    def send(
        self,
        entries: tuple[torch.Tensor, torch.Tensor],
        lengths: tuple[torch.Tensor, torch.Tensor],
        batch: Batch | None,
        *,
        is_new: bool,
    ) -> int:
        """Copy one message; return the bytes copied. None: no step, the batch stays.

        Entries beyond its size are sent at once, in messages before it.
        """
        copied = self.staging.copied_bytes
        addresses, blocks = entries
        while addresses.shape[0] > self.max_entries:
            most = self.max_entries
            self._copy(Header(num_entries=most), [addresses[:most], blocks[:most]])
            self.apply()
            addresses, blocks = addresses[most:], blocks[most:]
        header = Header(
            addresses.shape[0],
            lengths[0].shape[0],
            0 if batch is None else batch.rows.shape[0],
            is_new,
            0 if batch is None else batch.num_tokens,
        )
        told = [batch.rows, batch.ends] if batch is not None and is_new else []
        self._copy(header, [addresses, blocks, *lengths, *told])
        return self.staging.copied_bytes - copied

    def _copy(self, header: Header, parts: list[torch.Tensor]) -> None:
        self.header = header
        self.staging.send(header, parts, self.state.staged)

    def apply(self) -> None:
        """Do what the last message says."""
        self._form.apply(self.state, self.header)

    def outputs(self) -> None:
        """Compute what the step needs."""
        self._form.outputs(self.state, self.geometry)

    def table(self, group: int) -> torch.Tensor:
        """Return int32 [max_requests, width]. Raise InvalidArgumentError without such a `group`."""
        check_group("group", group, len(self.geometry.groups))
        base, width = self.geometry.bases[group], self.geometry.groups[group].width
        num = self.geometry.max_requests
        return self.state.entries[base : base + num * width].view(num, width)

    def gather(self, group: int) -> torch.Tensor:
        """Return the batch's rows of a group, [max_requests, width]. Errors as for `table`."""
        check_group("group", group, len(self.geometry.groups))
        if group not in self.gathered:
            self.gathered[group] = torch.zeros_like(self.table(group))
        out, geometry = self.gathered[group], self.geometry
        self._form.gather(self.state, geometry.bases[group], geometry.groups[group], out)
        return out

    def step(self, n: int, m: int, max_query_tokens: int, max_seq_tokens: int) -> DeviceStep:
        """View the first n places and m tokens; views are kept, since sizes rarely change."""
        if (n, m) != self._size:
            self._size, self._views = (n, m), self._views_of(n, m)
        return DeviceStep(
            **self._views, max_query_tokens=max_query_tokens, max_seq_tokens=max_seq_tokens
        )

    def _views_of(self, n: int, m: int) -> dict[str, Any]:
        state, geometry = self.state, self.geometry
        of_group = dict(zip(geometry.slot_groups, state.slots, strict=True))
        return {
            "rows": state.rows[:n],
            "query_start": state.query_start[: n + 1],
            "seq_lens": state.seq_lens[:n],
            "places": state.places[:m],
            "positions": state.positions[:m],
            "slots": tuple(
                of_group[g][:m] if g in of_group else None for g in range(len(geometry.groups))
            ),
        }
