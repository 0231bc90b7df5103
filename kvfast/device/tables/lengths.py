"""Computed tokens of every row on the host: as they should be, and as the device has them."""

from __future__ import annotations

import torch

from kvfast.device.tables.batch import Batch, no_batch


class Lengths:
    """Lengths of `num` rows. The methods trust their arguments.

    Steps of the same batch are only counted (`_times`) until lengths are read: an engine that
    decodes reads only the longest sequence, which grows by the same number each time.
    """

    def __init__(self, num: int) -> None:
        self._now = torch.zeros(num, dtype=torch.int64)
        self._told: torch.Tensor | None = None  # None: the device has `_now`
        self._batch = no_batch()
        self._times = 0
        self._none = self._now[:0]
        self._longest: int | None = 0  # of the last step; None once lengths were set

    def _settled(self) -> torch.Tensor:
        """Return the lengths, with all steps added."""
        if self._times:
            for lengths in (self._now, self._told):
                if lengths is not None:
                    lengths[self._batch.rows] += self._times * self._batch.granted
            self._times = 0
        return self._now

    def copy(self, handles: torch.Tensor) -> torch.Tensor:
        """Return a copy to be changed; longer if some of these handles have no row yet."""
        top = int(handles.max()) if len(handles) else -1
        now = self._settled()
        return padded(now, max(len(now), top + 1))

    def set(self, lengths: torch.Tensor) -> None:
        """Set the lengths of the first rows, and clear the others. Keeps the tensor."""
        now = self._settled()
        if self._told is None:
            self._told = now
        self._longest = None
        self._now = padded(lengths, len(now)) if len(lengths) < len(now) else lengths

    def grow(self, num: int) -> None:
        """Add rows without tokens."""
        self._now = padded(self._settled(), num)
        if self._told is not None:
            self._told = padded(self._told, num)

    def longest_after(self, batch: Batch, changed: torch.Tensor | None) -> int:
        """Return the longest sequence of a batch after its step. Pure.

        `changed`: lengths before it, if known.
        """
        is_next = changed is None and batch is self._batch
        if self._longest is not None and is_next and batch.is_uniform:
            return self._longest + batch.max_query_tokens
        now = self._settled() if changed is None else changed
        if batch.top >= len(now):
            now = padded(now, batch.top + 1)
        return int((now[batch.rows] + batch.granted).max()) if len(batch.rows) else 0

    def take_changes(self) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the handles whose length on the device is stale, and what to add to each."""
        if self._told is None:
            return self._none, self._none
        added = self._settled() - self._told
        self._told = None
        handles = added.nonzero()[:, 0]
        return handles, added[handles]

    def add_computed(self, rows: torch.Tensor, numbers: torch.Tensor) -> None:
        """Add tokens to these rows that the device already counts."""
        now = self._settled()
        for lengths in (now, self._told):
            if lengths is not None:
                lengths[rows] += numbers
        self._longest = None

    def advance(self, batch: Batch, longest: int) -> None:
        """Add the step's tokens, here and on the device; `longest` is the longest sequence."""
        if batch is not self._batch:
            self._settled()
            self._batch = batch
        self._times += 1
        self._longest = longest


def padded(lengths: torch.Tensor, size: int) -> torch.Tensor:
    """Return a copy padded with zeros."""
    longer = torch.zeros(size, dtype=torch.int64)
    longer[: len(lengths)] = lengths
    return longer
