"""One request with a list in one group of a pool, in kvref and in kvfast."""

from __future__ import annotations

from dataclasses import dataclass

from kvfast._core.allocator import Allocator
from kvfast._core.demand import Demand as FastDemand
from kvfast._core.lookup import Lookup
from kvref.groups.base import Demand, Group
from proofs.code.contracts._pools import (
    State,
    fast_pool,
    fast_state,
    reference_pool,
    reference_state,
    tables_of,
)
from tests.lockstep.shapes import Numbers, fast_shape, reference_group

NAME = "r"
ROW = 0

REFS = (1, 1, 1)


@dataclass(frozen=True)
class Held:
    """What a request holds: its blocks, and how many of them were handed to the cache, if any were.

    `hits` are offered to it. `has_allocated`: in mode align it took blocks before. All other blocks
    of the pool are free, unless `used` has them, and wait in the queue in the order of `queue`.
    """

    queue: tuple[int, ...]
    blocks: tuple[int, ...] = ()
    num_cached: int | None = None
    hits: tuple[int, ...] = ()
    has_allocated: bool = False


def reference_row(numbers: Numbers, held: Held) -> Group:
    """kvref's group."""
    group = reference_group(numbers, reference_pool(held.queue, REFS))
    if held.blocks or held.num_cached is not None:
        group.block_lists[NAME] = list(held.blocks)
    if held.num_cached is not None:
        group.num_cached[NAME] = held.num_cached
    if held.has_allocated:
        group.allocated.add(NAME)  # type: ignore[attr-defined]  # an align-mode group
    return group


def fast_row(numbers: Numbers, held: Held) -> Allocator:
    """kvfast's allocator; the hits stand in its look-up."""
    pool = fast_pool(held.queue, REFS)
    shape = fast_shape(numbers)
    lookup = Lookup(shape, pool)
    lookup.make_room(len(held.hits))
    for index, block in enumerate(held.hits):
        lookup.hits[index] = block
    lookup.hit_blocks[0] = len(held.hits)
    tables = tables_of(held.blocks)
    if held.num_cached is not None:
        tables.cached[0] = 1 + held.num_cached
    tables.allocated[0] = 1 if held.has_allocated else 0
    return Allocator(shape, pool, tables, lookup, None, rounds_down=False)


def fast_demand(demand: Demand) -> FastDemand:
    """The same as kvfast's value."""
    return FastDemand().of(
        demand.num_slots_tokens,
        demand.num_main_tokens,
        demand.num_local_tokens,
        demand.num_external_tokens,
        demand.skip_at_tokens,
        demand.num_encoder_tokens,
    )


def reference_row_state(group: Group) -> tuple[State, tuple[int, ...], int | None]:
    """The pool, the list, and its leading blocks that were handed to the cache."""
    return (
        reference_state(group.pool),
        tuple(group.blocks_of(NAME)),
        group.num_cached.get(NAME),
    )


def fast_row_state(allocator: Allocator) -> tuple[State, tuple[int, ...], int | None]:
    """The same of kvfast."""
    cached = allocator.tables.cached[0]
    return (
        fast_state(allocator.pool),
        tuple(allocator.tables.to_list(0)),
        cached - 1 if cached else None,
    )
