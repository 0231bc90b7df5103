"""KV-STAT-1 … KV-STAT-5: look-up counters and the hit-rate window."""

from __future__ import annotations

from typing import Any

from kvcheck.play.verdicts import Level
from kvcheck.rules.bench import Bench
from kvcheck.rules.example import cases, example
from kvcheck.rules.judging import equal, holds, raises
from kvspec.errors import ConfigError, InvalidArgumentError
from kvspec.interface import Feature, HitRateWindow
from kvspec.stats import PrefixCacheStats

# Look-up counters.


def window_of(bench: Bench, *size: Any) -> HitRateWindow:
    """A window over the most recent requests."""
    bench.need(Feature.STATISTICS)
    return bench.subject.make_hit_rate_window(*size)


def update(requests: int, queries: int = 0, hits: int = 0, reset: bool = False) -> PrefixCacheStats:
    """One update of a window."""
    return PrefixCacheStats(reset, requests, queries, hits)


@example("KV-STAT-4")
def the_hit_rate_of_a_window_is_hits_by_queries(bench: Bench) -> None:
    """(1, 9, 8) and (1, 31, 0): 8 / 40 = 0.2; an empty window has 0.0."""
    window = window_of(bench)
    equal((window.hit_rate, window.num_requests), (0.0, 0))
    window.observe(update(1, 9, 8))
    window.observe(update(1, 31, 0))
    holds(window.hit_rate == 8 / 40 == 0.2)
    equal(window.num_requests, 2)


@example("KV-STAT-4", "KV-STAT-5")
def preempted_look_ups_are_left_out(bench: Bench) -> None:
    """They change neither rate nor requests, and an update of them alone is ignored."""
    window = window_of(bench)
    window.observe(PrefixCacheStats(False, 1, 10, 5, 7, 70, 70))
    window.observe(PrefixCacheStats(False, 0, 0, 0, 7, 70, 70))
    equal((window.hit_rate, window.num_requests), (0.5, 1))


@example("KV-STAT-4")
def the_window_covers_1000_requests_unless_told_otherwise(bench: Bench) -> None:
    """Two updates of 500 stay; one request more drops the first."""
    window = window_of(bench)
    for requests in (500, 500):
        window.observe(update(requests))
    equal(window.num_requests, 1000)
    window.observe(update(1))
    equal(window.num_requests, 501)


@cases(0, -1, True, 1.0, None, "1")
@example("KV-STAT-4", "KV-ERR-5", level=Level.SAFETY)
def a_window_covers_at_least_one_request(bench: Bench, bad: object) -> None:
    """What asks for it is a call; nothing that was configured is wrong."""
    with raises(InvalidArgumentError, field="max_requests") as caught:
        window_of(bench, bad)
    equal(caught.value.value, bad)
    holds(not isinstance(caught.value, ConfigError))


@cases(
    (10, (4, 4, 4, 25, 0), [4, 8, 8, 25, 25]),
    (10, (3, 3, 3, 10, 1, 1), [3, 6, 9, 10, 1, 2]),
    (10, (25, 0, 3, 3, 3, 1), [25, 25, 3, 6, 9, 10]),
    (1, (1, 1), [1, 1]),
)
@example("KV-STAT-5", "KV-STAT-4")
def the_oldest_updates_go_while_the_sum_is_too_large(
    bench: Bench, size: int, updates: tuple[int, ...], expected: list[int]
) -> None:
    """Never the last one: 25 stays alone in a window of 10, and 0 changes nothing."""
    window = window_of(bench, size)
    sums = []
    for number, requests in enumerate(updates):
        window.observe(update(requests, queries=requests, hits=number % 2 * requests))
        sums.append(window.num_requests)
        if requests >= size:
            equal(window.hit_rate, float(number % 2), "of the only update")
    equal(sums, expected)


@example("KV-STAT-5")
def a_flagged_update_clears_first_and_then_counts(bench: Bench) -> None:
    window = window_of(bench, 10)
    window.observe(update(4, 10, 10))
    window.observe(update(2, 10, 1, reset=True))
    equal((window.num_requests, window.hit_rate), (2, 0.1))
    window.observe(update(0, reset=True))
    equal((window.num_requests, window.hit_rate), (0, 0.0))
