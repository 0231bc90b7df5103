"""One batched call's entries in flat arrays, and the numbers that callers bring (KV-BATCH-3)."""

from __future__ import annotations

from array import array
from typing import TypeAlias

from kvspec.arrays import beginning, ints_of
from kvspec.domains import exact, is_int
from kvspec.errors import InvalidArgumentError

from . import objects
from .arrays import grown, int_view, zeroed
from .registry import Registry
from .request import FastRequest

Numbers: TypeAlias = "memoryview[int] | array[int]"

COUNT_BITS = 53


class Entries:
    """The entries of a call, i < `size`, and of a step in this order: finished, preempted, running
    (those that decode or prefill), new.

    - `handles[i]` and `counts[i]` come from the caller. `call` numbers the calls.
    - `end_finished`, `end_preempted`, `end_running`: where each kind ends; the new ones end at
      `size`.
    - `row_at[i]`: its row in the tables. `after_at[i]`: its computed tokens after the step.
      `granted_at[i]`: its granted tokens. `is_asked[i]`: see `Ahead`, which notes these only for
      entries that need more than a count.

    Methods that return False or -1 found something illegal; nothing is changed then, and the
    contract's own checks report it.
    """

    def __init__(self, registry: Registry) -> None:
        self.registry = registry
        self.call = 0
        self.handles = zeroed("q", 64)
        self.counts = zeroed("q", 64)
        self.size = 0
        self.row_at = zeroed("i", 0)
        self.after_at = zeroed("q", 0)
        self.granted_at = zeroed("q", 0)
        self.is_asked = zeroed("i", 0)
        self.end_finished = self.end_preempted = self.end_running = 0

    def request_at(self, i: int) -> FastRequest:
        """Return the request of entry i."""
        request: FastRequest = self.registry.requests[self.handles[i]]  # type: ignore[assignment]  # registered
        return request

    def make_room_for_step(self) -> None:
        """Let what a step notes of each entry have room for all."""
        if len(self.row_at) < self.size:
            self.after_at = zeroed("q", 2 * self.size)
            self.granted_at = zeroed("q", 2 * self.size)
            self.is_asked = zeroed("i", 2 * self.size)
            self.row_at = zeroed("i", 2 * self.size)  # last: its length says that there is room

    def start_call(self) -> None:
        """Forget the entries of the last call."""
        self.size = 0
        self.call += 1

    def make_room(self, num_entries: int) -> None:
        """Make room for this many entries."""
        if num_entries > len(self.handles):
            handles = grown("q", self.handles, 2 * num_entries)
            counts = grown("q", self.counts, 2 * num_entries)
            self.handles, self.counts = handles, counts

    def add_handles(self, values: object) -> bool:
        """Add entries for these handles, registered and not yet named in this call."""
        start, call = self.size, self.call
        num = self.copy_in(values, len(self.registry.requests) + 1)
        if num < 0:
            return False
        known = len(self.registry.requests)
        handles, named = objects.longs_of(self.handles), objects.longs_of(self.registry.named)
        for i in range(start, start + num):
            handle = handles[i]
            if handle < 0 or handle >= known or named[handle] >= call:
                return False
            named[handle] = call
        self.size = start + num
        return True

    def set_counts(self, start: int, values: object, minimum: int) -> bool:
        """Set the counts of the entries from `start` on: one for all, or one each."""
        if type(values) is int or issubclass(type(values), int):
            count = self.count_of(values)
            counts = objects.longs_of(self.counts)
            for i in range(start, self.size):
                counts[i] = count
            return count >= minimum
        if self.copy_in(values, self.size - start + 1) != self.size - start:
            return False
        for i in range(start, self.size):
            count = self.handles[self.size + i - start]
            if count < minimum or count >> COUNT_BITS:
                return False
            self.counts[i] = count
        return True

    def count_of(self, value: object) -> int:
        """Return the value if it is a count (KV-ERR-6), else -1."""
        small = objects.small_of(value)
        if small >= 0:
            return small
        if type(value) is not int:
            value = exact(value) if is_int(value) else -1
        try:
            count: int = value
        except OverflowError:  # compiled, `count` has 64 bits
            return -1
        return count if count >> COUNT_BITS == 0 else -1

    def copy_in(self, values: object, most: int) -> int:
        """Copy numbers to `handles`, after all entries; returns how many, of a range `most`."""
        if type(values) is array:
            self.make_room(self.size + len(values))
            handles = objects.longs_of(self.handles)
            count = objects.put_array(values, handles, self.size, len(self.handles))
            if count >= 0:
                return count
        if type(values) is list:
            return self.copy_list(values)
        if type(values) is tuple:
            return self.copy_list(list(values)) if values else 0
        values = beginning(values, most)
        view = None if isinstance(values, (tuple, range)) else int_view(values)
        if view is None:
            try:
                view = memoryview(ints_of("values", values))
            except InvalidArgumentError:
                return -1
        return self.copy_view(view, view.itemsize)

    def copy_view(self, view: Numbers, item_bytes: int) -> int:
        """Run `copy_in` for an array of 32 or 64 bits."""
        if len(view) == 0:
            return 0
        return self.copy_ints(view) if item_bytes == 4 else self.copy_longs(view)

    def copy_list(self, values: list[int]) -> int:
        """Do `copy_in` for a list."""
        count = len(values)
        self.make_room(self.size + count)
        if len(values) != count:  # making room ran code that changed it
            return -1
        try:
            for i in range(count):
                value = values[i]
                if type(value) is not int:
                    if not is_int(value):
                        return -1
                    value = exact(value)
                    if len(values) != count:  # other threads ran meanwhile
                        return -1
                number = value
                if number >> 63:  # nothing negative is legal; uncompiled, nor what has more bits
                    return -1
                self.handles[self.size + i] = number
        except OverflowError:  # compiled, `number` has 64 bits
            return -1
        return count

    def copy_ints(self, view: Numbers) -> int:
        """Run `copy_in` for ints of 32 bits, whose number is fixed while they are viewed."""
        count = len(view)
        self.make_room(self.size + count)
        for i in range(count):
            self.handles[self.size + i] = view[i]
        return count

    def copy_longs(self, view: Numbers) -> int:
        """Run `copy_in` for ints of 64 bits."""
        count = len(view)
        self.make_room(self.size + count)
        for i in range(count):
            self.handles[self.size + i] = view[i]
        return count
