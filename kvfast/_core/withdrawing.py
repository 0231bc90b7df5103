"""A request whose planned step does not run (KV-MGR-23)."""

from __future__ import annotations

from kvspec.errors import InvalidArgumentError

from .core import Core
from .request import FastRequest
from .turn import Turn


def withdraw(core: Core, turn: Turn, request: FastRequest, tokens: int) -> tuple[str, ...]:
    """Drop the keys of blocks that end behind the computed tokens; return the other holders."""
    if not core.enable_caching:
        return ()
    row = core.rows.of(request)
    if not core.allocator.holds_blocks(row):
        raise InvalidArgumentError("request", request.request_id, "one that holds blocks")
    names = holders_behind(core, row, tokens)
    turn.changes()
    for g in range(core.num_groups):
        whole, at = tokens // core.shape.block_size[g], row * core.num_groups + g
        core.tables.cached[at] = min(core.tables.cached[at], 1 + whole)
        for block in core.ids_of(row, g, whole):
            if block and core.pool.is_cached(block):
                core.pool.forget(block)
    request.look_again()
    turn.changed()
    return names


def holders_behind(core: Core, row: int, tokens: int) -> tuple[str, ...]:
    """Return the ids of other requests with a block of the row that ends behind `tokens`."""
    shared: set[int] = set()
    for g in range(core.num_groups):
        for block in core.ids_of(row, g, tokens // core.shape.block_size[g]):
            if block and core.pool.refs(block) > 1:
                shared.add(block)
    names = []
    for name, other in core.rows.by_id.items():
        if other != row and shared and has_any(core, other, shared):
            names.append(name)
    return tuple(sorted(names))


def has_any(core: Core, row: int, marked: set[int]) -> bool:
    """Check whether a list of the row has a marked block."""
    return any(not marked.isdisjoint(core.ids_of(row, g, 0)) for g in range(core.num_groups))
