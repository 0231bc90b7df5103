"""Write the outputs of a batched call to the caller's memory: slot mappings and block deltas."""

from __future__ import annotations

from collections.abc import Sequence

from kvspec.arrays import view_of
from kvspec.batched import StepOutput
from kvspec.checks import batch as contract
from kvspec.errors import InvalidArgumentError

from . import objects
from .ahead import Ahead
from .core import Core
from .entries import Entries
from .registry import Registry


class Outputs:
    """The memory for deltas (`rows`) and slots, held only during a call.

    `rows_left`: how many rows did not fit.
    """

    def __init__(self, core: Core, registry: Registry, entries: Entries, ahead: Ahead) -> None:
        self.core = core
        self.registry = registry
        self.entries = entries
        self.ahead = ahead
        self.num_groups = self.core.num_groups
        self.rows = self.ahead.rows
        self.rows_left = 0
        self.no_slots: list[memoryview | None] = []
        self.slots = self.no_slots

    def open(self, output: StepOutput | None) -> None:
        """Open the outputs for writing, before anything is decided: arrays may run code."""
        if output is not None:
            if type(output) is not StepOutput and not isinstance(output, StepOutput):
                raise InvalidArgumentError("output", output, "a StepOutput or None")
            deltas = objects.deltas_of(output)
            if deltas is not None:
                self.rows.open(deltas)
            mappings = objects.mappings_of(output)
            if mappings is not None:
                self.slots = self.open_slots(mappings)
                self.ahead.notes_all = True

    def open_slots(self, given: Sequence[object]) -> list[memoryview | None]:
        """Do as `mappings` does; faster where all arguments are as usual."""
        views: list[memoryview | None] = []
        is_usual = (type(given) is list or type(given) is tuple) and len(given) == self.num_groups
        for g, slots in enumerate(given if is_usual else ()):
            view = None if slots is None else slots_of(slots)
            is_usual = is_usual and (slots is None or (view is not None and self.has_slots(g)))
            views.append(view)
        return views if is_usual else contract.mappings(self.core.plan.config, given)

    def has_slots(self, g: int) -> bool:
        """Return whether the group has one slot per token of the sequence (KV-BATCH-9)."""
        return self.core.shape.holds_tokens(g) and not self.core.shape.is_mamba(g)

    def close(self) -> None:
        """Let go of the caller's memory."""
        self.rows.close()
        self.slots = self.no_slots
        self.ahead.notes_all = False

    def check_room(self, length: int) -> None:
        """Check that every slot mapping has room for this many slots (KV-BATCH-9)."""
        for g, view in enumerate(self.slots):
            if view is not None and len(view) < length:
                allowed = f"at least {length} slots long"
                raise InvalidArgumentError(f"slot_mappings[{g}]", len(view), allowed)

    def write(self) -> int:
        """Write slots and deltas of a step; return the number of rows."""
        if self.slots:
            for g, view in enumerate(self.slots):
                if view is not None:
                    self.write_slots(g, view)
        self.rows_left = 0
        return self.write_rows() if self.rows.is_open else 0

    def write_slots(self, g: int, slots: memoryview[int]) -> None:
        """Write the slot of every granted token in one group (KV-BATCH-9)."""
        entries = self.entries
        tables = self.core.tables
        size = self.core.shape.block_size[g]
        to = 0
        for i in range(entries.end_preempted, entries.size):
            num_tokens = entries.granted_at[i]
            if num_tokens == 0:
                continue
            start = tables.start[entries.row_at[i] * self.num_groups + g]
            position = entries.after_at[i] - num_tokens
            while position < entries.after_at[i]:
                index = position // size
                first = tables.arena[start + index] * size
                offset = position - index * size
                end = min(size, offset + entries.after_at[i] - position)
                for k in range(offset, end):
                    slots[to] = first + k
                    to += 1
                position += end - offset

    def write_rows(self) -> int:
        """Write the new entries of the lists of granted requests; return the number of rows."""
        entries = self.entries
        at = self.write_left()
        for i in range(entries.end_running, entries.size):
            at = self.write_rows_of(i, at)
        return at

    def write_left(self) -> int:
        """Do `write_rows` for running entries; entries not left have nothing to report."""
        entries, ahead, tables = self.entries, self.ahead, self.core.tables
        left_at, handles = objects.ints_of(ahead.left_at), objects.longs_of(entries.handles)
        reported, lengths = objects.ints_of(self.registry.reported), objects.ints_of(tables.length)
        at = 0
        for k in range(ahead.num_left):
            i = left_at[k]
            if not ahead.is_plain:
                at = self.write_rows_of(i, at)
                continue
            handle, row = handles[i], entries.row_at[i]
            told = reported[handle]
            if told + 1 == lengths[row] and at < self.rows.room and entries.granted_at[i]:
                block = tables.arena[tables.start[row] + told]
                objects.put_row(self.rows, at, handle, 0, told, block)
                reported[handle] = told + 1
                at += 1
                ahead.note_reach(handle, row)
            elif told < lengths[row]:
                at = self.write_rows_of(i, at)
        return at

    def write_rows_of(self, i: int, at: int) -> int:
        """Write new entries of the lists of entry i after `at` rows; returns the number of rows."""
        entries = self.entries
        if entries.granted_at[i] == 0:
            return at
        handle, row = entries.handles[i], entries.row_at[i]
        at = self.report(handle, row, at)
        if self.ahead.is_plain and self.registry.reported[handle] == self.core.tables.length[row]:
            self.ahead.note_reach(handle, row)
        return at

    def report(self, handle: int, row: int, at: int) -> int:
        """Write one request's unreported entries after `at` rows (KV-BATCH-10)."""
        reported = objects.ints_of(self.registry.reported)
        tables, rows = self.core.tables, self.rows
        arena = objects.ints_of(tables.arena)
        for g in range(self.num_groups if row >= 0 else 0):
            told = reported[handle * self.num_groups + g]
            length = tables.length[row * self.num_groups + g]
            if told >= length:
                continue
            start = tables.start[row * self.num_groups + g]
            count = min(length - told, rows.room - at)
            objects.put_rows(rows, at, handle, g, told, arena, start, count)
            at += count
            reported[handle * self.num_groups + g] = told + count
            self.rows_left += length - told - count
        return at


def slots_of(given: object) -> memoryview | None:
    """Return a writable view of 64-bit ints if it has the usual format, else None."""
    view = view_of(given)
    if (
        view is not None
        and view.ndim == 1
        and (view.format == "q" or view.format == "l")
        and view.itemsize == 8
        and not view.readonly
        and view.c_contiguous
    ):
        return view
    return None
