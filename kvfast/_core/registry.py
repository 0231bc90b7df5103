"""Registered requests, and the numbers that batched calls bring (KV-BATCH-3, KV-BATCH-4)."""

from __future__ import annotations

from array import array
from collections import deque
from typing import TypeAlias

from kvspec._arrays import beginning, ints_of
from kvspec._check import exact, is_int
from kvspec.errors import InvalidArgumentError

from . import cells as cell
from .arrays import grown, int_view, zeroed
from .manager import FastManager
from .request import FastRequest

Numbers: TypeAlias = "memoryview[int] | array[int]"

COUNT_BITS = 53


class Registry:
    """Handles of requests, and one call's entries in flat arrays.

    - `requests[h]`: the request of handle h, or None. `released`: handles to be given out again,
      the one released longest ago first.
    - `reported[h * num_groups + g]`: entries of its block list in group g that were told of.
    - `named[h]`: the last call that named the handle, -1 where no request has it; `call` is the
      number of this one.
    - `cells`: see the module of this name. `mark` is the holder of the cells of requests.
    - `handles[i]`, `counts[i]`: entry i of this call, i < `size`.
    """

    def __init__(self, manager: FastManager) -> None:
        if self.is_ready():
            raise InvalidArgumentError("batch", None, "one that is made once")
        self.core = manager
        self.core.check_sound()
        self.num_groups = manager.num_groups
        self.requests: list[FastRequest | None] = []
        self.handle_of_id: dict[str, int] = {}
        self.released: deque[int] = deque()
        self.reported = zeroed("i", 0)
        self.named = zeroed("q", 0)
        self.cells = zeroed("q", 0)
        self.mark = object()
        self.call = 0
        self.handles = zeroed("q", 64)
        self.counts = zeroed("q", 64)
        self.size = 0

    def is_ready(self) -> bool:
        """Whether it was made: where only `__new__` was called, there is no memory."""
        try:
            return self.core is not None
        except AttributeError:  # uncompiled
            return False

    def enter(self) -> None:
        """Begin a call."""
        if not self.is_ready():
            raise InvalidArgumentError("batch", None, "made by `batched`")
        self.core.enter()

    # Requests.

    def add(self, request: FastRequest) -> int:
        """A handle for the request, whose name is not registered."""
        if self.released:
            handle = self.released.popleft()
            self.requests[handle] = request
        else:
            handle = len(self.requests)
            if handle == len(self.named):
                self.make_room_for_requests(max(16, 2 * handle))
            self.requests.append(request)
        self.handle_of_id[request.request_id] = handle
        self.named[handle] = 0
        self.note_row(handle, -1)
        request.hold(self.mark, self.core.turn, self.cells, cell.STRIDE * handle)
        self.nothing_reported(handle)
        return handle

    def make_room_for_requests(self, num_handles: int) -> None:
        """Let so many handles fit, and take the cells along."""
        named = grown("q", self.named, num_handles)
        reported = grown("i", self.reported, num_handles * self.num_groups)
        cells = grown("q", self.cells, cell.STRIDE * num_handles)
        self.named, self.reported, self.cells = named, reported, cells
        for handle, request in enumerate(self.requests):
            if request is not None and self.has_cells_of(request):
                request.hold(self.mark, self.core.turn, self.cells, cell.STRIDE * handle)

    def has_cells_of(self, request: FastRequest) -> bool:
        """Whether they are here, not where it was registered since."""
        return request.holder is self.mark

    def remove(self, handle: int) -> None:
        """Forget a registered request."""
        request: FastRequest = self.requests[handle]  # type: ignore[assignment]  # registered
        if self.has_cells_of(request):
            request.let_go()
        del self.handle_of_id[request.request_id]
        self.requests[handle] = None
        self.named[handle] = -1
        self.released.append(handle)

    def note_row(self, handle: int, row: int) -> None:
        """Remember the row of a request; -1: none, which is row 0 with a number it never has."""
        self.cells[cell.STRIDE * handle + cell.ROW] = max(row, 0)
        self.cells[cell.STRIDE * handle + cell.SERIAL] = (
            self.core.tables.serial[row] if row >= 0 else -1
        )

    def nothing_reported(self, handle: int) -> None:
        """Nobody was told of any entry of its block lists."""
        for g in range(self.num_groups):
            self.reported[handle * self.num_groups + g] = 0

    def rows_to_tell(self, handle: int, row: int) -> int:
        """Entries of its block lists that nobody was told of (KV-BATCH-10)."""
        total = 0
        for g in range(self.num_groups if row >= 0 else 0):
            length = self.core.tables.length[row * self.num_groups + g]
            told = self.reported[handle * self.num_groups + g]
            if length > told:
                total += length - told
        return total

    # The entries of one call. What answers False or -1 met something illegal; nothing is changed
    # then, and the contract's own checks say what it is.

    def start_call(self) -> None:
        """Forget the entries of the last call."""
        self.size = 0
        self.call += 1

    def make_room(self, num_entries: int) -> None:
        """See to it that so many entries fit."""
        if num_entries > len(self.handles):
            handles = grown("q", self.handles, 2 * num_entries)
            counts = grown("q", self.counts, 2 * num_entries)
            self.handles, self.counts = handles, counts

    def add_handles(self, values: object) -> bool:
        """Entries for these handles: registered, and not named in this call before."""
        start = self.size
        num = self.copy_in(beginning(values, len(self.requests) + 1))
        if num < 0:
            return False
        known = len(self.requests)
        for i in range(start, start + num):
            handle = self.handles[i]
            if handle < 0 or handle >= known:
                return False
            if self.named[handle] < 0 or self.named[handle] == self.call:
                return False
            self.named[handle] = self.call
        self.size = start + num
        return True

    def set_counts(self, start: int, values: object, minimum: int) -> bool:
        """The counts of the entries from `start` on: one for all, or one each."""
        if type(values) is int or issubclass(type(values), int):
            count = self.count_of(values)
            for i in range(start, self.size):
                self.counts[i] = count
            return count >= minimum
        if self.copy_in(beginning(values, self.size - start + 1)) != self.size - start:
            return False
        for i in range(start, self.size):
            count = self.handles[self.size + i - start]
            if count < minimum or count >> COUNT_BITS:
                return False
            self.counts[i] = count
        return True

    def count_of(self, value: object) -> int:
        """The value, if it is a count (KV-ERR-6), else -1."""
        if type(value) is not int:
            value = exact(value) if is_int(value) else -1
        try:
            count: int = value
        except OverflowError:  # compiled, `count` has 64 bits
            return -1
        return count if count >> COUNT_BITS == 0 else -1

    def copy_in(self, values: object) -> int:
        """Copy numbers to `handles`, behind all entries; how many."""
        if type(values) is list:
            return self.copy_list(values)
        if type(values) is tuple:
            return self.copy_list(list(values)) if values else 0
        if type(values) is array and (values.typecode == "q" or values.typecode == "i"):
            return self.copy_view(values, values.itemsize)
        view = None if isinstance(values, (tuple, range)) else int_view(values)
        if view is None:
            try:
                view = memoryview(ints_of("values", values))
            except InvalidArgumentError:
                return -1
        return self.copy_view(view, view.itemsize)

    def copy_view(self, view: Numbers, item_bytes: int) -> int:
        """`copy_in` of an array of 32 or 64 bits."""
        if len(view) == 0:
            return 0
        return self.copy_ints(view) if item_bytes == 4 else self.copy_longs(view)

    def copy_list(self, values: list[int]) -> int:
        """`copy_in` of a list."""
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
        """`copy_in` of ints of 32 bits, which keep their number while they are viewed."""
        count = len(view)
        self.make_room(self.size + count)
        for i in range(count):
            self.handles[self.size + i] = view[i]
        return count

    def copy_longs(self, view: Numbers) -> int:
        """`copy_in` of ints of 64 bits."""
        count = len(view)
        self.make_room(self.size + count)
        for i in range(count):
            self.handles[self.size + i] = view[i]
        return count
