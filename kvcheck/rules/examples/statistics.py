"""Examples of the chapter on statistics."""

from __future__ import annotations

import math
from typing import Any

from kvcheck.rules.examples.bench import Bench
from kvcheck.rules.examples.example import example
from kvspec.errors import InvalidArgumentError
from kvspec.interface import Feature, HitRateWindow, KVCacheManager
from kvspec.stats import PrefixCacheStats, ResidencySample


class Clock:
    """A clock that shows what it is told, in nanoseconds."""

    def __init__(self) -> None:
        self.now = 0

    def __call__(self) -> int:
        """The time."""
        return self.now


def counted(bench: Bench) -> KVCacheManager:
    """A manager in which tokens 0 … 7 are cached, its counters read."""
    manager = bench.manager(6, log_stats=True)
    manager.free(bench.started(manager, "first", range(8)))
    manager.make_prefix_cache_stats()
    return manager


@example("KV-STAT-1")
def look_ups(bench: Bench) -> None:
    """Every look-up is counted with all its tokens."""
    manager = counted(bench)
    request = bench.request(manager, "r", range(9))
    for _ in range(2):
        manager.get_computed_blocks(request)
    expected = PrefixCacheStats(False, 2, 18, 16)
    bench.equal("two look-ups of 9 tokens", expected, manager.make_prefix_cache_stats())
    bench.need(Feature.SKIP_READING)
    silent = bench.request(manager, "s", range(9), skip_reading_cache=True)
    manager.get_computed_blocks(silent)
    bench.equal("a request that skips reading", PrefixCacheStats(),
                manager.make_prefix_cache_stats())  # fmt: skip


@example("KV-STAT-2", "KV-MGR-17")
def preempted(bench: Bench) -> None:
    """Look-ups of preempted requests are counted apart."""
    manager = counted(bench)
    request = bench.request(manager, "r", range(9))
    request.num_preemptions = 1
    manager.get_computed_blocks(request)
    expected = PrefixCacheStats(False, 0, 0, 0, 1, 9, 8)
    bench.equal("the counts", expected, manager.make_prefix_cache_stats())


@example("KV-STAT-3")
def counters_are_taken(bench: Bench) -> None:
    """Counts are taken once, and tell of a reset that succeeded."""
    bench.need(Feature.RESET)
    manager = counted(bench)
    manager.get_computed_blocks(bench.request(manager, "r", range(9)))
    bench.equal("a reset", True, manager.reset_prefix_cache())
    expected = PrefixCacheStats(True, 1, 9, 8)
    bench.equal("a reset keeps the counts", expected, manager.make_prefix_cache_stats())
    bench.equal("taken again", PrefixCacheStats(), manager.make_prefix_cache_stats())
    bench.started(manager, "user", range(50, 55))
    manager.reset_prefix_cache()
    expected = PrefixCacheStats(False, 1, 5, 0)
    bench.equal("a reset that is refused", expected, manager.make_prefix_cache_stats())
    silent = bench.manager(6, log_stats=False)
    silent.get_computed_blocks(bench.request(silent, "r", range(9)))
    bench.equal("without statistics", None, silent.make_prefix_cache_stats())


def window_of(bench: Bench, *size: Any) -> HitRateWindow:
    """A window over the most recent requests."""
    bench.need(Feature.STATISTICS)
    return bench.subject.make_hit_rate_window(*size)


@example("KV-STAT-4")
def hit_rate(bench: Bench) -> None:
    """The hit rate of a window is hits by queries."""
    window = window_of(bench)
    bench.equal("an empty window", (0, 0.0), (window.num_requests, window.hit_rate))
    window.observe(PrefixCacheStats(False, 1, 9, 8, 5, 50, 50))
    window.observe(PrefixCacheStats(False, 1, 31, 0))
    bench.equal("8 of 40", (2, 8 / 40), (window.num_requests, window.hit_rate))
    window.observe(PrefixCacheStats(False, 1000, 0, 0))
    bench.equal("a window of 1000 requests", 1000, window.num_requests)
    wrong: tuple[Any, ...] = (0, -1, True, 1.0, None, "1")
    for size in wrong:
        bench.raises(f"a window of {size!r}", InvalidArgumentError, window_of, bench, size)


@example("KV-STAT-5")
def window_moves(bench: Bench) -> None:
    """The oldest updates go while the sum is too large, but never the last one."""
    window, sums = window_of(bench, 10), []
    for requests in (4, 4, 4, 25, 0, 3, 3, 3, 1):
        window.observe(PrefixCacheStats(False, requests, requests, requests))
        sums.append(window.num_requests)
    bench.equal("sums after each update", [4, 8, 8, 25, 25, 3, 6, 9, 10], sums)
    window.observe(PrefixCacheStats(False, 0, 0, 0, 7, 70, 70))
    bench.equal("preempted look-ups alone", (10, 1.0), (window.num_requests, window.hit_rate))
    window.observe(PrefixCacheStats(True, 2, 10, 1))
    bench.equal("a flagged update", (2, 0.1), (window.num_requests, window.hit_rate))
    window.observe(PrefixCacheStats(reset=True))
    bench.equal("an empty flagged update", (0, 0.0), (window.num_requests, window.hit_rate))


@example("KV-STAT-6")
def lives(bench: Bench) -> None:
    """A life lasts from the allocation to the next one, with the gaps of its last touches."""
    bench.need(Feature.RESIDENCY)
    clock = Clock()
    manager = bench.manager(2, clock=clock, residency_sample_rate=1.0)
    clock.now = 100
    manager.free(bench.started(manager, "first", range(4)))
    clock.now = 300
    second = bench.started(manager, "second", (9,))
    expected = (ResidencySample(200, 200, ()),)
    bench.equal("a life without touch", expected, tuple(manager.take_residency_samples()))
    bench.equal("taken once", (), tuple(manager.take_residency_samples()))
    manager.free(second)
    clock.now = 1000
    manager = bench.manager(3, clock=clock, residency_sample_rate=1.0)
    owner = bench.started(manager, "owner", range(4))
    for now in (1010, 1030, 1060, 1100, 1150):
        clock.now = now
        request = bench.started(manager, "r", range(5))
        manager.free(request)
    manager.free(owner)
    manager.take_residency_samples()
    clock.now = 1200
    bench.started(manager, "taker", range(50, 58))
    found = sorted(manager.take_residency_samples(), key=lambda sample: sample.lifetime_ns)
    both = [ResidencySample(50, 50, ()), ResidencySample(200, 50, (30, 40, 50))]
    bench.equal("a block that was touched five times, and another", both, found)


@example("KV-STAT-6", "KV-POOL-10", "KV-POOL-11")
def ends_of_lives(bench: Bench) -> None:
    """Eviction by id ends a life, cached or not, and a reset drops all."""
    bench.need(Feature.RESIDENCY, Feature.EVICTION_BY_ID, Feature.RESET)
    clock = Clock()
    manager = bench.manager(6, clock=clock, residency_sample_rate=1.0)
    early = bench.started(manager, "early", range(4))
    clock.now = 5
    late = bench.started(manager, "late", (9,))
    clock.now = 7
    blocks = [manager.get_blocks(request).to_lists()[0][0] for request in (late, early)]
    manager.evict_blocks([blocks[0], 0, blocks[1]])
    expected = (ResidencySample(2, 2, ()), ResidencySample(7, 7, ()))
    bench.equal("lives in the order of the call", expected, tuple(manager.take_residency_samples()))
    manager.evict_blocks(blocks)
    bench.equal("a second eviction", (), tuple(manager.take_residency_samples()))
    for request in (early, late):
        manager.free(request)
    manager.free(bench.started(manager, "next", range(30, 46)))
    bench.equal("a reset", True, manager.reset_prefix_cache())
    bench.equal("samples after it", (), tuple(manager.take_residency_samples()))
    silent = bench.manager(2, residency_sample_rate=1.0, enable_caching=False)
    for name in ("one", "two"):
        silent.free(bench.started(silent, name, (9,)))
    bench.equal("with caching off", (), tuple(silent.take_residency_samples()))


@example("KV-STAT-7")
def sampling(bench: Bench) -> None:
    """The stated share of allocations is sampled, in double arithmetic."""
    bench.need(Feature.RESIDENCY, Feature.EVICTION_BY_ID)
    for rate, count in ((0.25, 20), (1.0, 8), (0.0, 8), (0.29, 104), (1 / 3, 20)):
        manager, sampled = bench.manager(2, residency_sample_rate=rate), []
        for number in range(count):
            request = bench.started(manager, "r", (9,))
            manager.evict_blocks(manager.get_blocks(request).to_lists()[0])
            if manager.take_residency_samples():
                sampled.append(number)
            manager.free(request)
        expected = [n for n in range(count) if math.floor((n + 1) * rate) > math.floor(n * rate)]
        bench.equal(f"sampled at rate {rate}", expected, sampled)
    manager = bench.manager(6, residency_sample_rate=0.25)
    request = bench.started(manager, "r", range(13))
    blocks = manager.get_blocks(request).to_lists()[0]
    samples = []
    for block in blocks:
        manager.evict_blocks([block])
        samples.append(len(manager.take_residency_samples()))
    bench.equal("one call that takes four blocks", [0, 0, 0, 1], samples)


STATISTICS = (
    look_ups, preempted, counters_are_taken, hit_rate, window_moves, lives, ends_of_lives, sampling,
)  # fmt: skip
