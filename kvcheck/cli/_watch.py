"""Output of a replay while it runs: a progress bar, or the view of `--live`."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from time import monotonic
from typing import Protocol, TypeAlias

from rich.console import Console
from rich.progress import BarColumn, Progress, SpinnerColumn, TextColumn, TimeRemainingColumn

from kvcheck.cli._live import LiveView
from kvcheck.cli._support import fail, progress_console
from kvcheck.tools.replay.arrivals import Arrivals
from kvcheck.tools.replay.file import STDIN
from kvcheck.tools.replay.options import ReplayOptions
from kvcheck.tools.replay.pace import Figures, Pace
from kvcheck.tools.replay.result import Moment, whole
from kvcheck.tools.replay.series import Series
from kvcheck.tools.replay.trace import TraceRecord, TraceSource

_SECONDS_BETWEEN_MOMENTS = 0.1


@dataclass(frozen=True)
class Shown:
    """The options that control the output of running replays."""

    live: bool
    quiet: bool

    def divided(self, traces: Sequence[str]) -> Shown:
        """Return the output of worker processes: none. Fails if an option needs this process."""
        for option, value in (("--live", self.live), ("-", STDIN in traces)):
            if value:
                fail(f"{option} cannot be combined with --jobs or --cluster")
        return Shown(live=False, quiet=True)


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
        records: Iterable[TraceRecord],
        *,
        timed: bool,
        share: Callable[[Moment], float | None],
        view: View | None,
    ) -> None:
        self.records = Arrivals(records)
        self._timed, self._share, self._view = timed, share, view
        self._pace, self._due = Pace(), 0.0

    def __call__(self, replay: Watched) -> None:
        """Update the output if that is due; most calls only read the clock."""
        now = monotonic()
        if self._view is None or now < self._due:
            return
        self._due = now + _SECONDS_BETWEEN_MOMENTS
        moments = replay.moments()
        if self._timed and len(moments) == 1:  # with several, unsent requests belong to no engine
            due = self.records.num_due(moments[0].clock_ms)
            moments = [replace(moments[0], num_waiting=moments[0].num_waiting + due)]
        moment = whole(moments)
        self._view(self._pace.see(moment, self._share(moment)), replay.series, moments)


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
    timed = options.arrival == "timestamp"
    with ExitStack() as stack:
        if shown.live and not shown.quiet:
            name = Path(source.name).name + ("" if route is None else f" by {route}")
            view = stack.enter_context(LiveView(console, title, name, timed=timed)).show
        elif console.is_terminal and not shown.quiet:
            is_finite = limit is not None or source.total is not None
            view = stack.enter_context(_bar(console, is_finite=is_finite))
        yield Watch(records, timed=timed, share=share, view=view)


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
