"""Marks on operations: refusals, hits, evictions, and the phases of a request."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

from kvspec.operations import LOOK_UPS
from kvspec.record import Operation

WAITING, RUNNING, PREEMPTED, DONE = "waiting", "running", "preempted", "done"

Lives: TypeAlias = Mapping[str, Sequence[tuple[int, str]]]
"""Request → the operations at which its life turned, and to what, in order."""

_RELEASES = frozenset({"free", "pop_blocks_for_free"})


@dataclass(frozen=True)
class Marks:
    """The effects of an operation that its result and the states around it show.

    `hit`: blocks that a look-up found or an allocation took over. `evicted`: blocks that lost their
    key. `cached`: blocks that got a key. `refused`: why the call was refused.
    """

    refused: str | None = None
    hit: tuple[int, ...] = ()
    evicted: tuple[int, ...] = ()
    cached: tuple[int, ...] = ()


def marks_of(
    operation: Operation, keys_before: Sequence[str | None], keys_after: Sequence[str | None]
) -> Marks:
    """Return the marks of an operation between two states, given by the key of every block."""
    evicted, cached = [], []
    for block, (before, after) in enumerate(zip(keys_before, keys_after, strict=True)):
        if before == after:
            continue
        if before is not None:
            evicted.append(block)
        if after is not None:
            cached.append(block)
    return Marks(refusal(operation), tuple(_hits(operation)), tuple(evicted), tuple(cached))


def refusal(operation: Operation) -> str | None:
    """Return why the call was refused; None if it was not."""
    if operation.raises is not None:
        return f"refused with {operation.raises}: {operation.message or 'no message recorded'}"
    if operation.name == "allocate_slots" and operation.result is None:
        return "refused: not enough free blocks, or not admitted"
    if operation.name == "reset_prefix_cache" and operation.result is False:
        return "refused: blocks are in use"
    return None


def _hits(operation: Operation) -> Iterator[int]:
    """Yield blocks found by a look-up, or taken over by an allocation, without null blocks."""
    groups: Any = ()
    if operation.raises is not None:
        return
    if operation.name in LOOK_UPS:
        groups = operation.result["blocks"]
    elif operation.name == "allocate_slots" and operation.result is not None:
        groups = operation.arguments.get("new_computed_blocks") or ()
    seen = {0}
    for blocks in groups:
        for block in blocks:
            if block not in seen:
                seen.add(block)
                yield block


def life_of_requests(operations: Sequence[Operation]) -> Lives:
    """Return the phases of each request.

    A request whose blocks are released counts as preempted if it is looked up or allocated for
    again, and otherwise as finished: only later calls show which.
    """
    lives: dict[str, list[tuple[int, str]]] = {}
    comes_again = _comes_again(operations)
    for operation in operations:
        name = operation.request_id
        if name is None or operation.raises is not None:
            continue
        life = lives.setdefault(name, [])
        now = life[-1][1] if life else None
        turned = None
        if operation.name == "new_request":
            turned = WAITING
        elif operation.name == "allocate_slots" and operation.result is not None:
            turned = RUNNING
        elif operation.name in _RELEASES and now in (WAITING, RUNNING):
            back = PREEMPTED if now == RUNNING else WAITING
            turned = back if operation.index in comes_again else DONE
        if turned is not None and turned != now:
            life.append((operation.index, turned))
    return lives


def _comes_again(operations: Sequence[Operation]) -> frozenset[int]:
    """Return the releases after which the request is looked up or allocated for again."""
    again = set()
    coming: dict[str, bool] = {}
    for operation in reversed(operations):
        name = operation.request_id
        if name is None:
            continue
        if operation.name == "new_request":
            coming[name] = False  # a new request under the same name
        elif operation.name in LOOK_UPS or operation.name == "allocate_slots":
            coming[name] = True
        elif operation.name in _RELEASES and coming.get(name, False):
            again.add(operation.index)
    return frozenset(again)
