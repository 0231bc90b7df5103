"""Whole outputs during a replay: the live view, its line without a terminal, the metrics."""

from __future__ import annotations

import io
from collections.abc import Sequence
from dataclasses import replace

import pytest
from rich.console import Console

from kvcheck.cli._live import plain_line, view
from kvcheck.tools.replay.metrics import ReplayMetrics
from kvcheck.tools.replay.options import ReplayOptions
from kvcheck.tools.replay.pace import Figures
from kvcheck.tools.replay.result import Counts, Moment
from kvcheck.tools.replay.series import Bucket, Series
from tests.cases import Case, cases, words

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


def metrics(engines: Sequence[Moment]) -> list[str]:
    made = ReplayMetrics(ReplayOptions(10, 16))
    made.show("demo", engines)
    made.show("other", [MOMENT])
    return made.text().decode().splitlines()


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
    elif kind == "line":
        case.expect([plain_line("demo", FIGURES, timed=timed, engines=engines)])
    else:
        case.expect(metrics(engines))
