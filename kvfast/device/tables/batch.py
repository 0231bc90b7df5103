"""The batch of a step on the host: checked and cut once, and used again while it stays the same."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import torch

from kvfast.device.base.arguments import host_ints
from kvfast.device.tables.geometry import Geometry
from kvfast.device.tables.input import check_handles, counts_of
from kvspec.batched import Ints
from kvspec.errors import InvalidArgumentError


@dataclass(frozen=True, eq=False)
class Batch:
    """The entries of a step, int64 on the host: all, and those granted tokens.

    `handles`, `counts` [m]: as given. `rows`, `granted` [n]: without those of 0 tokens.
    """

    handles: torch.Tensor
    counts: torch.Tensor
    rows: torch.Tensor
    granted: torch.Tensor

    @cached_property
    def ends(self) -> torch.Tensor:
        """End of each place's tokens."""
        return self.granted.cumsum(0)

    @cached_property
    def num_tokens(self) -> int:
        """Number of tokens in the step."""
        return int(self.granted.sum())

    @cached_property
    def max_query_tokens(self) -> int:
        """Most tokens of one entry."""
        return int(self.granted.max()) if len(self.granted) else 0

    @cached_property
    def is_uniform(self) -> bool:
        """Whether all places have the same number of tokens."""
        return self.num_tokens == len(self.rows) * self.max_query_tokens

    @cached_property
    def top(self) -> int:
        """Largest handle; -1 if there is none."""
        return int(self.rows.max()) if len(self.rows) else -1


def no_batch() -> Batch:
    """Return the batch before the first step."""
    empty = torch.empty(0, dtype=torch.int64)
    return Batch(empty, empty, empty, empty)


def unknown_batch() -> Batch:
    """Return a batch that differs from any next one: the device's is unknown."""
    none = torch.empty((1, 0), dtype=torch.int64)
    return Batch(none, none, none[0], none[0])


def next_batch(
    last: Batch, handles: Ints, num_scheduled: Ints, geometry: Geometry, max_tokens: int
) -> Batch:
    """Return the batch of these entries; `last` itself if they are the same.

    InvalidArgumentError (`handles[i]`, `num_scheduled[i]`, `num_scheduled`) otherwise.
    """
    chosen = host_ints("handles", handles)
    counts = host_ints("num_scheduled", num_scheduled)
    if torch.equal(chosen, last.handles) and torch.equal(counts, last.counts):
        return last
    check_handles("handles", chosen, geometry)
    counts = counts_of("num_scheduled", counts, len(chosen), max_tokens)
    num_tokens = int(counts.sum())
    if num_tokens > max_tokens:
        allowed = f"at most max_tokens = {max_tokens} in all"
        raise InvalidArgumentError("num_scheduled", num_tokens, allowed)
    is_granted = counts > 0
    rows, granted = chosen[is_granted], counts[is_granted]
    return Batch(chosen.clone(), counts.clone(), rows, granted)
