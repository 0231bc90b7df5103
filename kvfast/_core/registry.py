"""Registered requests (KV-BATCH-4)."""

from __future__ import annotations

from collections import deque

from . import hot
from .arrays import grown, zeroed
from .core import Core
from .request import FastRequest
from .turn import Turn

NOBODY = 1 << 62


class Registry:
    """Handles of requests.

    - `requests[h]`: the request of handle h, or None. `released`: handles to reuse, the one
      released longest ago first.
    - `reported[h * num_groups + g]`: entries of its block list in group g that were reported.
    - `named[h]`: the last call that named the handle; `NOBODY`, which is later than any, if it is
      free.
    - `fields`: see `hot`. `mark` is the holder of the hot fields of requests.
    """

    def __init__(self, core: Core, turn: Turn) -> None:
        self.core = core
        self.turn = turn
        self.num_groups = self.core.num_groups
        self.requests: list[FastRequest | None] = []
        self.handle_of_id: dict[str, int] = {}
        self.released: deque[int] = deque()
        self.reported = zeroed("i", 0)
        self.named = zeroed("q", 0)
        self.fields = zeroed("q", 0)
        self.mark = object()

    def add(self, request: FastRequest) -> int:
        """Return a handle for the request, whose id is not registered."""
        if self.released:
            handle = self.released.popleft()
            self.requests[handle] = request
        else:
            handle = len(self.requests)
            if handle == len(self.named):
                self.make_room(max(16, 2 * handle))
            self.requests.append(request)
        self.handle_of_id[request.request_id] = handle
        self.named[handle] = 0
        self.note_row(handle, -1)
        request.hold(self.mark, self.turn, self.fields, hot.STRIDE * handle)
        self.nothing_reported(handle)
        return handle

    def make_room(self, num_handles: int) -> None:
        """Make room for this many handles, and move the hot fields."""
        named = grown("q", self.named, num_handles)
        reported = grown("i", self.reported, num_handles * self.num_groups)
        fields = grown("q", self.fields, hot.STRIDE * num_handles)
        self.named, self.reported, self.fields = named, reported, fields
        for handle, request in enumerate(self.requests):
            if request is not None and self.holds_fields_of(request):
                request.hold(self.mark, self.turn, self.fields, hot.STRIDE * handle)

    def holds_fields_of(self, request: FastRequest) -> bool:
        """Return whether its hot fields are here, and not where it was registered later."""
        return request.holder is self.mark

    def remove(self, handle: int) -> None:
        """Forget a registered request."""
        request: FastRequest = self.requests[handle]  # type: ignore[assignment]  # registered
        if self.holds_fields_of(request):
            request.let_go()
        del self.handle_of_id[request.request_id]
        self.requests[handle] = None
        self.named[handle] = NOBODY
        self.released.append(handle)

    def look_again(self, handle: int) -> None:
        """Have the next step look at the list of a request: it is another one, or longer."""
        at = hot.STRIDE * handle + hot.RUNS
        self.fields[at] = min(self.fields[at], 1)

    def note_row(self, handle: int, row: int) -> None:
        """Remember the row of a request; -1: none, which is row 0 with a number it never has."""
        self.fields[hot.STRIDE * handle + hot.ROW] = max(row, 0)
        self.fields[hot.STRIDE * handle + hot.SERIAL] = (
            self.core.tables.serial[row] if row >= 0 else -1
        )

    def nothing_reported(self, handle: int) -> None:
        """Mark all entries of its block lists as unreported."""
        for g in range(self.num_groups):
            self.reported[handle * self.num_groups + g] = 0

    def num_unreported(self, handle: int, row: int) -> int:
        """Count the entries of its block lists not yet reported (KV-BATCH-10)."""
        total = 0
        for g in range(self.num_groups if row >= 0 else 0):
            length = self.core.tables.length[row * self.num_groups + g]
            reported = self.reported[handle * self.num_groups + g]
            if length > reported:
                total += length - reported
        return total
