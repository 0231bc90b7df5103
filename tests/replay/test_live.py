"""`kvspec replay --live`: what is shown on the way, and that the report is the same."""

from __future__ import annotations

import io
import json
import re
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
from rich.console import Console

from kvcheck.cli import _live, _watch, main
from kvcheck.cli._live import LiveView, plain_line, view
from kvcheck.tools.replay.pace import Figures
from kvcheck.tools.replay.result import Counts, Moment, whole
from kvcheck.tools.replay.series import Bucket, Series

FAST = ("--impl", "kvfast", "--no-check")
COUNTS = Counts(
    requests=12_345,
    tokens_queried=1_000_000,
    tokens_hit=250_000,
    evictions=777,
    preemptions=5,
    steps=9_000,
    peak_usage=0.999,
)
FIGURES = Figures(
    Moment(COUNTS, 10, 0.5, 33, 4, 44), 125.0, 0.25, 1_000, 0.375, 98.7, 54_321.0, 72.0
)


def drawn(*, timed: bool, width: int = 100, engines: Sequence[Moment] = ()) -> str:
    series = Series()
    for number in range(40):
        series.add_step(Bucket(1, number / 40, number / 40, 100, 100 if number < 20 else 0, 0, 0))
    console = Console(file=io.StringIO(), force_terminal=True, width=width, color_system=None)
    console.print(view("demo through kvfast", FIGURES, series, timed=timed, engines=engines))
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


def test_the_view_says_all_there_is_to_say() -> None:
    text = drawn(timed=True)
    for words in (
        *("demo through kvfast", "50.0%", "peak 99.9%", "25.0%", "37.5% in the last 1,000"),
        *("2:05 so far, about 6:15 left", "12,345 admitted, 33 running, 44 waiting"),
        *(
            "777 blocks evicted",
            "5 requests preempted",
            "99 requests/s, 72 steps/s, 54,321 tokens/s",
        ),
    ):
        assert words in text
    usage, hits = (re.findall(r"[▁▂▃▄▅▆▇█]{4,}", line) for line in text.splitlines()[1:3])
    assert usage[0] == "".join(sorted(usage[0]))
    assert usage[0][0] == "▁"
    assert hits[0].startswith("██████")
    assert hits[0].endswith("▁▁▁▁▁▁")


def test_without_times_only_preempted_requests_are_said_to_wait() -> None:
    assert "33 running, 4 waiting after preemption" in drawn(timed=False)
    assert "4 waiting after preemption" in plain_line("demo", FIGURES, timed=False)


ENGINES = [replace(FIGURES.moment, usage=number / 20, num_waiting=number) for number in range(19)]


def test_each_engine_has_a_row_and_many_are_summed_up() -> None:
    lines = drawn(timed=True, engines=ENGINES).splitlines()
    rows = [re.findall(r"[\d.,]+", line) for line in lines if re.match(r"│ +\d+ ", line)]
    assert rows[:-1] == [
        [str(number), f"{number / 20:.1%}"[:-1], "25.0", "12,345", "33", str(number)]
        for number in range(16)
    ]
    assert "3 more engines in use (80.0% to 90.0%)" in "\n".join(lines)
    assert "more" not in drawn(timed=True, engines=ENGINES[:16])
    line = plain_line("demo", FIGURES, timed=True, engines=ENGINES)
    assert "pool 50.0% in use (0.0% to 90.0%), hit" in line


def test_several_engines_are_their_sums_and_the_mean_of_their_usage() -> None:
    moments = [
        Moment(
            Counts(requests=3, tokens_queried=10, tokens_hit=5, peak_usage=0.9), 7, 0.2, 1, 2, 3
        ),
        Moment(
            Counts(requests=4, tokens_queried=30, tokens_hit=5, peak_usage=0.5), 9, 0.6, 4, 5, 6
        ),
    ]
    found = whole(moments)
    assert (found.counts.requests, found.counts.hit_rate) == (7, 0.25)
    assert (found.usage, found.counts.peak_usage, found.clock_ms) == (0.4, 0.9, 9)
    assert (found.num_running, found.num_preempted, found.num_waiting) == (5, 7, 9)


@pytest.mark.parametrize("engines", [(), ENGINES])
def test_the_view_fits_a_terminal_of_80_columns(engines: Sequence[Moment]) -> None:
    lines = drawn(timed=True, width=80, engines=engines).splitlines()
    assert all(len(line) <= 80 for line in lines)
    assert "in the last 1,000" in "\n".join(lines)
    assert "…" not in "\n".join(lines)


def report(capsys: pytest.CaptureFixture[str], *options: str) -> tuple[dict[str, Any], str]:
    assert main(["replay", "demo", "--limit", "60", *FAST, "--json", "-", *options]) == 0
    captured = capsys.readouterr()
    content: dict[str, Any] = json.loads(captured.out)
    return {**content, "seconds": None}, captured.err


@pytest.mark.parametrize("arrival", ["ignore", "timestamp"])
@pytest.mark.parametrize("is_terminal", [True, False])
@pytest.mark.parametrize("engines", [(), ("--engines", "3", "--route", "prefix")])
def test_the_report_is_the_same(
    arrival: str,
    is_terminal: bool,
    engines: tuple[str, ...],
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    seen = io.StringIO()
    monkeypatch.setattr(
        _watch,
        "progress_console",
        lambda: Console(file=seen, force_terminal=is_terminal, width=100),
    )
    alone, _ = report(capsys, "--arrival", arrival, "--quiet", *engines)
    assert seen.getvalue() == ""
    monkeypatch.setattr(_watch, "_SECONDS_BETWEEN_MOMENTS", 0.0)
    monkeypatch.setattr(LiveView, "SECONDS_BETWEEN_LINES", 0.0)
    monkeypatch.setattr(LiveView, "SECONDS_BETWEEN_VIEWS", 0.1)
    shown, _ = report(capsys, "--arrival", arrival, "--live", *engines)
    assert shown == alone
    name, title = (
        ("demo by prefix", "3 engines of kvfast by prefix") if engines else ("demo", "kvfast")
    )
    lines = seen.getvalue().count(f"{name}: ")
    if is_terminal:
        assert f"demo through {title}" in seen.getvalue()
        assert lines == 0
    else:
        steps = alone["routes"][0]["steps"] if engines else alone["steps"]
        assert lines > steps / 2
        assert "\x1b" not in seen.getvalue()


def test_quiet_is_quiet(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(LiveView, "SECONDS_BETWEEN_LINES", 0.0)
    _, remarks = report(capsys, "--live", "--quiet")
    assert remarks == ""


def test_clocks() -> None:
    assert [_live._clock(seconds) for seconds in (0.2, 59.7, 61, 3_725)] == [
        *("0:00", "1:00", "1:01", "1:02:05")
    ]
