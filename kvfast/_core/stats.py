"""Counts of look-ups (KV-STAT-1 … KV-STAT-3)."""

from __future__ import annotations

from kvspec.stats import PrefixCacheStats

from .request import FastRequest


class LookUpStats:
    """Counts since the last reading; `again_*`: of requests preempted before."""

    def __init__(self) -> None:
        self.clear()

    def clear(self) -> None:
        """Reset the counts (KV-STAT-3)."""
        self.was_reset = False
        self.requests = self.queries = self.hits = 0
        self.again_requests = self.again_queries = self.again_hits = 0

    def count(self, request: FastRequest, tokens: int) -> None:
        """Count a look-up that found `tokens` tokens (KV-STAT-1, KV-STAT-2)."""
        if request.preemptions > 0:
            self.again_requests += 1
            self.again_queries += request.num_tokens
            self.again_hits += tokens
        else:
            self.requests += 1
            self.queries += request.num_tokens
            self.hits += tokens

    def shown(self) -> PrefixCacheStats:
        """Return the counts."""
        return PrefixCacheStats(
            self.was_reset,
            self.requests,
            self.queries,
            self.hits,
            self.again_requests,
            self.again_queries,
            self.again_hits,
        )

    def copy_from(self, other: LookUpStats) -> None:
        """Take over the counts of another."""
        self.was_reset = other.was_reset
        self.requests, self.queries, self.hits = other.requests, other.queries, other.hits
        self.again_requests, self.again_queries = other.again_requests, other.again_queries
        self.again_hits = other.again_hits
