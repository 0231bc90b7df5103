"""Output of a replay while it runs: a progress bar, the view of `--live`, `--metrics`."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from time import monotonic
from typing import Protocol, TypeAlias

from rich.console import Console
from rich.progress import BarColumn, Progress, SpinnerColumn, TextColumn, TimeRemainingColumn

from kvcheck.cli._live import LiveView
from kvcheck.cli._support import fail, progress_console, require_extra, say, write_whole
from kvcheck.tools.replay.arrivals import Arrivals
from kvcheck.tools.replay.file import STDIN
from kvcheck.tools.replay.metrics import ReplayMetrics
from kvcheck.tools.replay.options import ReplayOptions
from kvcheck.tools.replay.pace import Figures, Pace
from kvcheck.tools.replay.result import Moment, whole
from kvcheck.tools.replay.series import Series
from kvcheck.tools.replay.trace import TraceRecord, TraceSource

_SECONDS_BETWEEN_MOMENTS = 0.1
_SECONDS_BETWEEN_FILES = 1.0
_ADDRESS = re.compile(r"(?P<host>[\w.-]*):(?P<port>[0-9]{1,5})")
_THIS_MACHINE = "127.0.0.1"
_LAST_PORT = 65_535


class MetricsOutput:
    """`--metrics`: a file rewritten every second, or an address that serves the metrics."""

    def __init__(self, target: str, options: ReplayOptions) -> None:
        require_extra("prometheus_client", "metrics")
        self._metrics = ReplayMetrics(options)
        self._address = _ADDRESS.fullmatch(target)
        if self._address is not None and int(self._address["port"]) > _LAST_PORT:
            fail(f"--metrics {target}: a port is at most {_LAST_PORT}")
        self._path = Path(target)
        self._due = 0.0

    @property
    def path(self) -> Path | None:
        """Path of the file; None if the target is an address."""
        return self._path if self._address is None else None

    @contextmanager
    def open(self) -> Iterator[None]:
        """Serve the metrics during the block if the target is an address; raises OSError."""
        if self._address is None:
            yield
            return
        host, port = self._address["host"] or _THIS_MACHINE, int(self._address["port"])
        with self._metrics.served(host, port) as port:
            line = f"metrics at http://{host}:{port}/metrics until the replay ends"
            say(line, console=progress_console())
            yield

    def show(self, name: str, moments: Sequence[Moment], *, is_last: bool = False) -> None:
        """Update the metrics of the engines; write the file if that is due or the replay ends."""
        self._metrics.show(name, moments)
        now = monotonic()
        if self._address is None and (is_last or now >= self._due):
            self._due = now + _SECONDS_BETWEEN_FILES
            write_whole(self._path, self._metrics.text())


@dataclass(frozen=True)
class Shown:
    """The options that control the output of running replays."""

    live: bool
    quiet: bool
    metrics: MetricsOutput | None

    def divided(self, traces: Sequence[str]) -> Shown:
        """Return the output of worker processes: none. Fails if an option needs this process."""
        for option, value in (
            ("--live", self.live),
            ("--metrics", self.metrics),
            ("-", STDIN in traces),
        ):
            if value:
                fail(f"{option} cannot be combined with --jobs or --cluster")
        return Shown(live=False, quiet=True, metrics=None)


class Watched(Protocol):
    @property
    def series(self) -> Series:
        """Usage and hits over the steps so far."""

    def moments(self) -> list[Moment]:
        """Return the current figures of each engine."""


View: TypeAlias = Callable[[Figures, Series, Sequence[Moment]], None]
"""Shows the figures of all engines together, and of each."""


class Watch:
    """Follows one replay: it reads `records` from here, and calls this object after each step."""

    def __init__(
        self,
        name: str,
        records: Iterable[TraceRecord],
        options: ReplayOptions,
        *,
        share: Callable[[Moment], float | None],
        view: View | None,
        metrics: MetricsOutput | None,
    ) -> None:
        self.records = Arrivals(records)
        self._name, self._timed = name, options.arrival == "timestamp"
        self._share, self._view, self._metrics = share, view, metrics
        self._pace, self._due = Pace(), 0.0

    def __call__(self, replay: Watched) -> None:
        """Update the output if that is due; most calls only read the clock."""
        now = monotonic()
        if now >= self._due:
            self._due = now + _SECONDS_BETWEEN_MOMENTS
            self._look(replay)

    def end(self, replay: Watched) -> None:
        self._look(replay, is_last=True)

    def _look(self, replay: Watched, *, is_last: bool = False) -> None:
        moments = replay.moments()
        if self._timed and len(moments) == 1:  # with several, unsent requests belong to no engine
            due = self.records.num_due(moments[0].clock_ms)
            moments = [replace(moments[0], num_waiting=moments[0].num_waiting + due)]
        if self._view is not None:
            moment = whole(moments)
            self._view(self._pace.see(moment, self._share(moment)), replay.series, moments)
        if self._metrics is not None:
            self._metrics.show(self._name, moments, is_last=is_last)


@contextmanager
def watching(
    source: TraceSource,
    records: Iterable[TraceRecord],
    options: ReplayOptions,
    shown: Shown,
    *,
    title: str,
    limit: int | None,
    route: str | None = None,
) -> Iterator[Watch]:
    """Yield the `Watch` for the replay of one trace. `route`: the route, with several engines."""

    def share(moment: Moment) -> float | None:
        if limit is not None:
            return moment.counts.requests / limit
        return source.position / source.total if source.total else None

    console = progress_console()
    view: View | None = None
    by = "" if route is None else f" by {route}"
    with ExitStack() as stack:
        if shown.live and not shown.quiet:
            timed = options.arrival == "timestamp"
            view = stack.enter_context(
                LiveView(console, title, Path(source.name).name + by, timed=timed)
            ).show
        elif console.is_terminal and not shown.quiet:
            is_finite = limit is not None or source.total is not None
            view = stack.enter_context(_bar(console, is_finite=is_finite))
        yield Watch(
            source.name + by, records, options, share=share, view=view, metrics=shown.metrics
        )


@contextmanager
def _bar(console: Console, *, is_finite: bool) -> Iterator[View]:
    """Show a bar with the remaining time if the end is known, else a spinner."""
    end = (BarColumn(bar_width=20), TimeRemainingColumn()) if is_finite else (SpinnerColumn(),)
    columns = (TextColumn("replay"), *end, TextColumn("{task.fields[counts]}"))
    with Progress(*columns, console=console, transient=True) as bar:
        task = bar.add_task("replay", total=1.0 if is_finite else None, counts="")

        def show(found: Figures, *_: object) -> None:
            counts = found.moment.counts
            text = (
                f"{counts.requests:,} requests, {counts.steps:,} steps,"
                f" {counts.hit_rate:.1%} hit, {counts.evictions:,} evictions"
            )
            bar.update(task, completed=found.share or 0.0, counts=text)

        yield show
