"""Counters that a manager returns (KV-STAT-*)."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class PrefixCacheStats:
    """Look-ups since the last call of `make_prefix_cache_stats`.

    `requests` look-ups asked for `queries_tokens` tokens and hit `hits_tokens`; look-ups of
    requests that were preempted before count in the `preempted_` fields instead. `reset`: a
    successful `reset_prefix_cache` happened meanwhile.
    """

    reset: bool = False
    requests: int = 0
    queries_tokens: int = 0
    hits_tokens: int = 0
    preempted_requests: int = 0
    preempted_queries_tokens: int = 0
    preempted_hits_tokens: int = 0


@dataclass(frozen=True)
class ResidencySample:
    """The life of one sampled block, in nanoseconds of the manager's clock (KV-STAT-6).

    `lifetime_ns`: from its allocation to its reallocation or eviction by id. `idle_ns`: since its
    last touch (since birth when it was never touched). `reuse_gaps_ns`: at most three gaps between
    its last four touches, oldest first.
    """

    lifetime_ns: int
    idle_ns: int
    reuse_gaps_ns: tuple[int, ...]
