"""`kvspec replay --live`: what is shown on the way, and that the report is the same."""

from __future__ import annotations

import io
import json
from typing import Any

import pytest
from rich.console import Console

from kvcheck.cli import _watch, main
from kvcheck.cli._live import LiveView

FAST = ("--impl", "kvfast", "--no-check")


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
