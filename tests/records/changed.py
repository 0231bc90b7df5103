"""Changes that several tests of records make, and how they read the findings."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from dataclasses import replace
from typing import Any

from kvcheck.play.compare import Mismatch
from kvcheck.records.select import shipped_records
from kvref.block_pool import BlockPool
from kvspec.record import Operation

SMALL = shipped_records() / "life_of_blocks.jsonl"
LARGE = shipped_records() / "identities.jsonl"


class WrongWayRound(BlockPool):
    def release(self, blocks: Iterable[int]) -> None:
        super().release(list(reversed(list(blocks))))


def fields(mismatch: Mismatch | None) -> list[str]:
    assert mismatch is not None
    return [difference.field for difference in mismatch.differences]


def observed(op: Operation, **changes: Any) -> Operation:
    return replace(op, observed=replace(op.observed, **changes))


def otherwise(value: Any) -> Iterator[Any]:
    """Yield a plain value with one thing changed: a number by as little as can be, an order."""
    if isinstance(value, dict):
        for name in value:
            yield from ({**value, name: other} for other in otherwise(value[name]))
    elif isinstance(value, list):
        others = (value[:-1], value[::-1], [*value, *value[:1]])
        yield from (other for other in others if other != value)
        for place, each in enumerate(value):
            yield from ([*value[:place], one, *value[place + 1 :]] for one in otherwise(each))
    elif isinstance(value, bool):
        yield not value
    elif isinstance(value, int):
        yield value + 1
    elif isinstance(value, float):
        yield math.nextafter(value, math.inf)
    else:
        yield 0 if value is None else value[::-1]


def alterations(op: Operation) -> Iterator[tuple[str, Operation]]:
    """Yield an operation with one thing changed, and the field that then differs."""
    seen = op.observed
    if op.raises is not None:
        yield "error", replace(op, raises=None, message=None)
        yield "error", replace(op, raises="NotImplementedError")
    else:
        yield from (("result", replace(op, result=other)) for other in otherwise(op.result))
        if op.name != "new_request":  # which a record needs
            yield "error", replace(op, result=None, raises="ValueError")
    for name in ("num_free_blocks", "usage", "dup_order"):
        if getattr(seen, name) is not None:
            others = otherwise(getattr(seen, name))
            yield from ((name, observed(op, **{name: other})) for other in others)
    for name, value in {"free_queue": [2, 2], **seen.state}.items():
        others = otherwise(value)
        yield from (
            (f"state.{name}", observed(op, state={**seen.state, name: other})) for other in others
        )
