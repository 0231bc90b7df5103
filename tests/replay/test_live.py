"""`kvspec replay --live`: what is shown on the way, and that the report is the same."""

from __future__ import annotations

import io
import json
import re
from typing import Any

import pytest
from rich.console import Console

from kvcheck.cli import _live, _watch, main
from kvcheck.cli._live import LiveView, plain_line, view
from kvcheck.tools.replay.pace import Figures
from kvcheck.tools.replay.result import Counts, Moment
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


def drawn(*, timed: bool, width: int = 100) -> str:
    series = Series()
    for number in range(40):
        series.add_step(Bucket(1, number / 40, number / 40, 100, 100 if number < 20 else 0, 0, 0))
    console = Console(file=io.StringIO(), force_terminal=True, width=width, color_system=None)
    console.print(view("demo through kvfast", FIGURES, series, timed=timed))
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


def test_the_view_fits_a_terminal_of_80_columns() -> None:
    lines = drawn(timed=True, width=80).splitlines()
    assert all(len(line) <= 80 for line in lines)
    assert "in the last 1,000" in "\n".join(lines)
    assert "…" not in "\n".join(lines)


def report(capsys: pytest.CaptureFixture[str], *options: str) -> tuple[dict[str, Any], str]:
    assert main(["replay", "demo", *FAST, "--json", "-", *options]) == 0
    captured = capsys.readouterr()
    content: dict[str, Any] = json.loads(captured.out)
    return {**content, "seconds": None}, captured.err


@pytest.mark.parametrize("arrival", ["ignore", "timestamp"])
@pytest.mark.parametrize("is_terminal", [True, False])
def test_the_report_is_the_same(
    arrival: str,
    is_terminal: bool,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """However often the replay is looked at."""
    seen = io.StringIO()
    monkeypatch.setattr(
        _watch,
        "progress_console",
        lambda: Console(file=seen, force_terminal=is_terminal, width=100),
    )
    alone, _ = report(capsys, "--arrival", arrival, "--quiet")
    assert seen.getvalue() == ""
    monkeypatch.setattr(_watch, "_SECONDS_BETWEEN_MOMENTS", 0.0)
    monkeypatch.setattr(LiveView, "SECONDS_BETWEEN_LINES", 0.0)
    monkeypatch.setattr(LiveView, "SECONDS_BETWEEN_VIEWS", 0.01)
    shown, _ = report(capsys, "--arrival", arrival, "--live")
    assert shown == alone
    lines = seen.getvalue().count("demo: ")
    if is_terminal:
        assert "demo through kvfast" in seen.getvalue()
        assert lines == 0
    else:
        assert lines > alone["steps"] / 2
        assert "\x1b" not in seen.getvalue()


def test_quiet_is_quiet(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(LiveView, "SECONDS_BETWEEN_LINES", 0.0)
    _, remarks = report(capsys, "--live", "--quiet")
    assert remarks == ""


def test_clocks() -> None:
    assert [_live._clock(seconds) for seconds in (0.2, 59.7, 61, 3_725)] == [
        *("0:00", "1:00", "1:01", "1:02:05"),
    ]
