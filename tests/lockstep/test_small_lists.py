"""kvref and kvfast take and release the same blocks for every entry of a table.

They take as many as they said. A pool of three blocks of two tokens each; a request in five states
of its list.
"""

from __future__ import annotations

from itertools import product
from typing import Any

import pytest

from kvfast._core.allocator import Allocator
from kvfast._core.key_map import KeyMap
from kvfast._core.pool import BlockPool
from kvfast._core.shape import Shape
from kvfast._core.tables import Tables
from kvref.groups.base import Demand
from proofs.code.contracts._pools import (
    REGISTERED,
    fast_pool,
    fast_state,
    reference_pool,
    reference_state,
)
from tests.lockstep.rows import (
    NAME,
    ROW,
    Held,
    fast_demand,
    fast_row,
    fast_row_state,
    reference_row,
    reference_row_state,
)
from tests.lockstep.shapes import Numbers

SIZE = 2
TOKENS = range(1, 9)
"""Up to more than the pool has slots for."""

WINDOWS = (1, 3, 4, 100)

STARTS = (
    Held((1, 2, 3)),
    Held((2, 1, 3), hits=(1,)),
    Held((3, 2), hits=(1,)),
    Held((3, 1), hits=(0, 2)),
    Held((2, 3, 1), hits=(1, 2)),
)
"""A request without blocks, and its hits."""

RUNNING = (
    Held((1, 2, 3), num_cached=0),
    Held((3, 2), blocks=(1,), num_cached=1),
    Held((2,), blocks=(3, 1), num_cached=1),
    Held((3,), blocks=(0, 2), num_cached=1),
    Held((), blocks=(3, 1, 2), num_cached=0),
)


def takes(numbers: Numbers, held: Held, demand: Demand) -> bool:
    """Whether both take the same blocks, as many as needed, or both have too few.

    In mode align fewer may be taken: KV-MAMBA-7 counts drafted states that hits stand for.
    """
    group, allocator = reference_row(numbers, held), fast_row(numbers, held)
    asked = fast_demand(demand)
    need = group.num_blocks_needed(NAME, held.hits, demand)
    if need != allocator.need_of(0, ROW, asked, False):
        return False
    if need > group.pool.num_free_blocks:
        return True
    if held.num_cached is None and (held.hits or demand.num_external_tokens > 0):
        group.take_hits(NAME, held.hits, demand)
        allocator.take_hits(ROW, asked)
        if demand.num_external_tokens > 0:
            group.allocate_external(NAME, demand)
    group.allocate_new(NAME, demand)
    allocator.take_new(ROW, asked)
    left = len(held.queue) - group.pool.num_free_blocks
    is_as_needed = left <= need if numbers.kind == "aligned" else left == need
    return is_as_needed and reference_row_state(group) == fast_row_state(allocator)


def start_full() -> bool:
    """Hits are touched, the rest is taken from the queue."""

    def demand(held: Held, slots: int) -> Demand:
        local = SIZE * len(held.hits)
        return Demand(local + slots, local + slots, local, 0, 0)

    return all(
        takes(Numbers("full", SIZE), held, demand(held, slots))
        for held, slots in product(STARTS, TOKENS)
    )


LOADS = ((0, 0), (0, 1), (0, 4), (2, 1))
"""Tokens that a short list of hits lacks, and external ones (KV-MGR-22)."""


def start_sliding() -> bool:
    """Hits that the window skips become null; external tokens get blocks, too."""

    def demand(held: Held, slots: int, lacking: int, external: int) -> Demand:
        local = SIZE * len(held.hits) + lacking
        computed = local + external
        return Demand(computed + slots, computed + slots, local, external, computed)

    return all(
        takes(Numbers("sliding", SIZE, window), held, demand(held, slots, *load))
        for held, window, slots, load in product(STARTS, WINDOWS, (1, 3), LOADS)
    )


def go_on() -> bool:
    """A running request takes what its slots lack."""
    return all(
        takes(Numbers("full", SIZE), held, Demand(slots, slots, 0, 0, 0))
        for held, slots in product(RUNNING, TOKENS)
    )


ALIGNED = (
    Held((1, 2, 3), num_cached=0),
    Held((3, 2), blocks=(1,), num_cached=0, has_allocated=True),
    Held((3,), blocks=(2, 1), num_cached=1, has_allocated=True),
    Held((3,), blocks=(0, 2, 1), num_cached=1, has_allocated=True),
    Held((2, 3), blocks=(0, 1), num_cached=2),
)


def go_on_aligned() -> bool:
    """Pad with null, move drafted states along, take what is missing.

    Who took blocks holds its drafted states.
    """
    return all(
        takes(Numbers("aligned", SIZE, drafted=drafted), held, Demand(slots, slots, 0, 0, 0))
        for held, slots, drafted in product(ALIGNED, range(1, 11), (0, 1))
        if not held.has_allocated or len(held.blocks) >= 1 + drafted
    )


def reset() -> bool:
    """An idle pool forgets every key, and its queue stays."""
    for registered in REGISTERED:
        ours = reference_pool((2, 3, 1), (1, 1, 1), registered)
        theirs = fast_pool((2, 3, 1), (1, 1, 1), registered)
        theirs.reset()
        if not (ours.reset() and reference_state(ours) == fast_state(theirs)):
            return False
    return True


def releases(numbers: Numbers, held: Held, computed: int) -> bool:
    """Whether both release the same blocks, the last one first."""
    group, allocator = reference_row(numbers, held), fast_row(numbers, held)
    group.remove_skipped_blocks(NAME, computed)
    allocator.remove_skipped(ROW, computed, 1)
    return reference_row_state(group) == fast_row_state(allocator)


def remove_skipped() -> bool:
    """What fell out of the window; proofs/code/windows.py has all windows, of one number."""
    return all(
        releases(Numbers("sliding", SIZE, window), held, computed)
        for held, window, computed in product(RUNNING, range(1, 10), range(13))
    )


def remove_states() -> bool:
    """States but those to which rejected drafts may lead back."""
    return all(
        releases(Numbers("mamba", SIZE, drafted=drafted), held, computed)
        for held, drafted, computed in product(RUNNING, range(8), range(13))
    )


CHECKS = (start_full, start_sliding, go_on, go_on_aligned, reset, remove_skipped, remove_states)


@pytest.mark.rule("KV-GRP-3", "KV-GRP-4", "KV-GRP-5", "KV-GRP-6", "KV-GRP-7", "KV-POOL-11")
@pytest.mark.rule("KV-MAMBA-5", "KV-MAMBA-7", "KV-MAMBA-9", "KV-GRP-2", "KV-POOL-7")
@pytest.mark.parametrize("check", CHECKS)
def test_both_take_and_release_the_same_blocks(check: Any) -> None:
    assert check()


def grow_by_new_blocks(self: Allocator, at: int, required: int, held: int, drafted: int) -> None:
    for _ in range(held, required - drafted - 1):
        self.tables.append(at, 0)
    self.pool.allocate(self.tables, at, required - self.tables.length[at])
    self.tables.allocated[at] = 1


release = BlockPool.release


def release_from_the_first_on(self: BlockPool, tables: Tables, start: int, end: int) -> None:
    tables.arena[start], tables.arena[end - 1] = tables.arena[end - 1], tables.arena[start]
    release(self, tables, start, end)


@pytest.mark.parametrize(
    ("check", "owner", "attribute", "replacement"),
    [
        (start_full, BlockPool, "touch", lambda *_: None),
        (start_sliding, Shape, "skipped", lambda *_: 0),
        (go_on, Shape, "cdiv", lambda self, a, b: a // b),
        (go_on_aligned, Allocator, "grow_aligned", grow_by_new_blocks),
        (reset, KeyMap, "clear", lambda self: None),
        (remove_skipped, BlockPool, "release", release_from_the_first_on),
        (remove_states, Shape, "is_mamba", lambda *_: False),
    ],
)
def test_a_mistake_in_kvfast_is_found(
    monkeypatch: pytest.MonkeyPatch, check: Any, owner: type, attribute: str, replacement: Any
) -> None:
    monkeypatch.setattr(owner, attribute, replacement)
    assert not check()
