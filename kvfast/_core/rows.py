"""The row of each request in the tables."""

from __future__ import annotations

from .request import FastRequest
from .tables import Tables


class Rows:
    """`by_id`: request id -> row. `holders`: the request that took a row, so that its id need not
    be looked up.
    """

    def __init__(self, tables: Tables) -> None:
        self.tables = tables
        self.by_id: dict[str, int] = {}
        self.holders: list[FastRequest | None] = []

    def of(self, request: FastRequest) -> int:
        """Return the row of the request; -1 while it holds nothing."""
        row = request.row
        if 0 <= row < len(self.holders) and self.holders[row] is request:
            return row
        return self.by_id.get(request.request_id, -1)

    def add(self, request: FastRequest) -> int:
        """Take a row for a request that has none."""
        row = self.tables.take_row()
        self.by_id[request.request_id] = row
        while len(self.holders) <= row:
            self.holders.append(None)
        self.holders[row] = request
        request.row = row
        return row

    def forget(self, request: FastRequest) -> int:
        """Drop and return the row of the request; -1 if it had none."""
        row = self.by_id.pop(request.request_id, -1)
        if 0 <= row < len(self.holders):
            self.holders[row] = None
        return row
