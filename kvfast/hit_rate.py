"""Hit rate over the most recent requests (KV-STAT-4, KV-STAT-5)."""

from __future__ import annotations

from collections import deque

from kvspec.domains import int_at_least
from kvspec.errors import InvalidArgumentError
from kvspec.stats import PrefixCacheStats


class HitRateWindow:
    """Running sums over a queue of updates."""

    def __init__(self, max_requests: int) -> None:
        int_at_least("max_requests", max_requests, 1, error=InvalidArgumentError)
        self._max_requests = max_requests
        self._clear()

    def _clear(self) -> None:
        self._updates: deque[tuple[int, int, int]] = deque()
        self._requests = self._queries = self._hits = 0

    def observe(self, stats: PrefixCacheStats) -> None:
        """Take in one update: clear, ignore, add, drop the oldest, in this order (KV-STAT-5)."""
        if not isinstance(stats, PrefixCacheStats):
            raise InvalidArgumentError("stats", stats, "PrefixCacheStats")
        if stats.reset:
            self._clear()
        if not stats.requests:
            return
        self._add((stats.requests, stats.queries_tokens, stats.hits_tokens), 1)
        while self._requests > self._max_requests and len(self._updates) > 1:
            self._add(self._updates[0], -1)

    def _add(self, update: tuple[int, int, int], sign: int) -> None:
        if sign > 0:
            self._updates.append(update)
        else:
            self._updates.popleft()
        self._requests += sign * update[0]
        self._queries += sign * update[1]
        self._hits += sign * update[2]

    @property
    def num_requests(self) -> int:
        """Number of requests in the window."""
        return self._requests

    @property
    def hit_rate(self) -> float:
        """Hit tokens / queried tokens; 0.0 when nothing was queried."""
        return self._hits / self._queries if self._queries else 0.0
