"""Block tables, lengths, positions and slots on the device (KV-DEV-9 …).

The decisions of a step reach the device in one small copy: new blocks as (address, block), changed
lengths, and the batch if it has changed. Two kernels then bring the tables up to date and compute
what attention needs, from the tables themselves. Nothing waits for the device.

    tables = DeviceTables(config, max_requests=256, max_tokens=8192, device="cuda")
    result = batched.step(plan, StepOutput(rows))
    step = tables.step(plan, result, rows)
    step.positions, step.slots[0], step.seq_lens, …
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import torch

from kvfast.device.base.arguments import INT32_MAX, check_device, check_size, check_type, host_ints
from kvfast.device.base.backend import Backend, chosen
from kvfast.device.base.errors import ResidentOrderError
from kvfast.device.tables.arrays import DeviceArrays, DeviceStep
from kvfast.device.tables.batch import next_batch, no_batch
from kvfast.device.tables.difference import TableDifference, first_difference
from kvfast.device.tables.entries import Entries
from kvfast.device.tables.geometry import Geometry, group_tables
from kvfast.device.tables.input import (
    check_blocks,
    check_handles,
    check_rows,
    counts_of,
    entries_of,
    host_rows,
    no_rows,
)
from kvfast.device.tables.lengths import Lengths
from kvspec.batched import Array, BatchedManager, Ints, StepPlan, StepResult
from kvspec.config import ManagerConfig
from kvspec.errors import InvalidArgumentError

__all__ = ["DeviceStep", "DeviceTables", "TableDifference"]


class DeviceTables:
    """The block tables of all groups on one device, and what is computed from them each step.

    - `max_requests`: rows to begin with. A larger handle doubles them until it fits; then arrays
      returned before, and CUDA graphs that use them, are out of date.
    - `max_tokens`: most tokens of a step.
    - `widths`: see `group_tables`. `max_entries`: entries in one copy; more take several.
    - `backend`: None (Triton on CUDA devices, else torch), "torch" or "triton".

    Handles, lengths and blocks are checked on the host; an InvalidArgumentError says that nothing
    was changed (KV-DEV-14). Everything runs on the current stream of the device, which is current.
    """

    def __init__(
        self,
        config: ManagerConfig,
        *,
        max_requests: int,
        max_tokens: int,
        device: torch.device | str = "cpu",
        backend: Backend | None = None,
        widths: Sequence[int | None] | None = None,
        max_entries: int | None = None,
    ) -> None:
        check_type("config", config, ManagerConfig)
        check_size("max_requests", max_requests)
        check_size("max_tokens", max_tokens)
        check_size("max_entries", 1 if max_entries is None else max_entries)
        self.config = config
        self.max_tokens = max_tokens
        self.device = check_device("device", device)
        self.backend = chosen(backend, self.device)
        geometry = Geometry(group_tables(config, widths), max_requests)
        if max_requests > (most := geometry.max_handles):
            raise InvalidArgumentError("max_requests", max_requests, f"at most {most}")
        self._batch = no_batch()
        self._geometry = geometry
        self._entries = Entries(geometry)
        self._lengths = Lengths(max_requests)
        if max_entries is None:
            blocks = [max_requests - -max_tokens // group.span_tokens for group in geometry.groups]
            max_entries = max(1, sum(blocks))
        self._device = self._new_arrays(geometry, max_entries)
        self._staged_bytes = 0
        self._is_handed_over = False  # to a run of resident steps

    def _new_arrays(self, geometry: Geometry, max_entries: int) -> DeviceArrays:
        return DeviceArrays(geometry, self.max_tokens, max_entries, self.device, self.backend)

    @property
    def max_requests(self) -> int:
        """Rows that there are now."""
        return self._geometry.max_requests

    @property
    def num_computed(self) -> torch.Tensor:
        """int32 [max_requests] on the device: computed tokens of each row."""
        return self._device.state.num_computed

    @property
    def staged_bytes(self) -> int:
        """Number of bytes copied to the device for the last step."""
        return self._staged_bytes

    def table(self, group: int) -> torch.Tensor:
        """Return the block lists, one row per handle: int32 [max_requests, width] on the device."""
        return self._device.table(group)

    @property
    def padded(self) -> DeviceStep:
        """The whole buffers, for kernels that are captured once and run over any step.

        After the step's n and m they are unused: row, place and slot -1, length and position 0,
        first token m. `max_…` are the largest possible.
        """
        longest = self.config.max_model_len_tokens
        return self._device.step(self.max_requests, self.max_tokens, self.max_tokens, longest)

    # Changes between steps are sent with the next one.

    def set_lengths(self, handles: Ints, lengths: Ints | int) -> None:
        """Set the computed tokens of these requests: 0 when released, or those loaded."""
        chosen = self._checked_handles("handles", handles)
        wanted = counts_of("lengths", lengths, len(chosen), self.config.max_model_len_tokens)
        after = self._lengths.copy(chosen)
        after[chosen] = wanted
        self._set_lengths(after)

    def rewind(self, handles: Ints, num_tokens: Ints | int) -> None:
        """Take back computed tokens of each request, as `BatchedManager.rewind` does."""
        chosen = self._checked_handles("handles", handles)
        numbers = counts_of("num_tokens", num_tokens, len(chosen), INT32_MAX)
        after = self._lengths.copy(chosen)
        left = after[chosen] - numbers
        if len(left) and int(left.min()) < 0:
            place = int((left < 0).nonzero()[0])
            allowed = f"at most {int(after[chosen[place]])}, the tokens that are computed"
            raise InvalidArgumentError(f"num_tokens[{place}]", int(numbers[place]), allowed)
        after[chosen] = left
        self._set_lengths(after)

    def write(self, deltas: Array) -> None:
        """Add further rows (handle, group, index, block), as `take_deltas` returns them."""
        rows = host_rows("deltas", deltas)
        self._reach(self._check_rows(rows))
        self._entries.rows.append(rows.clone())

    def set_row(self, handle: int, group: int, blocks: Sequence[int]) -> None:
        """Set the request's whole block list in a group whose blocks move (KV-MAMBA-9).

        Only the differences are copied. It takes precedence over blocks of `deltas`.
        """
        self._checked_handles("handle", [handle])
        check_blocks(group, blocks, self._geometry, self.config.kv_cache.num_blocks)
        self._reach(handle + 1)
        self._entries.lists[handle, group] = list(blocks)

    def read_rows(self, batched: BatchedManager, handles: Ints) -> None:
        """Set the rows to the manager's lists, for every group whose blocks move."""
        check_type("batched", batched, BatchedManager)
        chosen = self._checked_handles("handles", handles).tolist()
        moving = [g for g, group in enumerate(self._geometry.groups) if group.moves]
        rows = [(handle, batched.request_of(handle)) for handle in chosen]
        for handle, request in rows if moving else ():
            lists = batched.manager.get_blocks(request).groups
            for g in moving:
                self.set_row(handle, g, lists[g])

    # Steps.

    def step(self, plan: StepPlan, result: StepResult, deltas: Array | None = None) -> DeviceStep:
        """Do `update` for a step of a batched manager and the rows it wrote to `block_deltas`.

        Released requests get length 0 and new ones that of their hit. Pass rows that did not fit to
        `write` first.
        """
        check_type("result", result, StepResult)
        released, new, handles = entries_of(plan)
        longest = self.config.max_model_len_tokens
        hits = counts_of("result.hit_tokens", result.hit_tokens, len(new), longest)
        rows = no_rows() if deltas is None else host_rows("deltas", deltas)
        if not 0 <= result.num_deltas <= rows.shape[0]:
            raise InvalidArgumentError("deltas", len(rows), f"the {result.num_deltas} rows written")
        rows, changed = rows[: result.num_deltas], None
        if released.shape[0] or new.shape[0]:
            changed = torch.cat([released, new]), torch.cat([torch.zeros_like(released), hits])
        step = self._stage(handles, result.num_scheduled_tokens, rows, changed)
        self.apply()
        return step

    def update(self, handles: Ints, num_scheduled: Ints, deltas: Array | None = None) -> DeviceStep:
        """Bring the device up to date and compute what the step needs (KV-DEV-10 … KV-DEV-13).

        `num_scheduled[i]`: tokens that `handles[i]` is granted beyond its length, 0 for none.
        `deltas`: int32 [n, 4]. A batch equal to that of the step before is not copied.
        """
        step = self.stage(handles, num_scheduled, deltas)
        self.apply()
        return step

    def stage(self, handles: Ints, num_scheduled: Ints, deltas: Array | None = None) -> DeviceStep:
        """Do the host's part of `update`: checks and copies. `apply` must follow, once."""
        rows = no_rows() if deltas is None else host_rows("deltas", deltas)
        return self._stage(handles, num_scheduled, rows)

    def apply(self) -> None:
        """Do the device's part of `update`: two kernels, the same launches in every step.

        With Triton they can be captured in a CUDA graph, whose replay then replaces this call.
        """
        self._device.apply()
        self._device.outputs()

    def block_tables(self, group: int) -> torch.Tensor:
        """Return the rows of the step's batch, int32 [n, width], for kernels that can't use `rows`.

        Of each only the blocks of its sequence are written (all of a group without slots), to a
        buffer that is made at the first call; the entries behind them are left from other steps.
        """
        return self._device.gather(group)[: len(self._batch.rows)]

    def difference(self, batched: BatchedManager) -> TableDifference | None:
        """Return where device and manager differ, None if nowhere. Waits for the device; for
        debugging.

        It compares lengths, and blocks that are not null, of all registered requests. Pending
        changes are sent first; rows that the manager has not yet reported are a difference.
        """
        check_type("batched", batched, BatchedManager)
        self._tell()
        return first_difference(self._device.state, self._geometry, batched)

    # Inside.

    def _tell(self) -> None:
        """Bring the device up to date without a step."""
        self._check_own()
        entries, lengths = self._entries.take(), self._lengths.take_changes()
        self._device.send(entries, lengths, None, is_new=False)
        self._device.apply()

    def _check_own(self) -> None:
        if self._is_handed_over:
            raise ResidentOrderError("tables", "running", "ended")

    def _checked_handles(self, field: str, handles: Ints) -> torch.Tensor:
        chosen = host_ints(field, handles)
        check_handles(field, chosen, self._geometry)
        return chosen

    def _check_rows(self, rows: torch.Tensor) -> int:
        return check_rows("deltas", rows, self._geometry, self.config.kv_cache.num_blocks)

    def _set_lengths(self, lengths: torch.Tensor) -> None:
        self._reach(len(lengths))
        self._lengths.set(lengths)

    def _stage(
        self,
        handles: Ints,
        num_scheduled: Ints,
        rows: torch.Tensor,
        changed: tuple[torch.Tensor, torch.Tensor] | None = None,
    ) -> DeviceStep:
        """Check all, then copy. `changed`: handles, and their lengths before the step."""
        self._check_own()
        batch = next_batch(self._batch, handles, num_scheduled, self._geometry, self.max_tokens)
        num_requests = self._check_rows(rows)
        lengths = None
        if changed is not None:
            check_handles("plan", changed[0], self._geometry)
            lengths = self._lengths.copy(changed[0])
            lengths[changed[0]] = changed[1]
        longest = self._lengths.longest_after(batch, lengths)
        if longest > (most := self.config.max_model_len_tokens):
            allowed = f"such that no sequence is longer than max_model_len_tokens = {most}"
            raise InvalidArgumentError("num_scheduled", longest, allowed)
        self._reach(max(batch.top + 1, num_requests))
        if lengths is not None:
            self._set_lengths(lengths)
        # Nothing is refused from here on.
        self._entries.rows.append(rows)
        entries, added = self._entries.take(), self._lengths.take_changes()
        is_new = batch is not self._batch
        self._staged_bytes = self._device.send(entries, added, batch, is_new=is_new)
        self._lengths.advance(batch, longest)
        self._batch = batch
        n = batch.rows.shape[0]
        return self._device.step(n, batch.num_tokens, batch.max_query_tokens, longest)

    def _reach(self, num_rows: int) -> None:
        """Make room for this many rows, by doubling."""
        num = self._geometry.max_requests
        if num_rows <= num:
            return
        self._check_own()
        while num < num_rows:
            num *= 2
        grown = replace(self._geometry, max_requests=min(num, self._geometry.max_handles))
        device = self._new_arrays(grown, self._device.max_entries)
        device.take_over(self._device)
        self._entries.grow(grown)
        self._lengths.grow(grown.max_requests)
        self._geometry, self._device = grown, device
