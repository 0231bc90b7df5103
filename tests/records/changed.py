"""Changes that several tests of records make, and how they read the findings."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeAlias

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


def result(change: Callable[[Any], Any]) -> Callable[[Operation], Operation]:
    return lambda op: replace(op, result=change(op.result))


def observed(op: Operation, **changes: Any) -> Operation:
    return replace(op, observed=replace(op.observed, **changes))


Change: TypeAlias = Callable[[Operation], Operation | None]
"""An operation with one thing changed; None where that cannot be."""


def answer(
    name: str, change: Callable[[Any], Any], wanted: Callable[[Any], Any] = lambda given: True
) -> Change:
    """Change the result of this operation, where the right one is as `wanted`."""

    def changed(op: Operation) -> Operation | None:
        if op.name != name or op.raises is not None or not wanted(op.result):
            return None
        return replace(op, result=change(op.result))

    return changed


def member(operation: str, name: str, change: Callable[[Any], Any]) -> Change:
    return answer(operation, lambda given: {**given, name: change(given[name])}, bool)


def one_block_less(hit: Any) -> Any:
    (blocks,) = hit["blocks"]
    length = hit["num_computed_tokens"]
    return {**hit, "num_computed_tokens": length - length // len(blocks), "blocks": [blocks[:-1]]}


def state(name: str, change: Callable[[Any], Any]) -> Change:
    def changed(op: Operation) -> Operation | None:
        if not op.observed.state.get(name):
            return None
        value = change(op.observed.state[name])
        return observed(op, state={**op.observed.state, name: value})

    return changed


def duplicates_reversed(op: Operation) -> Operation | None:
    order = {key: blocks[::-1] for key, blocks in (op.observed.dup_order or {}).items()}
    return observed(op, dup_order=order) if order else None


def raising(error: str) -> Change:
    """Raise an error where none was; skip new requests, which a record needs."""
    return lambda op: (
        None
        if op.raises is not None or op.name == "new_request"
        else replace(op, result=None, raises=error)
    )


def in_place_of_an_error(**changes: Any) -> Change:
    """Replace an expected error."""
    return lambda op: None if op.raises is None else replace(op, **changes)


KEY = "c9d58ba695280d69b243e1e0df813136ca9196b286fb1a021e0b2e028ef071cb"
ALLOCATE, HIT = "allocate_slots", "get_computed_blocks"

CHANGES: Mapping[str, Change] = {
    "a block id": answer(
        ALLOCATE, lambda r: [[r[0][0] % 20 + 1, *r[0][1:]], *r[1:]], lambda r: r and r[0]
    ),
    "the order of new blocks": answer(
        ALLOCATE, lambda r: [r[0][::-1], *r[1:]], lambda r: r and len(r[0]) > 1
    ),
    "one block more": answer(ALLOCATE, lambda r: [[*r[0], 3], *r[1:]], lambda r: r is not None),
    "refused": answer(ALLOCATE, lambda r: None, lambda r: r is not None),
    "not refused": answer(ALLOCATE, lambda r: [[1]], lambda r: r is None),
    "a longer hit": member(HIT, "num_computed_tokens", lambda length: length + 4),
    "a shorter hit": answer(HIT, one_block_less, lambda r: r["num_computed_tokens"]),
    "hit blocks": member(HIT, "blocks", lambda lists: [[7, *lists[0][1:]]]),
    "a null common prefix": member(HIT, "num_uncached_common_prefix_tokens", lambda _: 0),
    "a prompt's hash": member("new_request", "block_hashes", lambda all_: ["00" * 32, *all_[1:]]),
    "an appended hash": member("append_tokens", "new_block_hashes", lambda _: []),
    "a common prefix": answer("get_num_common_prefix_blocks", lambda r: [r[0] + 1]),
    "unhashed blocks": member("get_block_ids", "unhashed", lambda lists: [[5, *lists[0]]]),
    "blocks to zero": answer("take_new_block_ids", lambda r: r[1:], bool),
    "popped blocks": answer("pop_blocks_for_free", lambda r: r[::-1], lambda r: len(r) > 1),
    "a reset": answer("reset_prefix_cache", lambda r: not r),
    "a statistic": member("make_prefix_cache_stats", "hits", lambda number: number + 1),
    "no statistics": answer("make_prefix_cache_stats", lambda r: None, bool),
    "an event's key": answer(
        "take_events", lambda r: [{**r[0], "block_hashes": ["00" * 32]}, *r[1:]], bool
    ),
    "an event's medium": answer("take_events", lambda r: [{**r[0], "medium": "CPU"}, *r[1:]], bool),
    "events reversed": answer("take_events", lambda r: r[::-1], lambda r: r and r[0] != r[-1]),
    "an event less": answer("take_events", lambda r: r[:-1], bool),
    "free blocks": lambda op: observed(op, num_free_blocks=op.observed.num_free_blocks + 1),
    "usage": lambda op: (
        observed(op, usage=op.observed.usage / 2 + 0.1) if op.observed.state else None
    ),
    # The next double: as small as a difference can be.
    "usage by one bit": lambda op: observed(op, usage=math.nextafter(op.observed.usage, 1)),
    "the free queue": state("free_queue", lambda q: [*q[1:2], *q[:1], *q[2:], *[9] * (len(q) < 2)]),
    "a reference count": state("ref_cnt", lambda counts: [*counts[:-1], counts[-1] + 5]),
    "a block's key": state("block_hash", lambda keys: [KEY] * len(keys)),
    "a block list": state("req_blocks", lambda lists: {name: [[9]] for name in lists}),
    "a cached count": state("num_cached_block", lambda counts: {name: [9] for name in counts}),
    "the order of duplicates": duplicates_reversed,
    "a change where there is none": lambda op: (
        observed(op, state={"free_queue": [2, 2]}) if op.name == HIT else None
    ),
    "no error": in_place_of_an_error(raises=None, message=None),
    "another error": in_place_of_an_error(raises="NotImplementedError"),
    "an error where there is none": raising("ValueError"),
}
"""A change of each kind that a comparison has to see."""

FIELDS: Mapping[str, str] = {
    "free blocks": "num_free_blocks",
    "usage": "usage",
    "usage by one bit": "usage",
    "the free queue": "state.free_queue",
    "a reference count": "state.ref_cnt",
    "a block's key": "state.block_hash",
    "a block list": "state.req_blocks",
    "a cached count": "state.num_cached_block",
    "the order of duplicates": "dup_order",
    "a change where there is none": "state.free_queue",
    "no error": "error",
    "another error": "error",
    "an error where there is none": "error",
}
"""The field that differs then; `result` if none stands here."""


@dataclass(frozen=True)
class Tampered:
    """A record in which the operation at `index` is the first that is not as it was."""

    index: int
    operations: tuple[Operation, ...]


def changed(operations: tuple[Operation, ...], change: Change) -> Iterator[Tampered]:
    for index, operation in enumerate(operations):
        other = change(operation)
        if other is not None and other != operation:
            yield Tampered(index, (*operations[:index], other, *operations[index + 1 :]))


MAX_PLACES = 5
"""Of the many places where a change can be made, so many are tried, evenly spread."""


def spread(found: Iterator[Tampered]) -> Sequence[Tampered]:
    places = list(found)
    assert places
    step = -(-len(places) // MAX_PLACES)
    return places[::step]
