"""What several tests of records change, and how they read what was found."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Any

from kvcheck.play.compare import Mismatch
from kvcheck.records.select import shipped_records
from kvref.block_pool import BlockPool
from kvspec.record import Operation

SMALL = shipped_records() / "life_of_blocks.jsonl"
LARGE = shipped_records() / "identities.jsonl"


class WrongWayRound(BlockPool):
    """Releases blocks in the order of the list."""

    def release(self, blocks: Iterable[int]) -> None:
        super().release(list(reversed(list(blocks))))


def fields(mismatch: Mismatch | None) -> list[str]:
    """The fields that differ."""
    assert mismatch is not None
    return [difference.field for difference in mismatch.differences]


def result(change: Callable[[Any], Any]) -> Callable[[Operation], Operation]:
    """Change the result."""
    return lambda op: replace(op, result=change(op.result))
