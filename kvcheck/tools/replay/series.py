"""Usage and hits over the steps of a replay, in bounded memory.

A bucket sums up a fixed number of steps. When all buckets are full, neighbours are merged and
every bucket covers twice as many steps, so a run of any length ends with about the same detail.
"""

from __future__ import annotations

from dataclasses import dataclass

MAX_BUCKETS = 2_000


@dataclass(slots=True)
class Bucket:
    """Sums over consecutive steps; `usage_sum / steps` is the mean usage."""

    steps: int = 0
    usage_sum: float = 0.0
    usage_max: float = 0.0
    queried_tokens: int = 0
    hit_tokens: int = 0
    evictions: int = 0
    preemptions: int = 0

    def add(self, other: Bucket) -> None:
        """Take in the steps of another bucket."""
        self.steps += other.steps
        self.usage_sum += other.usage_sum
        self.usage_max = max(self.usage_max, other.usage_max)
        self.queried_tokens += other.queried_tokens
        self.hit_tokens += other.hit_tokens
        self.evictions += other.evictions
        self.preemptions += other.preemptions


class Series:
    """Buckets in step order; all but the last cover `steps_per_bucket` steps."""

    def __init__(self, max_buckets: int = MAX_BUCKETS) -> None:
        self._max_buckets = max_buckets
        self.steps_per_bucket = 1
        self.buckets: list[Bucket] = []

    def add_step(self, step: Bucket) -> None:
        """Append one step."""
        if not self.buckets or self.buckets[-1].steps == self.steps_per_bucket:
            if len(self.buckets) == self._max_buckets:
                self._halve()
            if not self.buckets or self.buckets[-1].steps == self.steps_per_bucket:
                self.buckets.append(Bucket())
        self.buckets[-1].add(step)

    def _halve(self) -> None:
        """Merge bucket 0 with 1, 2 with 3, …"""
        merged = self.buckets[0::2]
        for left, right in zip(merged, self.buckets[1::2], strict=False):
            left.add(right)
        self.buckets = merged
        self.steps_per_bucket *= 2
