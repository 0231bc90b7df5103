"""`kvspec replay --live`: a live view of a replay, or lines if stderr is not a terminal."""

from __future__ import annotations

from collections.abc import Sequence
from math import ceil

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.panel import Panel
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from kvcheck.cli._support import say
from kvcheck.tools.replay.pace import Figures
from kvcheck.tools.replay.result import Moment
from kvcheck.tools.replay.series import Bucket, Series

_SPARKS = "▁▂▃▄▅▆▇█"
_SPARK_WIDTH = 14
_BAR_WIDTH = 14
_SMALL_BAR_WIDTH = 8
_MOST_ENGINES = 16
_LABEL_WIDTH = len("pool in use")


def plain_line(name: str, found: Figures, *, timed: bool, engines: Sequence[Moment] = ()) -> str:
    """Render the live view as one line; of several engines, show the range of their usage."""
    moment, counts = found.moment, found.moment.counts
    parts = [
        f"{_clock(found.seconds)} {name}: {counts.requests:,} requests",
        f"pool {moment.usage:.1%} in use{_range(engines)}",
        f"hit {counts.hit_rate:.1%} ({found.window_hit_rate:.1%} in the last"
        f" {found.window_requests:,})",
        _line(moment, timed=timed),
        f"{counts.evictions:,} evictions",
        f"{counts.preemptions:,} preemptions",
        f"{found.requests_per_second:,.0f} requests/s",
    ]
    if found.seconds_left is not None:
        parts.append(f"{_clock(found.seconds_left)} left")
    return ", ".join(parts)


def view(
    title: str, found: Figures, series: Series, *, timed: bool, engines: Sequence[Moment] = ()
) -> RenderableType:
    """Render all figures as bars and curves, with a row for each of several engines."""
    moment, counts = found.moment, found.moment.counts
    buckets = _merged(series.buckets)
    usage = [each.usage_sum / each.steps for each in buckets]
    hits = [
        each.hit_tokens / each.queried_tokens if each.queried_tokens else None for each in buckets
    ]
    rows = Table.grid(padding=(0, 2))
    rows.add_column(style="dim", no_wrap=True, min_width=_LABEL_WIDTH)
    rows.add_column(no_wrap=True, width=_BAR_WIDTH)
    rows.add_column(no_wrap=True, justify="right")
    rows.add_column(no_wrap=True)
    peak = _sparks(usage, "blue", f"peak {counts.peak_usage:.1%}")
    rows.add_row("pool in use", _bar(moment.usage, "blue"), f"{moment.usage:.1%}", peak)
    rows.add_row(
        "hit rate",
        _bar(counts.hit_rate, "green"),
        f"{counts.hit_rate:.1%}",
        _sparks(
            hits, "green", f"{found.window_hit_rate:.1%} in the last {found.window_requests:,}"
        ),
    )
    if found.share is not None and found.seconds_left is not None:
        left = f"{_clock(found.seconds)} so far, about {_clock(found.seconds_left)} left"
        rows.add_row("trace", _bar(found.share, "default"), f"{found.share:.1%}", left)
    else:
        rows.add_row("trace", "", "", f"{_clock(found.seconds)} so far")
    words = Table.grid(padding=(0, 2))
    words.add_column(style="dim", no_wrap=True, min_width=_LABEL_WIDTH)
    words.add_column()
    words.add_row("requests", f"{counts.requests:,} admitted, {_line(moment, timed=timed)}")
    words.add_row(
        "lost", f"{counts.evictions:,} blocks evicted, {counts.preemptions:,} requests preempted"
    )
    words.add_row(
        "speed",
        f"{found.requests_per_second:,.0f} requests/s, {found.steps_per_second:,.0f} steps/s,"
        f" {found.tokens_per_second:,.0f} tokens/s",
    )
    parts = (rows, words, *((_table(engines),) if len(engines) > 1 else ()))
    return Panel(Group(*parts), title=Text(title), title_align="left", expand=False)


def _table(engines: Sequence[Moment]) -> RenderableType:
    """Render a row for each of the first engines, and the number of the others."""
    table = Table(box=None, padding=(0, 2, 0, 0), pad_edge=False, header_style="dim")
    for name in ("engine", "", "in use", "", "hit rate", "admitted", "running", "waiting"):
        table.add_column(name, no_wrap=True, justify="right" if name else "left")
    for number, each in enumerate(engines[:_MOST_ENGINES]):
        counts = each.counts
        table.add_row(
            f"{number}",
            _bar(each.usage, "blue", _SMALL_BAR_WIDTH),
            f"{each.usage:.1%}",
            _bar(counts.hit_rate, "green", _SMALL_BAR_WIDTH),
            f"{counts.hit_rate:.1%}",
            f"{counts.requests:,}",
            f"{each.num_running:,}",
            f"{each.num_waiting:,}",
        )
    rest = engines[_MOST_ENGINES:]
    if not rest:
        return Group("", table)
    return Group("", table, Text(f"{len(rest):,} more engines in use{_range(rest)}", style="dim"))


def _range(engines: Sequence[Moment]) -> str:
    """Format the lowest and highest usage of several engines."""
    if len(engines) < 2:
        return ""
    usages = [each.usage for each in engines]
    return f" ({min(usages):.1%} to {max(usages):.1%})"


class LiveView:
    """Redraws the view in place on a terminal and removes it at the end; else prints lines."""

    SECONDS_BETWEEN_VIEWS = 0.25
    SECONDS_BETWEEN_LINES = 5.0

    def __init__(self, console: Console, title: str, name: str, *, timed: bool) -> None:
        self._console, self._title, self._name, self._timed = console, title, name, timed
        self._live = Live(console=console, auto_refresh=False, transient=True)
        self._is_view = console.is_terminal
        self._due = self.seconds_between if not self._is_view else 0.0

    @property
    def seconds_between(self) -> float:
        return self.SECONDS_BETWEEN_VIEWS if self._is_view else self.SECONDS_BETWEEN_LINES

    def __enter__(self) -> LiveView:
        if self._is_view:
            self._live.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._is_view:
            self._live.stop()

    def show(self, found: Figures, series: Series, engines: Sequence[Moment]) -> None:
        if found.seconds < self._due:
            return
        self._due = found.seconds + self.seconds_between
        if self._is_view:
            shown = view(self._title, found, series, timed=self._timed, engines=engines)
            self._live.update(shown, refresh=True)
        else:
            line = plain_line(self._name, found, timed=self._timed, engines=engines)
            say(line, console=self._console)


def _bar(share: float, style: str, width: int = _BAR_WIDTH) -> ProgressBar:
    done = min(share, 1.0)
    return ProgressBar(1.0, done, width=width, complete_style=style, finished_style=style)


def _sparks(values: Sequence[float | None], style: str, words: str) -> Text:
    """Draw values between 0 and 1 as one character each, and None as a blank."""
    marks = "".join(
        " " if each is None else _SPARKS[min(len(_SPARKS) - 1, int(each * len(_SPARKS)))]
        for each in values
    )
    return Text.assemble((f"{marks:<{_SPARK_WIDTH}}", style), f"  {words}")


def _merged(buckets: Sequence[Bucket]) -> list[Bucket]:
    """Merge neighbouring buckets until they fit the width of the curve."""
    width = max(1, ceil(len(buckets) / _SPARK_WIDTH))
    merged = []
    for start in range(0, len(buckets), width):
        whole = Bucket()
        for each in buckets[start : start + width]:
            whole.add(each)
        merged.append(whole)
    return merged


def _line(moment: Moment, *, timed: bool) -> str:
    """Format the numbers of running and waiting requests.

    Without timestamps the whole rest of the trace is waiting, so only preempted ones are counted.
    """
    if timed:
        return f"{moment.num_running:,} running, {moment.num_waiting:,} waiting"
    return f"{moment.num_running:,} running, {moment.num_preempted:,} waiting after preemption"


def _clock(seconds: float) -> str:
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"
