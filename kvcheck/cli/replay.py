"""`kvspec replay`: a trace of requests through an implementation, and what came of it."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from time import monotonic
from typing import Any

import click
from rich.progress import BarColumn, Progress, SpinnerColumn, TextColumn, TimeRemainingColumn

from kvcheck.cli._fleet import replay_fleet, with_fleet_options
from kvcheck.cli._support import (
    MOST_BLOCKS,
    fail,
    progress_console,
    require_extra,
    write_json,
    write_whole,
)
from kvcheck.cli._traces import with_trace_options
from kvcheck.discovery import find_implementation
from kvcheck.tools.replay.driver import Driver, ReplayError
from kvcheck.tools.replay.explain import ExplanationError
from kvcheck.tools.replay.options import ARRIVALS, ReplayOptions
from kvcheck.tools.replay.plot import FORMATS
from kvcheck.tools.replay.report import ReplayContext, report, report_text
from kvcheck.tools.replay.result import Counts, ReplayResult
from kvcheck.tools.replay.source import open_trace
from kvcheck.tools.replay.trace import TraceSource, select
from kvcheck.watch.recording import RecordedImplementation
from kvcheck.watch.writing import UnrecordableError
from kvspec.errors import InvariantViolation
from kvspec.interface import Implementation

_STDOUT = "-"
_SECONDS_BETWEEN_UPDATES = 0.1
_WRONG = (InvariantViolation, ReplayError, ExplanationError, UnrecordableError)
_POSITIVE = click.IntRange(min=1)


@click.command()
@click.argument("trace")
@click.option(
    "--impl",
    required=True,
    help="Implementation: a name, package.module:factory, or cmd:PROGRAM ARGS….",
)
@click.option(
    "--num-blocks",
    type=click.IntRange(2, MOST_BLOCKS),
    default=300,
    show_default=True,
    help="Blocks of the pool, the null block included.",
)
@click.option("--block-size", type=_POSITIVE, default=64, show_default=True, help="In tokens.")
@click.option("--json", "json_path", metavar="F", help="Write the report to F; - is stdout.")
@click.option("--plot", "plot_path", metavar="F", help="Draw usage and hit rate: F.png or F.svg.")
@click.option("--html", "html_path", metavar="F", help="Write everything as one page.")
@click.option(
    "--record",
    "record_path",
    metavar="F",
    help="Write every operation and answer to F.jsonl or F.jsonl.gz, for kvspec golden.",
)
@click.option("--limit", type=_POSITIVE, metavar="N", help="Only the first N (kept) requests.")
@click.option(
    "--sample",
    type=float,
    default=1.0,
    show_default=True,
    metavar="P",
    help="Keep each request with probability P, by its line number.",
)
@click.option("--seed", type=click.IntRange(min=0), help="Seed of a generated trace.")
@click.option(
    "--arrival",
    type=click.Choice(ARRIVALS),
    default="ignore",
    show_default=True,
    help="Queue all requests at once, or each at its timestamp.",
)
@click.option(
    "--step-ms",
    type=_POSITIVE,
    default=25,
    show_default=True,
    help="Length of a step, with --arrival timestamp.",
)
@click.option(
    "--max-tokens-per-step",
    type=_POSITIVE,
    default=8_192,
    show_default=True,
    help="Tokens computed in one step.",
)
@click.option(
    "--max-running", type=_POSITIVE, default=256, show_default=True, help="Requests at once."
)
@click.option(
    "--check/--no-check",
    default=True,
    show_default=True,
    help="Check all invariants after every operation. Large traces want --no-check.",
)
@with_trace_options
@with_fleet_options
@click.option("--quiet", is_flag=True, help="No progress bar.")
def command(trace: str, impl: str, quiet: bool, **given: Any) -> None:
    """Replay a request trace and report hits, evictions, usage.

    TRACE is a file in one of the formats of --format (plain, gzip, zstd; - is standard input), or
    `demo`, which is shipped, or sample:FORMAT, a small one; or generated: synth:chat, synth:agent,
    synth:rag, with ?requests=N&seed=S behind it. The rules behind the numbers are in
    spec/replay.md. The defaults of --num-blocks and --block-size suit the demo.

    --record F: `kvspec golden F --impl kvref` then says whether the reference accepts every
    operation. F has the state after each, and grows by all tokens: --limit keeps it short.

    --engines N: through N pools, with a row for each --route: what it hits, how even the load is.

    Exit code 0: done. 1: the implementation broke a rule. 2: it could not run.
    """
    _check_outputs(given["json_path"], given["plot_path"], given["html_path"], given["record_path"])
    options = ReplayOptions(
        num_blocks=given["num_blocks"],
        block_size=given["block_size"],
        max_tokens_per_step=given["max_tokens_per_step"],
        max_running=given["max_running"],
        arrival=given["arrival"],
        step_ms=given["step_ms"],
    )
    implementation = find_implementation(impl)
    if given["engines"] is not None:
        replay_fleet(trace, implementation, options, given, quiet=quiet)
        return
    if given["routes"]:
        fail("--route needs --engines N")
    with open_trace(
        trace,
        ordered=given["arrival"] == "timestamp",
        seed=given["seed"],
        endless=given["limit"] is not None,
        form=given["form"],
        tokenizer=given["tokenizer"],
    ) as source:
        context = ReplayContext(
            trace=source.name,
            implementation=implementation.capabilities,
            sample=given["sample"],
            limit=given["limit"],
            check_invariants=given["check"],
        )
        with _recorded(implementation, given["record_path"], context) as subject:
            result = _replay(subject, options, source, context, quiet=quiet)
        context = replace(context, notes=source.notes)
    if result.counts.requests == 0:
        kept = " of which --sample kept none" if context.sample < 1 else ""
        fail(f"{context.trace}: holds no requests{kept}; nothing was replayed")
    _write(result, report(result, context), given)


def _check_outputs(*paths: str | None) -> None:
    """Fail now, not after the replay, for what can't be written then."""
    json_path, plot_path, html_path, record_path = paths
    if plot_path is not None and Path(plot_path).suffix.lower().lstrip(".") not in FORMATS:
        fail(f"--plot {plot_path}: the name must end in .png or .svg")
    if plot_path is not None or html_path is not None:
        require_extra("matplotlib", "plot")
    for path in (None if json_path == _STDOUT else json_path, plot_path, html_path, record_path):
        if path is None:
            continue
        folder = Path(path).resolve().parent
        if Path(path).is_dir():
            fail(f"{path}: cannot be written: is a folder")
        if not folder.is_dir():
            fail(f"{path}: cannot be written: there is no folder {folder}")
        if not os.access(folder, os.W_OK):
            fail(f"{path}: cannot be written: no permission to write in {folder}")


def _replay(
    implementation: Implementation,
    options: ReplayOptions,
    source: TraceSource,
    context: ReplayContext,
    *,
    quiet: bool,
) -> ReplayResult:
    """Run the driver under a progress bar; what the implementation did wrong is exit code 1."""
    records = select(source, sample=context.sample, limit=context.limit)
    with _progress(source, context.limit, quiet=quiet) as on_progress:
        try:
            driver = Driver(
                implementation,
                options,
                records,
                trace_name=source.name,
                check_invariants=context.check_invariants,
                on_progress=on_progress,
            )
            return driver.run()
        except _WRONG as error:
            fail(f"{implementation.capabilities.name}: {error}", exit_code=1)


@contextmanager
def _recorded(
    implementation: Implementation, path: str | None, context: ReplayContext
) -> Iterator[Implementation]:
    """The implementation, recorded to `path` if there is one; tells what to do with the record."""
    if path is None:
        yield implementation
        return
    scenario = f"replay {context.trace}"
    recorded = RecordedImplementation(implementation, Path(path), scenario=scenario)
    try:
        with recorded:
            yield recorded
    finally:
        if recorded.is_written:
            operations = f"{recorded.num_operations:,} operations"
            line = f"{path}: {operations}, to be replayed with kvspec golden {path} --impl kvref"
            progress_console().print(line, markup=False, soft_wrap=True)


@contextmanager
def _progress(
    source: TraceSource, limit: int | None, *, quiet: bool
) -> Iterator[Callable[[Counts], None]]:
    """A bar with the time left when the end is known, else a spinner; on a terminal only."""
    console = progress_console()
    total = source.total if limit is None else limit
    end = (
        (BarColumn(bar_width=20), TimeRemainingColumn())
        if total is not None
        else (SpinnerColumn(),)
    )
    columns = (TextColumn("replay"), *end, TextColumn("{task.fields[counts]}"))
    shown = console.is_terminal and not quiet
    with Progress(*columns, console=console, transient=True, disable=not shown) as bar:
        task = bar.add_task("replay", total=total, counts="")

        due = 0.0

        def update(counts: Counts) -> None:
            nonlocal due
            now = monotonic()
            if now < due:
                return
            due = now + _SECONDS_BETWEEN_UPDATES
            done = source.position if limit is None else counts.requests
            text = (
                f"{counts.requests:,} requests, {counts.steps:,} steps,"
                f" {counts.hit_rate:.1%} hit, {counts.evictions:,} evictions"
            )
            bar.update(task, completed=done, counts=text)

        yield update


def _write(result: ReplayResult, content: dict[str, Any], given: dict[str, Any]) -> None:
    """All outputs, made first and written then, so that a failure leaves no half of them."""
    files: dict[str, bytes] = {}
    if given["plot_path"] is not None or given["html_path"] is not None:
        from kvcheck.tools.replay.html import report_html
        from kvcheck.tools.replay.plot import plot_bytes

        if given["plot_path"] is not None:
            path = given["plot_path"]
            image_format = Path(path).suffix.lower().lstrip(".")
            files[path] = plot_bytes(result.series, content, image_format=image_format)
        if given["html_path"] is not None:
            svg = plot_bytes(result.series, content, image_format="svg")
            files[given["html_path"]] = report_html(content, svg).encode()
    for path, data in files.items():
        write_whole(Path(path), data)
    if given["json_path"] is not None:
        write_json(content, Path(given["json_path"]))
    if given["json_path"] != _STDOUT:
        click.echo(report_text(content), nl=False)
