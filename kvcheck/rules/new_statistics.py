"""KV-STAT-1 … KV-STAT-5: look-up counters and the hit-rate window."""

from __future__ import annotations

from kvcheck.play.verdicts import Level
from kvcheck.rules.bench import Bench
from kvcheck.rules.example import cases, example
from kvcheck.rules.judging import equal, holds, raises
from kvcheck.rules.managed import Managed
from kvspec.errors import InvalidArgumentError
from kvspec.stats import PrefixCacheStats

# Look-up counters.


def with_two_blocks_cached(bench: Bench) -> Managed:
    """A manager that caches tokens 0 … 7, its counters read."""
    manager = bench.manager(6, log_stats=True)
    first = manager.request("first", range(8))
    manager.admit(first)
    manager.free(first)
    manager.make_prefix_cache_stats()
    return manager


@example("KV-STAT-1", level=Level.IDENTITY)
def every_look_up_is_counted(bench: Bench) -> None:
    """9 tokens that hit 8: 1, 9, 8; looked up again: 2, 18, 16."""
    manager = with_two_blocks_cached(bench)
    request = manager.request("r", range(9))
    manager.hit(request)
    manager.hit(request)
    equal(manager.make_prefix_cache_stats(), PrefixCacheStats(False, 2, 18, 16))
    manager.hit(request)
    equal(manager.make_prefix_cache_stats(), PrefixCacheStats(False, 1, 9, 8))


@example("KV-STAT-2", "KV-MGR-17", level=Level.IDENTITY)
def preempted_requests_count_apart(bench: Bench) -> None:
    """The same request after one preemption changes the preempted fields only."""
    manager = with_two_blocks_cached(bench)
    request = manager.request("r", range(9))
    manager.admit(request)
    manager.preempt(request)
    manager.make_prefix_cache_stats()
    manager.hit(request)
    expected = PrefixCacheStats(
        preempted_requests=1, preempted_queries_tokens=9, preempted_hits_tokens=8
    )
    equal(manager.make_prefix_cache_stats(), expected)


@example("KV-STAT-3", "KV-POOL-11", level=Level.IDENTITY)
def the_record_says_whether_the_cache_was_reset(bench: Bench) -> None:
    """Counts before the reset stay in the record; the next one is all zeros and False."""
    manager = with_two_blocks_cached(bench)
    manager.hit(manager.request("r", range(9)))
    holds(manager.reset_prefix_cache() is True)
    equal(manager.make_prefix_cache_stats(), PrefixCacheStats(True, 1, 9, 8))
    equal(manager.make_prefix_cache_stats(), PrefixCacheStats())


@example("KV-STAT-3")
def a_refused_reset_sets_no_flag(bench: Bench) -> None:
    """With a block in use the flag stays False."""
    manager = with_two_blocks_cached(bench)
    manager.admit(manager.request("r", [1]))
    holds(manager.reset_prefix_cache() is False)
    equal(manager.make_prefix_cache_stats(), PrefixCacheStats(False, 1, 1, 0))


@example("KV-STAT-3", level=Level.IDENTITY)
def with_statistics_off_there_is_no_record(bench: Bench) -> None:
    """None, also after look-ups."""
    manager = bench.manager(6, log_stats=False)
    manager.hit(manager.request("r", range(9)))
    equal(manager.make_prefix_cache_stats(), None)


# The window.


def update(requests: int, queries: int = 0, hits: int = 0, reset: bool = False) -> PrefixCacheStats:
    """One update of a window."""
    return PrefixCacheStats(reset, requests, queries, hits)


@example("KV-STAT-4")
def the_hit_rate_is_hits_by_queries(bench: Bench) -> None:
    """(1, 9, 8) and (1, 31, 0): 8 / 40 = 0.2; an empty window has 0.0."""
    window = bench.subject.make_hit_rate_window()
    equal((window.hit_rate, window.num_requests), (0.0, 0))
    window.observe(update(1, 9, 8))
    window.observe(update(1, 31, 0))
    holds(window.hit_rate == 8 / 40 == 0.2)
    equal(window.num_requests, 2)


@example("KV-STAT-4", "KV-STAT-5")
def preempted_look_ups_are_left_out(bench: Bench) -> None:
    """They change neither rate nor requests, and an update of them alone is ignored."""
    window = bench.subject.make_hit_rate_window()
    window.observe(PrefixCacheStats(False, 1, 10, 5, 7, 70, 70))
    window.observe(PrefixCacheStats(False, 0, 0, 0, 7, 70, 70))
    equal((window.hit_rate, window.num_requests), (0.5, 1))


@example("KV-STAT-4")
def the_window_covers_1000_requests_unless_told_otherwise(bench: Bench) -> None:
    """Two updates of 500 stay; one request more drops the first."""
    window = bench.subject.make_hit_rate_window()
    for requests in (500, 500):
        window.observe(update(requests))
    equal(window.num_requests, 1000)
    window.observe(update(1))
    equal(window.num_requests, 501)


@cases(0, -1, True, 1.0, None, "1")
@example("KV-STAT-4", level=Level.SAFETY)
def a_window_covers_at_least_one_request(bench: Bench, bad: int) -> None:
    """What is no int of at least 1 is refused."""
    with raises(InvalidArgumentError):
        bench.subject.make_hit_rate_window(bad)


@example("KV-STAT-5")
def the_oldest_updates_go_while_the_sum_is_too_large(bench: Bench) -> None:
    """N = 10: 4, 4, 4 leaves 8; 25 stays alone; 0 changes nothing; a reset flag empties it."""
    window = bench.subject.make_hit_rate_window(10)
    sums = []
    for requests in (4, 4, 4, 25, 0):
        window.observe(update(requests, queries=requests, hits=0))
        sums.append(window.num_requests)
    equal(sums, [4, 8, 8, 25, 25])
    window.observe(update(0, reset=True))
    equal((window.num_requests, window.hit_rate), (0, 0.0))


@example("KV-STAT-5")
def several_small_updates_follow_a_large_one(bench: Bench) -> None:
    """N = 10: 10, then 1: the large one goes, since 11 exceeds 10; then 1s gather."""
    window = bench.subject.make_hit_rate_window(10)
    sums = []
    for requests in (3, 3, 3, 10, 1, 1):
        window.observe(update(requests))
        sums.append(window.num_requests)
    equal(sums, [3, 6, 9, 10, 1, 2])


@example("KV-STAT-5")
def a_flagged_update_clears_first_and_then_counts(bench: Bench) -> None:
    """The update that carries the flag is the only one left."""
    window = bench.subject.make_hit_rate_window(10)
    window.observe(update(4, 10, 10))
    window.observe(update(2, 10, 1, reset=True))
    equal((window.num_requests, window.hit_rate), (2, 0.1))
