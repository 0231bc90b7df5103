"""KV-STAT-1 … KV-STAT-5: look-up counters and the hit-rate window."""

from __future__ import annotations

import pytest

from kvspec.errors import InvalidArgumentError
from kvspec.interface import Implementation, KVCacheManager
from kvspec.stats import PrefixCacheStats
from tests.rules.builders import MakeManager, MakeRequest, admit, hit_of, preempt

# Look-up counters.


def with_two_blocks_cached(make_manager: MakeManager, make_request: MakeRequest) -> KVCacheManager:
    """A manager that caches tokens 0 … 7, its counters read."""
    manager = make_manager(6, 4, log_stats=True)
    first = make_request(manager, "first", range(8))
    admit(manager, first)
    manager.free(first)
    manager.make_prefix_cache_stats()
    return manager


@pytest.mark.rule("KV-STAT-1")
def test_every_look_up_is_counted(make_manager: MakeManager, make_request: MakeRequest) -> None:
    """9 tokens that hit 8: 1, 9, 8; looked up again: 2, 18, 16."""
    manager = with_two_blocks_cached(make_manager, make_request)
    request = make_request(manager, "r", range(9))
    hit_of(manager, request)
    hit_of(manager, request)
    assert manager.make_prefix_cache_stats() == PrefixCacheStats(False, 2, 18, 16)
    hit_of(manager, request)
    assert manager.make_prefix_cache_stats() == PrefixCacheStats(False, 1, 9, 8)


@pytest.mark.rule("KV-STAT-2", "KV-MGR-17")
def test_preempted_requests_count_apart(
    make_manager: MakeManager, make_request: MakeRequest
) -> None:
    """The same request after one preemption changes the preempted fields only."""
    manager = with_two_blocks_cached(make_manager, make_request)
    request = make_request(manager, "r", range(9))
    admit(manager, request)
    preempt(manager, request)
    manager.make_prefix_cache_stats()
    hit_of(manager, request)
    expected = PrefixCacheStats(
        preempted_requests=1, preempted_queries_tokens=9, preempted_hits_tokens=8
    )
    assert manager.make_prefix_cache_stats() == expected


@pytest.mark.rule("KV-STAT-3", "KV-POOL-11")
def test_the_record_says_whether_the_cache_was_reset(
    make_manager: MakeManager, make_request: MakeRequest
) -> None:
    """Counts before the reset stay in the record; the next one is all zeros and False."""
    manager = with_two_blocks_cached(make_manager, make_request)
    hit_of(manager, make_request(manager, "r", range(9)))
    assert manager.reset_prefix_cache() is True
    assert manager.make_prefix_cache_stats() == PrefixCacheStats(True, 1, 9, 8)
    assert manager.make_prefix_cache_stats() == PrefixCacheStats()


@pytest.mark.rule("KV-STAT-3")
def test_a_refused_reset_sets_no_flag(make_manager: MakeManager, make_request: MakeRequest) -> None:
    """With a block in use the flag stays False."""
    manager = with_two_blocks_cached(make_manager, make_request)
    admit(manager, make_request(manager, "r", [1]))
    assert manager.reset_prefix_cache() is False
    assert manager.make_prefix_cache_stats() == PrefixCacheStats(False, 1, 1, 0)


@pytest.mark.rule("KV-STAT-3")
def test_with_statistics_off_there_is_no_record(
    make_manager: MakeManager, make_request: MakeRequest
) -> None:
    """None, also after look-ups."""
    manager = make_manager(6, 4, log_stats=False)
    hit_of(manager, make_request(manager, "r", range(9)))
    assert manager.make_prefix_cache_stats() is None


# The window.


def update(requests: int, queries: int = 0, hits: int = 0, reset: bool = False) -> PrefixCacheStats:
    """One update of a window."""
    return PrefixCacheStats(reset, requests, queries, hits)


@pytest.mark.rule("KV-STAT-4")
def test_the_hit_rate_is_hits_by_queries(implementation: Implementation) -> None:
    """(1, 9, 8) and (1, 31, 0): 8 / 40 = 0.2; an empty window has 0.0."""
    window = implementation.make_hit_rate_window()
    assert (window.hit_rate, window.num_requests) == (0.0, 0)
    window.observe(update(1, 9, 8))
    window.observe(update(1, 31, 0))
    assert window.hit_rate == 8 / 40 == 0.2
    assert window.num_requests == 2


@pytest.mark.rule("KV-STAT-4", "KV-STAT-5")
def test_preempted_look_ups_are_left_out(implementation: Implementation) -> None:
    """They change neither rate nor requests, and an update of them alone is ignored."""
    window = implementation.make_hit_rate_window()
    window.observe(PrefixCacheStats(False, 1, 10, 5, 7, 70, 70))
    window.observe(PrefixCacheStats(False, 0, 0, 0, 7, 70, 70))
    assert (window.hit_rate, window.num_requests) == (0.5, 1)


@pytest.mark.rule("KV-STAT-4")
def test_the_window_covers_1000_requests_unless_told_otherwise(
    implementation: Implementation,
) -> None:
    """Two updates of 500 stay; one request more drops the first."""
    window = implementation.make_hit_rate_window()
    for requests in (500, 500):
        window.observe(update(requests))
    assert window.num_requests == 1000
    window.observe(update(1))
    assert window.num_requests == 501


@pytest.mark.rule("KV-STAT-4")
@pytest.mark.parametrize("bad", [0, -1, True, 1.0, None, "1"])
def test_a_window_covers_at_least_one_request(implementation: Implementation, bad: int) -> None:
    """What is no int of at least 1 is refused."""
    with pytest.raises(InvalidArgumentError):
        implementation.make_hit_rate_window(bad)


@pytest.mark.rule("KV-STAT-5")
def test_the_oldest_updates_go_while_the_sum_is_too_large(implementation: Implementation) -> None:
    """N = 10: 4, 4, 4 leaves 8; 25 stays alone; 0 changes nothing; a reset flag empties it."""
    window = implementation.make_hit_rate_window(10)
    sums = []
    for requests in (4, 4, 4, 25, 0):
        window.observe(update(requests, queries=requests, hits=0))
        sums.append(window.num_requests)
    assert sums == [4, 8, 8, 25, 25]
    window.observe(update(0, reset=True))
    assert (window.num_requests, window.hit_rate) == (0, 0.0)


@pytest.mark.rule("KV-STAT-5")
def test_several_small_updates_follow_a_large_one(implementation: Implementation) -> None:
    """N = 10: 10, then 1: the large one goes, since 11 exceeds 10; then 1s gather."""
    window = implementation.make_hit_rate_window(10)
    sums = []
    for requests in (3, 3, 3, 10, 1, 1):
        window.observe(update(requests))
        sums.append(window.num_requests)
    assert sums == [3, 6, 9, 10, 1, 2]


@pytest.mark.rule("KV-STAT-5")
def test_a_flagged_update_clears_first_and_then_counts(implementation: Implementation) -> None:
    """The update that carries the flag is the only one left."""
    window = implementation.make_hit_rate_window(10)
    window.observe(update(4, 10, 10))
    window.observe(update(2, 10, 1, reset=True))
    assert (window.num_requests, window.hit_rate) == (2, 0.1)
