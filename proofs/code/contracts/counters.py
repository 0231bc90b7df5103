"""Statistics: kvref and kvfast count the same (KV-STAT-4 … KV-STAT-6).

Three updates of a hit rate and the life of one block, with any numbers and at any times.
"""

from __future__ import annotations

import sys
from collections.abc import Callable

import kvfast.residency as fast_residency
import kvref.residency as reference_residency
from kvfast.hit_rate import HitRateWindow
from kvref.stats import ReferenceHitRateWindow
from kvspec._check import COUNT_MAX
from kvspec.stats import PrefixCacheStats
from proofs.code.contracts._mistakes import (
    IGNORED,
    NO_TOUCH,
)
from proofs.code.contracts._pools import chosen
from proofs.code.contracts._runner import Contract, main

ASSUMES = ("every allocation is sampled",)
GUARANTEES = ("hit rates and lives of blocks are the same over a few updates",)

Update = tuple[int, int, bool]
"""Requests, hit tokens, and whether the cache was reset."""


def are_updates(*updates: Update) -> bool:
    """Whether all numbers are counts."""
    return all(0 <= one[0] <= COUNT_MAX and 0 <= one[1] <= COUNT_MAX for one in updates)


def hit_rate(most: int, first: Update, second: Update, third: Update) -> bool:
    """The window clears, ignores, adds and drops the oldest, in this order (KV-STAT-4, KV-STAT-5).

    pre: 1 <= most <= COUNT_MAX and are_updates(first, second, third)
    post: _
    """
    ours, theirs = ReferenceHitRateWindow(most), HitRateWindow(most)
    for requests, hits, reset in (first, second, third):
        stats = PrefixCacheStats(reset, requests, 2 * hits, hits)
        ours.observe(stats)
        theirs.observe(stats)
    wanted = (ours.num_requests, sum([each.hits_tokens for each in ours.updates]))
    return wanted == (theirs.num_requests, theirs._hits)


def clock_of(times: list[int]) -> Callable[[], int]:
    """A clock that shows one time after the other."""
    shown = iter(times)
    return lambda: next(shown)


def life(num_touches: int, start: int, gaps: tuple[int, int, int, int, int, int]) -> bool:
    """The life of a block: since its birth, since its last use, its last gaps (KV-STAT-6).

    pre: 0 <= num_touches <= 5 and min(gaps) >= 0
    post: _
    """
    touches = chosen(range(6), num_touches)
    times = [start]
    for gap in gaps:
        times.append(times[-1] + gap)
    ours = reference_residency.ResidencyLog(1.0, clock_of(times))
    theirs = fast_residency.ResidencyLog(1.0, clock_of(times))
    for log in (ours, theirs):
        log.ask()
        log.allocated(1)
        for _ in range(touches):
            log.ask()
            log.touched(1)
        log.ask()
        log.ended(1)
    (wanted,), (found,) = ours.take(), theirs.take()
    return (wanted.lifetime_ns, wanted.idle_ns, wanted.reuse_gaps_ns) == (
        found.lifetime_ns,
        found.idle_ns,
        found.reuse_gaps_ns,
    )


CONTRACTS = (
    Contract(hit_rate, (IGNORED,)),
    Contract(life, (NO_TOUCH,)),
)


if __name__ == "__main__":
    sys.exit(main("counters"))
