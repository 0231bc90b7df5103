"""The memory that a whole step writes to."""

from __future__ import annotations

from array import array
from collections.abc import Sequence

from kvspec.batched import StepOutput

UNTOUCHED = -7
"""Content of outputs before a step; slots that are not written keep it."""


class Outputs:
    """The outputs of one step: `num_rows` rows, and a mapping per length that is not None."""

    def __init__(self, num_rows: int = 0, lengths: Sequence[int | None] | None = None) -> None:
        self.rows = array("i", [UNTOUCHED]) * (4 * num_rows)
        self.slots: list[array[int] | None] | None = None
        if lengths is not None:
            self.slots = [None if n is None else array("q", [UNTOUCHED]) * n for n in lengths]
        view = None
        if num_rows:
            view = memoryview(self.rows).cast("B").cast("i", [num_rows, 4])
        self.given = StepOutput(view, self.slots)

    def row(self, number: int) -> tuple[int, ...]:
        """Return handle, group, index, block."""
        return tuple(self.rows[4 * number : 4 * number + 4])
