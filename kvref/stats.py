"""Look-up statistics, and the hit rate over recent requests (KV-STAT-1 … KV-STAT-5)."""

from __future__ import annotations

from dataclasses import replace

from kvspec.domains import int_at_least
from kvspec.errors import InvalidArgumentError
from kvspec.stats import PrefixCacheStats


class LookupCounter:
    """Counts look-ups until they are taken."""

    def __init__(self) -> None:
        self.stats = PrefixCacheStats()

    def record(self, num_tokens: int, hit_tokens: int, preempted: bool) -> None:
        """Count a look-up; those after a preemption separately (KV-STAT-1, KV-STAT-2)."""
        now = self.stats
        if preempted:
            self.stats = replace(
                now,
                preempted_requests=now.preempted_requests + 1,
                preempted_queries_tokens=now.preempted_queries_tokens + num_tokens,
                preempted_hits_tokens=now.preempted_hits_tokens + hit_tokens,
            )
        else:
            self.stats = replace(
                now,
                requests=now.requests + 1,
                queries_tokens=now.queries_tokens + num_tokens,
                hits_tokens=now.hits_tokens + hit_tokens,
            )

    def was_reset(self) -> None:
        """Mark in the next stats that the cache was reset."""
        self.stats = replace(self.stats, reset=True)

    def take(self) -> PrefixCacheStats:
        """Return and clear the counts since the last call (KV-STAT-3)."""
        stats = self.stats
        self.stats = PrefixCacheStats()
        return stats


class ReferenceHitRateWindow:
    """Hit rate over the most recent requests (KV-STAT-4)."""

    def __init__(self, max_requests: int) -> None:
        int_at_least("max_requests", max_requests, 1, error=InvalidArgumentError)
        self.max_requests = max_requests
        self.updates: list[PrefixCacheStats] = []

    def observe(self, stats: PrefixCacheStats) -> None:
        """Take in one update, in the order of KV-STAT-5."""
        if not isinstance(stats, PrefixCacheStats):
            raise InvalidArgumentError("stats", stats, "PrefixCacheStats")
        if stats.reset:
            self.updates = []
        if stats.requests == 0:
            return
        self.updates.append(stats)
        while self.num_requests > self.max_requests and len(self.updates) > 1:
            del self.updates[0]

    @property
    def num_requests(self) -> int:
        """Number of requests in the window."""
        return sum(update.requests for update in self.updates)

    @property
    def hit_rate(self) -> float:
        """Hit tokens / queried tokens; 0.0 when nothing was queried."""
        queries = sum(update.queries_tokens for update in self.updates)
        hits = sum(update.hits_tokens for update in self.updates)
        return hits / queries if queries else 0.0
