"""Events that report a request's hits (KV-EVT-11)."""

from __future__ import annotations

from .event_log import EventLog
from .lookup import Lookup
from .request import FastRequest


def report_hit(log: EventLog | None, lookup: Lookup, request: FastRequest, tokens: int) -> None:
    """Report a hit of `tokens` tokens if the request wants that; its blocks are in the look-up."""
    if log is not None and request.input.reports_hits:
        for g in range(lookup.shape.num_groups):
            report_group(log, lookup, request, g, tokens)


def report_group(log: EventLog, lookup: Lookup, request: FastRequest, g: int, tokens: int) -> None:
    """Report one group's part of the hit: blocks that are not null, and the one it ends inside."""
    size, per = lookup.shape.block_size[g], lookup.shape.hashes_per_block[g]
    num_hits = lookup.hit_blocks[g]
    end = min(num_hits, tokens // size)
    found = [i for i in range(end) if lookup.hits[g * lookup.stride + i]]
    if found:
        log.hit(request, g, per, 0, end, found)
    if num_hits > end:
        number = tokens // (size // per)
        block = lookup.hits[g * lookup.stride + end]
        if lookup.pool.has_key(block, request, number - 1, g):
            log.hit(request, g, 1, number - 1, number, [number - 1])
