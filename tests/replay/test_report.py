"""Figures of a replay: the report, the time series, and what is shown on the way."""

from __future__ import annotations

import io
import math
import re
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from kvcheck.cli._live import plain_line, view
from kvcheck.tools.replay import beside
from kvcheck.tools.replay.driver import Driver
from kvcheck.tools.replay.html import report_html
from kvcheck.tools.replay.options import ReplayOptions
from kvcheck.tools.replay.pace import Figures, Pace
from kvcheck.tools.replay.plot import cumulative_hit_rate, plot_bytes, windowed_hit_rate
from kvcheck.tools.replay.report import ReplayContext, report, report_text
from kvcheck.tools.replay.result import Counts, Moment, ReplayResult
from kvcheck.tools.replay.series import Bucket, Series
from kvcheck.tools.replay.synth import SynthTrace
from kvcheck.tools.replay.trace import TraceRecord
from tests.cases import Case, cases, words
from tests.replay.noted import Noted
from tests.replay.records import record


def replay(
    records: list[TraceRecord], *, name: str = "scene"
) -> tuple[ReplayResult, dict[str, Any]]:
    noted = Noted()
    driver = Driver(noted, ReplayOptions(300, 64), records, trace_name=name)
    result = driver.run()
    context = ReplayContext(name, noted.capabilities, 1.0, None, True)
    return result, report(result, context)


@pytest.fixture(scope="module")
def chat() -> tuple[ReplayResult, dict[str, Any]]:
    return replay(list(SynthTrace("synth:chat?requests=200")))


def test_the_keys_are_those_of_the_documentation(
    chat: tuple[ReplayResult, dict[str, Any]], root: Path
) -> None:
    _, content = chat
    text = (root / "spec" / "replay.md").read_text(encoding="utf-8")
    section = text.split("## 7.")[1].split("\n## ")[0]
    rows = [line for line in section.splitlines() if line.startswith("| `")]
    documented = [key for row in rows for key in re.findall(r"`(\w+)`", row.split("|")[1])]
    assert list(content) == documented
    described = {row.split("`")[1]: row for row in rows}
    for key in ("implementation", "versions", "options", "explanation"):
        assert all(f"`{inner}`" in described[key] for inner in content[key])
    assert all(f"`{key}`" in described["explanation"] for key in content["explanation"]["items"][0])


@pytest.mark.parametrize("case", cases(__file__, "report.txt"), ids=str)
def test_a_report_is_as_it_was_read(case: Case) -> None:
    traces = [[record(1, [0], 10)] if n == "one" else [*SynthTrace(n)] for n in case.given]
    contents = [replay(trace, name=name)[1] for name, trace in zip(case.given, traces, strict=True)]
    text = report_text(contents[0]) if len(contents) == 1 else beside.text(contents)
    text = re.sub(r"^(  seconds).*$", r"\1", text, flags=re.MULTILINE)
    case.expect(re.sub(r"kvref [\d.]+,", "kvref …,", text).splitlines())


@pytest.mark.parametrize("image_format", ["png", "svg"])
def test_equal_input_gives_an_equal_picture(
    chat: tuple[ReplayResult, dict[str, Any]], image_format: str
) -> None:
    result, content = chat
    picture = plot_bytes([(result.series, content)], image_format=image_format)
    assert picture == plot_bytes([(result.series, content)], image_format=image_format)
    assert picture.startswith(b"\x89PNG" if image_format == "png" else b"<?xml")
    assert b"<dc:date>" not in picture


def test_the_page_needs_nothing_else(chat: tuple[ReplayResult, dict[str, Any]]) -> None:
    result, content = chat
    svg = plot_bytes([(result.series, content)], image_format="svg")
    page = report_html([{**content, "trace": "<a> & b"}], svg)
    assert page.startswith("<!DOCTYPE html>")
    assert "&lt;a&gt; &amp; b" in page
    assert "<a>" not in page
    assert "<?xml" not in page
    assert page.count("<svg") == 1
    assert "<script" not in page
    # Addresses in an SVG are names of its vocabulary; nothing is loaded from them.
    loaded = re.findall(r"""(?:src|href)\s*=\s*["']([^"']+)""", page)
    assert all(target.startswith("#") for target in loaded)
    assert "url(http" not in page


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


COUNTS = Counts(
    requests=12_345,
    tokens_queried=1_000_000,
    tokens_hit=250_000,
    tokens_generated=8_765,
    evictions=777,
    preemptions=5,
    steps=9_000,
    peak_usage=0.999,
)
MOMENT = Moment(COUNTS, 10, 0.5, 33, 4, 44)
FIGURES = Figures(MOMENT, 125.0, 0.25, 1_000, 0.375, 98.7, 54_321.0, 72.0)


def drawn(*, timed: bool, width: int, engines: Sequence[Moment]) -> list[str]:
    series = Series()
    for number in range(40):
        series.add_step(Bucket(1, number / 40, number / 40, 100, 100 if number < 20 else 0, 0, 0))
    file = io.StringIO()
    console = Console(file=file, force_terminal=True, width=width, color_system=None)
    console.print(view("demo through kvfast", FIGURES, series, timed=timed, engines=engines))
    return file.getvalue().splitlines()


@pytest.mark.parametrize("case", cases(__file__, "shown.txt"), ids=str)
def test_all_that_is_shown_is_as_it_was_read(case: Case) -> None:
    (kind,), asked = words(case.given[0])
    engines = [
        replace(MOMENT, usage=number / 20, num_waiting=number)
        for number in range(asked.get("engines", 0))
    ]
    timed = asked.get("timed", True)
    if kind == "view":
        case.expect(drawn(timed=timed, width=asked.get("width", 100), engines=engines))
    else:
        case.expect([plain_line("demo", FIGURES, timed=timed, engines=engines)])
