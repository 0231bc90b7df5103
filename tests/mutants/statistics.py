"""Mutants of statistics, of the hit-rate window and of residency (KV-STAT-*)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from kvref.residency import MAX_TOUCHES, ResidencyLog
from kvref.stats import LookupCounter, ReferenceHitRateWindow
from kvspec.stats import PrefixCacheStats, ResidencySample
from tests.mutants.make import classes_in


class PreemptedCountAsOthers(LookupCounter):
    """KV-STAT-2: look-ups of preempted requests are not counted apart."""

    def record(self, num_tokens: int, hit_tokens: int, preempted: bool) -> None:
        super().record(num_tokens, hit_tokens, False)


class PreemptedAreNotCounted(LookupCounter):
    """KV-STAT-2: look-ups of preempted requests are not counted at all."""

    def record(self, num_tokens: int, hit_tokens: int, preempted: bool) -> None:
        if not preempted:
            super().record(num_tokens, hit_tokens, preempted)


class LastTokenIsNotQueried(LookupCounter):
    """KV-STAT-1: only the tokens that could hit are counted as queried."""

    def record(self, num_tokens: int, hit_tokens: int, preempted: bool) -> None:
        super().record(num_tokens - 1, hit_tokens, preempted)


class OnlyHitsAreRequests(LookupCounter):
    """KV-STAT-1: a look-up without a hit counts no request."""

    def record(self, num_tokens: int, hit_tokens: int, preempted: bool) -> None:
        if hit_tokens:
            super().record(num_tokens, hit_tokens, preempted)


class StatisticsAreTakenTwice(LookupCounter):
    """KV-STAT-3: taking the counts does not clear them."""

    def take(self) -> PrefixCacheStats:
        return self.stats


class ResetIsNotTold(LookupCounter):
    """KV-STAT-3: the next statistics do not say that the cache was reset."""

    def was_reset(self) -> None:
        pass


class ResetClearsTheCounts(LookupCounter):
    """KV-STAT-3: a reset drops the counts since the last call."""

    def was_reset(self) -> None:
        self.stats = PrefixCacheStats(reset=True)


class WindowForgetsTheReset(ReferenceHitRateWindow):
    """KV-STAT-5: an update with the reset flag does not clear the window."""

    def observe(self, stats: PrefixCacheStats) -> None:
        super().observe(replace(stats, reset=False))


class WindowResetsWithoutAdding(ReferenceHitRateWindow):
    """KV-STAT-5: what came with the reset flag is not added."""

    def observe(self, stats: PrefixCacheStats) -> None:
        super().observe(stats)
        if stats.reset:
            self.updates = []


class WindowCountsUpdates(ReferenceHitRateWindow):
    """KV-STAT-4: the window holds so many updates, however many requests are in one."""

    @property
    def num_requests(self) -> int:
        return len(self.updates)


class WindowMayBecomeEmpty(ReferenceHitRateWindow):
    """KV-STAT-5: one update with too many requests is dropped, too."""

    def observe(self, stats: PrefixCacheStats) -> None:
        super().observe(stats)
        if self.num_requests > self.max_requests:
            self.updates = []


class WindowAveragesRates(ReferenceHitRateWindow):
    """KV-STAT-4: the mean of the updates' rates, not weighted by their tokens."""

    @property
    def hit_rate(self) -> float:
        rates = [u.hits_tokens / u.queries_tokens for u in self.updates if u.queries_tokens]
        return sum(rates) / len(rates) if rates else 0.0


class WindowCountsPreempted(ReferenceHitRateWindow):
    """KV-STAT-4: tokens of preempted requests are in the rate."""

    @property
    def hit_rate(self) -> float:
        queries = sum(u.queries_tokens + u.preempted_queries_tokens for u in self.updates)
        hits = sum(u.hits_tokens + u.preempted_hits_tokens for u in self.updates)
        return hits / queries if queries else 0.0


class SamplesTooEarly(ResidencyLog):
    """KV-STAT-7: at rate 1/4 the allocations 2, 6, 10 … are sampled, not 3, 7, 11 …"""

    def __init__(self, rate: float, clock: Callable[[], int]) -> None:
        super().__init__(rate, clock)
        self.num_allocations = 1


class SamplesEverything(ResidencyLog):
    """KV-STAT-7: every allocation is sampled, whatever the rate."""

    def __init__(self, rate: float, clock: Callable[[], int]) -> None:
        super().__init__(1.0, clock)


class FirstTouchesCount(ResidencyLog):
    """KV-STAT-6: of many touches the first four are remembered, not the last."""

    def touched(self, block: int) -> None:
        if block in self.lives and len(self.lives[block].touches_ns) < MAX_TOUCHES:
            super().touched(block)


class BirthIsATouch(ResidencyLog):
    """KV-STAT-6: the gap from birth to the first touch is reported, too."""

    def ended(self, block: int) -> None:
        life = self.lives.get(block)
        if life is not None and len(life.touches_ns) < MAX_TOUCHES:
            life.touches_ns.insert(0, life.birth_ns)
        super().ended(block)


class IdleSinceBirth(ResidencyLog):
    """KV-STAT-6: the idle time counts from the beginning of the life."""

    def ended(self, block: int) -> None:
        known = len(self.samples)
        super().ended(block)
        self.samples[known:] = [
            replace(sample, idle_ns=sample.lifetime_ns) for sample in self.samples[known:]
        ]


class LivesOutlastAReset(ResidencyLog):
    """KV-STAT-6: a reset ends no life."""

    def reset(self) -> None:
        self.samples = []


class SamplesAreTakenTwice(ResidencyLog):
    """KV-STAT-6: taking the samples does not clear them."""

    def take(self) -> tuple[ResidencySample, ...]:
        return tuple(self.samples)


MUTANTS = classes_in(__name__)
