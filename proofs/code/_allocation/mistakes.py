"""Mistakes in the need, and in what is done with hits."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

from kvfast._core.demand import Demand
from proofs.code._allocation.run import Hit, Hits, SymbolicAllocator, SymbolicTables


class ForgetsFreeHits(SymbolicAllocator):
    """A hit that waits in the free queue is not counted."""

    def num_revived(self, g: int, first: int) -> int:
        return 0


class CountsSkippedHits(SymbolicAllocator):
    """So are those that turn null."""

    def num_revived(self, g: int, first: int) -> int:
        return super().num_revived(g, 0)


class ForgetsDrafts(SymbolicAllocator):
    """The need lacks the blocks for drafted states."""

    def need_of(self, g: int, row: int, demand: Demand, capped: bool) -> int:
        drafted, self.shape.drafted[g] = self.shape.drafted[g], 0
        need = super().need_of(g, row, demand, capped)
        self.shape.drafted[g] = drafted
        return need


class ForgetsTheList(SymbolicAllocator):
    """The need is that of a request that holds nothing."""

    def need_of(self, g: int, row: int, demand: Demand, capped: bool) -> int:
        return super().need_of(g, -1, demand, capped)


class LeavesTheLastHit(SymbolicAllocator):
    """The last hit is not referenced."""

    def __init__(self, *arguments: Any, **members: Any) -> None:
        super().__init__(*arguments, **members)
        counting = self.counting
        self.pool = cast(
            Any,
            SimpleNamespace(touch=self._touch, allocate=counting.allocate, take=counting.take),
        )

    def _touch(self, tables: SymbolicTables, first: Any, end: Any) -> None:
        self.counting.touch(tables, first, end - 1)


class ReadsTheNextHit(SymbolicAllocator):
    """A hit is that of the place behind."""

    def __init__(self, *arguments: Any, **members: Any) -> None:
        super().__init__(*arguments, **members)
        self.lookup.hits = cast(Any, NextHits())


class NextHits(Hits):
    """The look-up's hits, one place off."""

    def __getitem__(self, place: Any) -> Hit:
        return super().__getitem__(place + 1)
