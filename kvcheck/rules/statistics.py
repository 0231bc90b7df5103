"""Examples of the chapter on statistics."""

from __future__ import annotations

import math
from typing import Any

from kvcheck.rules.bench import Bench
from kvcheck.rules.example import example
from kvcheck.rules.judging import equal, raises
from kvcheck.rules.managed import Managed
from kvspec.errors import InvalidArgumentError
from kvspec.interface import Feature, HitRateWindow
from kvspec.stats import PrefixCacheStats, ResidencySample


class Clock:
    """A clock that shows what it is told, in nanoseconds."""

    def __init__(self) -> None:
        self.now = 0

    def __call__(self) -> int:
        """The time."""
        return self.now


def counted(bench: Bench) -> Managed:
    """A manager in which tokens 0 … 7 are cached, its counters read."""
    manager = bench.manager(6, log_stats=True)
    manager.free(manager.started("first", range(8)))
    manager.make_prefix_cache_stats()
    return manager


@example("KV-STAT-1")
def every_look_up_is_counted_with_all_its_tokens(bench: Bench) -> None:
    manager = counted(bench)
    request = manager.request("r", range(9))
    for _ in range(2):
        manager.get_computed_blocks(request)
    expected = PrefixCacheStats(False, 2, 18, 16)
    equal(manager.make_prefix_cache_stats(), expected, "two look-ups of 9 tokens")
    bench.need(Feature.SKIP_READING)
    silent = manager.request("s", range(9), skip_reading_cache=True)
    manager.get_computed_blocks(silent)
    equal(manager.make_prefix_cache_stats(), PrefixCacheStats())


@example("KV-STAT-2", "KV-MGR-17")
def look_ups_of_preempted_requests_are_counted_apart(bench: Bench) -> None:
    manager = counted(bench)
    request = manager.request("r", range(9))
    request.num_preemptions = 1
    manager.get_computed_blocks(request)
    expected = PrefixCacheStats(False, 0, 0, 0, 1, 9, 8)
    equal(manager.make_prefix_cache_stats(), expected, "the counts")


@example("KV-STAT-3")
def counts_are_taken_once_and_tell_of_a_reset_that_succeeded(bench: Bench) -> None:
    bench.need(Feature.RESET)
    manager = counted(bench)
    manager.get_computed_blocks(manager.request("r", range(9)))
    equal(manager.reset_prefix_cache(), True, "a reset")
    expected = PrefixCacheStats(True, 1, 9, 8)
    equal(manager.make_prefix_cache_stats(), expected, "a reset keeps the counts")
    equal(manager.make_prefix_cache_stats(), PrefixCacheStats(), "taken again")
    manager.started("user", range(50, 55))
    manager.reset_prefix_cache()
    expected = PrefixCacheStats(False, 1, 5, 0)
    equal(manager.make_prefix_cache_stats(), expected, "a reset that is refused")
    silent = bench.manager(6, log_stats=False)
    silent.get_computed_blocks(silent.request("r", range(9)))
    equal(silent.make_prefix_cache_stats(), None, "without statistics")


def window_of(bench: Bench, *size: Any) -> HitRateWindow:
    """A window over the most recent requests."""
    bench.need(Feature.STATISTICS)
    return bench.subject.make_hit_rate_window(*size)


@example("KV-STAT-4")
def the_hit_rate_of_a_window_is_hits_by_queries(bench: Bench) -> None:
    window = window_of(bench)
    equal((window.num_requests, window.hit_rate), (0, 0.0), "an empty window")
    window.observe(PrefixCacheStats(False, 1, 9, 8, 5, 50, 50))
    window.observe(PrefixCacheStats(False, 1, 31, 0))
    equal((window.num_requests, window.hit_rate), (2, 8 / 40), "8 of 40")
    window.observe(PrefixCacheStats(False, 1000, 0, 0))
    equal(window.num_requests, 1000, "a window of 1000 requests")
    wrong: tuple[Any, ...] = (0, -1, True, 1.0, None, "1")
    for size in wrong:
        with raises(InvalidArgumentError):
            window_of(bench, size)


@example("KV-STAT-5")
def window_moves(bench: Bench) -> None:
    """The oldest updates go while the sum is too large, but never the last one."""
    window, sums = window_of(bench, 10), []
    for requests in (4, 4, 4, 25, 0, 3, 3, 3, 1):
        window.observe(PrefixCacheStats(False, requests, requests, requests))
        sums.append(window.num_requests)
    equal(sums, [4, 8, 8, 25, 25, 3, 6, 9, 10], "sums after each update")
    window.observe(PrefixCacheStats(False, 0, 0, 0, 7, 70, 70))
    equal((window.num_requests, window.hit_rate), (10, 1.0), "preempted look-ups alone")
    window.observe(PrefixCacheStats(True, 2, 10, 1))
    equal((window.num_requests, window.hit_rate), (2, 0.1), "a flagged update")
    window.observe(PrefixCacheStats(reset=True))
    equal((window.num_requests, window.hit_rate), (0, 0.0), "an empty flagged update")


@example("KV-STAT-6")
def lives(bench: Bench) -> None:
    """A life lasts from the allocation to the next one, with the gaps of its last touches."""
    bench.need(Feature.RESIDENCY)
    clock = Clock()
    manager = bench.manager(2, clock=clock, residency_sample_rate=1.0)
    clock.now = 100
    manager.free(manager.started("first", range(4)))
    clock.now = 300
    second = manager.started("second", (9,))
    expected = (ResidencySample(200, 200, ()),)
    equal(tuple(manager.take_residency_samples()), expected, "a life without touch")
    equal(tuple(manager.take_residency_samples()), (), "taken once")
    manager.free(second)
    clock.now = 1000
    manager = bench.manager(3, clock=clock, residency_sample_rate=1.0)
    owner = manager.started("owner", range(4))
    for now in (1010, 1030, 1060, 1100, 1150):
        clock.now = now
        request = manager.started("r", range(5))
        manager.free(request)
    manager.free(owner)
    manager.take_residency_samples()
    clock.now = 1200
    manager.started("taker", range(50, 58))
    found = sorted(manager.take_residency_samples(), key=lambda sample: sample.lifetime_ns)
    both = [ResidencySample(50, 50, ()), ResidencySample(200, 50, (30, 40, 50))]
    equal(found, both, "a block that was touched five times, and another")


@example("KV-STAT-6", "KV-POOL-10", "KV-POOL-11")
def eviction_by_id_ends_a_life_cached_or_not_and_a_reset_drops_all(bench: Bench) -> None:
    bench.need(Feature.RESIDENCY, Feature.EVICTION_BY_ID, Feature.RESET)
    clock = Clock()
    manager = bench.manager(6, clock=clock, residency_sample_rate=1.0)
    early = manager.started("early", range(4))
    clock.now = 5
    late = manager.started("late", (9,))
    clock.now = 7
    blocks = [manager.get_blocks(request).to_lists()[0][0] for request in (late, early)]
    manager.evict_blocks([blocks[0], 0, blocks[1]])
    expected = (ResidencySample(2, 2, ()), ResidencySample(7, 7, ()))
    equal(tuple(manager.take_residency_samples()), expected, "lives in the order of the call")
    manager.evict_blocks(blocks)
    equal(tuple(manager.take_residency_samples()), (), "a second eviction")
    for request in (early, late):
        manager.free(request)
    manager.free(manager.started("next", range(30, 46)))
    equal(manager.reset_prefix_cache(), True, "a reset")
    equal(tuple(manager.take_residency_samples()), (), "samples after it")
    silent = bench.manager(2, residency_sample_rate=1.0, enable_caching=False)
    for name in ("one", "two"):
        silent.free(silent.started(name, (9,)))
    equal(tuple(silent.take_residency_samples()), (), "with caching off")


@example("KV-STAT-7")
def the_stated_share_of_allocations_is_sampled_in_double_arithmetic(bench: Bench) -> None:
    bench.need(Feature.RESIDENCY, Feature.EVICTION_BY_ID)
    for rate, count in ((0.25, 20), (1.0, 8), (0.0, 8), (0.29, 104), (1 / 3, 20)):
        manager, sampled = bench.manager(2, residency_sample_rate=rate), []
        for number in range(count):
            request = manager.started("r", (9,))
            manager.evict_blocks(manager.get_blocks(request).to_lists()[0])
            if manager.take_residency_samples():
                sampled.append(number)
            manager.free(request)
        expected = [n for n in range(count) if math.floor((n + 1) * rate) > math.floor(n * rate)]
        equal(sampled, expected, f"sampled at rate {rate}")
    manager = bench.manager(6, residency_sample_rate=0.25)
    request = manager.started("r", range(13))
    blocks = manager.get_blocks(request).to_lists()[0]
    samples = []
    for block in blocks:
        manager.evict_blocks([block])
        samples.append(len(manager.take_residency_samples()))
    equal(samples, [0, 0, 0, 1], "one call that takes four blocks")
