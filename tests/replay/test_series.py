"""The time series keeps its sums, whatever it merges."""

from __future__ import annotations

import math

import pytest

from kvcheck.tools.replay.plot import cumulative_hit_rate, windowed_hit_rate
from kvcheck.tools.replay.series import Bucket, Series


def series_of(steps: int, max_buckets: int) -> Series:
    series = Series(max_buckets)
    for step in range(steps):
        series.add_step(
            Bucket(1, step / 1000, step / 1000, 10, step % 3, evictions=2, preemptions=step % 2)
        )
    return series


@pytest.mark.parametrize("max_buckets", [1, 2, 3, 8, 1_000])
@pytest.mark.parametrize("steps", [0, 1, 7, 8, 9, 100, 999])
def test_no_step_is_lost_and_memory_is_bounded(steps: int, max_buckets: int) -> None:
    series = series_of(steps, max_buckets)
    buckets = series.buckets
    assert len(buckets) <= max_buckets
    assert all(bucket.steps == series.steps_per_bucket for bucket in buckets[:-1])
    assert sum(bucket.steps for bucket in buckets) == steps
    assert sum(bucket.queried_tokens for bucket in buckets) == 10 * steps
    assert sum(bucket.hit_tokens for bucket in buckets) == sum(step % 3 for step in range(steps))
    assert sum(bucket.evictions for bucket in buckets) == 2 * steps
    assert sum(bucket.preemptions for bucket in buckets) == steps // 2
    total = sum(step / 1000 for step in range(steps))
    assert sum(bucket.usage_sum for bucket in buckets) == pytest.approx(total)
    assert max((bucket.usage_max for bucket in buckets), default=0) == max(0, steps - 1) / 1000


def test_a_full_series_covers_twice_as_many_steps_per_bucket() -> None:
    assert [series_of(steps, 4).steps_per_bucket for steps in (4, 5, 8, 9, 17)] == [1, 2, 2, 4, 8]


def test_hit_rates_leave_out_times_without_look_ups() -> None:
    series = Series()
    for queried, hit in ((0, 0), (10, 5), (0, 0), (30, 15), (10, 10)):
        series.add_step(Bucket(1, queried_tokens=queried, hit_tokens=hit))
    cumulative = cumulative_hit_rate(series)
    assert math.isnan(cumulative[0])
    assert cumulative[1:] == [0.5, 0.5, 0.5, 0.6]
    windowed, steps = windowed_hit_rate(series)
    assert steps == 1
    assert [rate for rate in windowed if rate == rate] == [0.5, 0.5, 1.0]


def test_the_window_is_a_twentieth_of_the_run() -> None:
    series = series_of(500, 1_000)
    windowed, steps = windowed_hit_rate(series)
    assert steps == 25
    last = [step % 3 for step in range(475, 500)]
    assert windowed[-1] == sum(last) / 250
