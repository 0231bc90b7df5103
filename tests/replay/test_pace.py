"""Figures of a replay on its way, by a clock of the test."""

from __future__ import annotations

import pytest

from kvcheck.tools.replay.pace import Figures, Pace
from kvcheck.tools.replay.result import Counts, Moment


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def seen(rates: list[tuple[float, int, float]], share: float | None = None) -> Figures:
    """Return the figures after stretches of (seconds, requests, hit rate), 10 tokens each."""
    clock, counts = Clock(), Counts()
    pace = Pace(clock)
    found = None
    for seconds, requests, rate in rates:
        clock.now += seconds
        counts = Counts(
            requests=counts.requests + requests,
            tokens_queried=counts.tokens_queried + 10 * requests,
            tokens_hit=counts.tokens_hit + round(10 * requests * rate),
            steps=counts.steps + 2 * requests,
            tokens_generated=counts.tokens_generated + requests,
        )
        found = pace.see(Moment(counts, 0, 0.5, 1, 0, 0), share)
    assert found is not None
    return found


@pytest.mark.parametrize(
    ("rates", "window", "hit_rate"),
    [
        ([(1.0, 5_000, 0.9), *[(1.0, 100, 0.2)] * 9, (1.0, 100, 0.4)], 1_000, 0.22),
        ([(1.0, 300, 0.5), (1.0, 300, 0.7)], 600, 0.6),  # all of them
        ([(1.0, 10, 1.0), (1.0, 4_000, 0.25)], 4_000, 0.25),  # one moment of so many
        ([(1.0, 0, 0.0)], 0, 0.0),
    ],
)
def test_the_window_is_the_last_thousand_requests(
    rates: list[tuple[float, int, float]], window: int, hit_rate: float
) -> None:
    found = seen(rates)
    assert found.window_requests == window
    assert found.window_hit_rate == pytest.approx(hit_rate)


def test_speeds_are_those_of_the_last_seconds() -> None:
    found = seen([(100.0, 1, 0.0), *[(0.5, 20, 0.5)] * 10])
    assert found.requests_per_second == pytest.approx(40)
    assert found.steps_per_second == pytest.approx(80)
    assert found.tokens_per_second == pytest.approx(440)
    assert found.seconds == pytest.approx(105)


def test_the_time_left_is_that_of_the_mean_speed() -> None:
    assert seen([(30.0, 10, 0.5)], share=0.25).seconds_left == pytest.approx(90)
    assert seen([(30.0, 10, 0.5)], share=1.0).seconds_left == 0
    assert seen([(30.0, 10, 0.5)], share=0.0).seconds_left is None
    assert seen([(30.0, 10, 0.5)]).seconds_left is None


def test_marks_that_no_window_needs_are_dropped() -> None:
    clock = Clock()
    pace = Pace(clock)
    for number in range(1, 20_000):
        clock.now += 0.1
        counts = Counts(requests=10 * number, tokens_queried=number, tokens_hit=number)
        found = pace.see(Moment(counts, 0, 0.0, 0, 0, 0), None)
    assert found.window_requests == 1_000
    assert len(pace._marks) < 200
