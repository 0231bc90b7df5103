"""The progress bar of a replay, on a terminal."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from time import monotonic
from typing import Protocol

from rich.progress import BarColumn, Progress, SpinnerColumn, TextColumn, TimeRemainingColumn

from kvcheck.cli._support import progress_console, set_globally
from kvcheck.tools.replay.result import Counts
from kvcheck.tools.replay.trace import TraceSource

_SECONDS_BETWEEN = 0.1


class Watched(Protocol):
    @property
    def counts(self) -> Counts:
        """Counts so far."""


@contextmanager
def watching(
    source: TraceSource, limit: int | None, *, is_shown: bool
) -> Iterator[Callable[[Watched], None] | None]:
    """Yield what a driver calls after each step, to show a bar; None where nothing is shown.

    The bar has the remaining time if the end is known; else it is a spinner.
    """
    console = progress_console()
    if not is_shown or set_globally("quiet") or not console.is_terminal:
        yield None
        return
    is_finite = limit is not None or source.total is not None
    end = (BarColumn(bar_width=20), TimeRemainingColumn()) if is_finite else (SpinnerColumn(),)
    columns = (TextColumn("replay"), *end, TextColumn("{task.fields[counts]}"))
    due = 0.0
    with Progress(*columns, console=console, transient=True) as bar:
        task = bar.add_task("replay", total=1.0 if is_finite else None, counts="")

        def show(replay: Watched) -> None:
            nonlocal due
            if monotonic() < due:
                return
            due = monotonic() + _SECONDS_BETWEEN
            counts, share = replay.counts, 0.0
            if limit is not None:
                share = counts.requests / limit
            elif source.total:
                share = source.position / source.total
            text = (
                f"{counts.requests:,} requests, {counts.steps:,} steps,"
                f" {counts.hit_rate:.1%} hit, {counts.evictions:,} evictions"
            )
            bar.update(task, completed=share, counts=text)

        yield show
