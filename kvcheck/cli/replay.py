"""`kvspec replay`: replay a trace of requests through an implementation and report the results."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import click

from kvcheck.cli._fleet import replay_fleet, with_fleet_options
from kvcheck.cli._options import PATH, POSITIVE, html_option, impl_option, json_option, plot_option
from kvcheck.cli._plans import HybridModel, cached_model, with_model_options
from kvcheck.cli._support import (
    MOST_BLOCKS,
    STDOUT,
    check_outputs,
    fail,
    output_console,
    progress_console,
    require_extra,
    say,
    set_globally,
    write_json,
    write_whole,
)
from kvcheck.cli._traces import opened, with_trace_options
from kvcheck.cli._watch import Shown, watching
from kvcheck.cli._workers import workers_for, workers_options
from kvcheck.discovery import find_implementation
from kvcheck.tasks import in_order
from kvcheck.tools.replay import beside
from kvcheck.tools.replay.against import Live, read_live
from kvcheck.tools.replay.driver import Driver, ReplayError
from kvcheck.tools.replay.explain import ExplanationError
from kvcheck.tools.replay.file import STDIN
from kvcheck.tools.replay.options import ARRIVALS, ModelOptions, Readable, ReplayOptions
from kvcheck.tools.replay.policies import REPLAYED
from kvcheck.tools.replay.report import (
    BLOCK_SIZE,
    NUM_BLOCKS,
    ReplayContext,
    report,
    report_text,
    verdict,
)
from kvcheck.tools.replay.result import ReplayResult
from kvcheck.tools.replay.trace import TraceRecord, TraceSource, select
from kvcheck.watch.recording import RecordedImplementation
from kvcheck.watch.writing import UnrecordableError
from kvspec.errors import FormatError, InvariantViolation
from kvspec.interface import Implementation

_WRONG = (InvariantViolation, ReplayError, ExplanationError, UnrecordableError)


@click.command()
@click.argument("traces", nargs=-1, required=True, metavar="TRACE…")
@impl_option("Implementation [default: kvfast]")
@click.option(
    "--num-blocks",
    type=click.IntRange(2, MOST_BLOCKS),
    help="Blocks in the pool, including the null block.  [default: 300, which suit demo]",
)
@click.option(
    "--block-size", type=POSITIVE, help="Tokens in a block.  [default: the model's, or else 64]"
)
@click.option(
    "--host-blocks",
    type=POSITIVE,
    metavar="N",
    help="Blocks of a tier in host memory behind the pool, if IMPL has one.",
)
@json_option()
@plot_option
@html_option
@click.option(
    "--record",
    "record_path",
    type=PATH,
    metavar="F",
    help="Record every operation and its result in F (.jsonl or .jsonl.gz), for kvspec golden.",
)
@click.option(
    "--limit", type=POSITIVE, metavar="N", help="Replay only the first N requests (of those kept)."
)
@click.option(
    "--sample",
    type=float,
    default=1.0,
    metavar="P",
    help="Keep each request with probability P; its line number decides, so runs are repeatable.",
)
@click.option("--seed", type=click.IntRange(min=0), help="Seed of a generated trace.")
@click.option(
    "--arrival",
    type=click.Choice(ARRIVALS),
    default="ignore",
    help="ignore: queue all requests at once. timestamp: queue each at its time in the trace.",
)
@click.option(
    "--step-ms",
    type=POSITIVE,
    default=25,
    help="Milliseconds per step, with --arrival timestamp.",
)
@click.option(
    "--max-tokens-per-step",
    type=POSITIVE,
    default=8_192,
    help="Most tokens computed in one step.",
)
@click.option(
    "--max-running",
    type=POSITIVE,
    default=256,
    help="Most requests that run at once.",
)
@click.option(
    "--policy",
    metavar="NAME",
    default="lru",
    help=f"Order of eviction: {', '.join(REPLAYED)}; priorities are those of the trace.",
)
@click.option(
    "--check/--no-check",
    default=None,
    help="Check all invariants after every operation, which takes long.  [default: with --impl]",
)
@click.option(
    "--prefill-rate",
    type=POSITIVE,
    metavar="N",
    help="Prompt tokens that an engine computes in a second, to show the seconds that hits save.",
)
@click.option(
    "--against",
    "sources",
    multiple=True,
    metavar="URL",
    help="Metrics of a vLLM that ran the trace, at its /metrics or in a file, to compare with; its"
    " pool is the default. Twice: before and after the trace. Needs the extra metrics.",
)
@with_model_options
@with_trace_options
@with_fleet_options
@workers_options
@click.option(
    "--live", is_flag=True, help="Show pool, hit rate, requests and speed during the replay."
)
def command(traces: tuple[str, ...], name: str | None, live: bool, **given: Any) -> None:
    """Replay a request trace and report hits, evictions, usage.

    TRACE is a file in one of the formats of --format (plain, gzip or zstd; - for standard input),
    the shipped trace `demo`, a small sample of a format (sample:FORMAT), or a generated trace:
    synth:chat, synth:agent or synth:rag, optionally followed by ?requests=N&seed=S. Each of several
    traces gets its own pool, and the results are shown side by side. spec/replay.md defines the
    numbers.

    With --model and --memory-gib the pool has the blocks that fit in this memory.

    --live prints a line every five seconds if stderr is not a terminal.

    --record F: afterwards `kvspec golden F --impl kvref` checks every operation against the
    reference. F contains the state after each operation and all tokens; --limit keeps it small.

    --engines N replays through N pools and prints a row for each --route: hits, and how evenly the
    load is spread. --live shows each engine.

    --jobs and --cluster divide the traces, or the routes of --engines, among workers; only the
    times change. Each worker opens TRACE by the same name.
    """
    if given["check"] is None:
        given["check"] = name is not None
    name = name or "kvfast"
    given["live"] = _live(given["sources"])
    options = _options(given)
    _check_outputs(given)
    if len(traces) > 1:
        _check_several(traces, given)
    if given["routes"] and given["engines"] is None:
        fail("--route needs --engines N")
    shown = Shown(live, bool(set_globally("quiet")))
    if given["engines"] is not None:
        if given["sources"] or given["prefill_rate"]:
            fail("--against and --prefill-rate are for one engine; leave out --engines")
        replay_fleet(traces[0], name, options, given, shown)
        return
    with workers_for(given["jobs"], given["cluster"], num_calls=len(traces)) as workers:
        shown = shown if workers is None else shown.divided(traces)
        calls = ((_replayed, (trace, name, options, given, shown)) for trace in traces)
        replays = list(in_order(workers, calls))
    _write(replays, given)


def _check_outputs(given: dict[str, Any]) -> None:
    """Fail where a file cannot be written or a picture not drawn."""
    files = [given[each] for each in ("json_path", "html_path", "record_path")]
    check_outputs(*files, picture=given["plot_path"])
    if given["plot_path"] is not None or given["html_path"] is not None:
        require_extra("matplotlib", "plot")


def _options(given: dict[str, Any]) -> ReplayOptions:
    """Return the pool as given, or what a model has in this memory, or an engine; and the rest."""
    names = ("max_tokens_per_step", "max_running", "arrival", "step_ms", "policy")
    rest = {name: given[name] for name in names} | {"num_host_blocks": given["host_blocks"] or 0}
    if given["host_blocks"] and given["engines"] is not None:
        fail("--host-blocks is for one engine; leave out --engines")
    model = cached_model(given["model"], given["memories_gib"], given["tensor"])
    if model is not None and (len(given["memories_gib"]) != 1 or given["num_blocks"] is not None):
        fail("--model needs one --memory-gib, and no --num-blocks")
    if isinstance(model, HybridModel):
        for option in ("block_size", "engines"):
            if given[option] is not None:
                fail(f"--{option.replace('_', '-')}: not with {model.name}, which forgets tokens")
        layout = model.layout(given["memories_gib"][0], rest["max_tokens_per_step"])
        return ModelOptions.of(layout, **rest)
    live = given["live"]
    if model is not None:
        size = given["block_size"] or model.block_size
        return ReplayOptions(model.num_blocks(given["memories_gib"][0], size), size, **rest)
    num_blocks = given["num_blocks"] or (live and live.num_blocks) or NUM_BLOCKS
    size = given["block_size"] or (live and live.block_size) or BLOCK_SIZE
    return ReplayOptions(num_blocks, size, **rest)


def _check_several(traces: Sequence[str], given: dict[str, Any]) -> None:
    alone = ("--record", "record_path"), ("--engines", "engines"), ("--against", "sources")
    for option, value in ((option, given[name]) for option, name in alone):
        if value:
            fail(f"{option} works with one trace only; leave out {option} or {traces[1]}")
    if traces.count(STDIN) > 1:
        fail("standard input can be read only once; name it once")


def _replayed(
    trace: str,
    impl: str,
    options: ReplayOptions,
    given: dict[str, Any],
    shown: Shown,
) -> tuple[ReplayResult, dict[str, Any]]:
    implementation = find_implementation(impl)
    with opened(trace, given, ordered=options.arrival == "timestamp") as source:
        context = ReplayContext(
            trace=source.name,
            implementation=implementation.capabilities,
            sample=given["sample"],
            limit=given["limit"],
            check_invariants=given["check"],
            prefill_rate=given["prefill_rate"],
            live=given["live"],
        )
        records: Iterable[TraceRecord]
        records = select(source, sample=context.sample, limit=context.limit)
        if isinstance(options, ModelOptions):
            records = Readable(records, options.layout)
        with _recorded(implementation, given["record_path"], context) as subject:
            result = _replay(subject, options, source, records, context, shown)
        longer = records.notes if isinstance(records, Readable) else ()
        context = replace(context, notes=(*source.notes, *longer))
    if result.counts.requests == 0:
        empty = "--sample kept no request" if context.sample < 1 else "holds no requests"
        fail(f"{context.trace}: {empty}; nothing was replayed")
    return result, report(result, context)


def _live(sources: Sequence[str]) -> Live | None:
    """Return what an engine counted, or counted between two readings."""
    if not sources:
        return None
    require_extra("prometheus_client", "metrics")
    if len(sources) > 2:
        fail("--against may be given twice, before and after the trace")
    try:
        *before, after = map(read_live, sources)
        return after.since(before[0]) if before else after
    except OSError as error:
        fail(f"--against {' '.join(sources)}: {error}")
    except FormatError as error:
        fail(f"--against {error}")


def _replay(
    implementation: Implementation,
    options: ReplayOptions,
    source: TraceSource,
    records: Iterable[TraceRecord],
    context: ReplayContext,
    shown: Shown,
) -> ReplayResult:
    """Run the driver and show its progress; an error of the implementation is exit code 1."""
    pool = f"{options.num_blocks:,} blocks of {options.block_size} tokens"
    title = f"{Path(source.name).name} through {context.implementation.name}, {pool}"
    with watching(source, records, options, shown, title=title, limit=context.limit) as watch:
        try:
            driver = Driver(
                implementation,
                options,
                watch.records,
                trace_name=source.name,
                check_invariants=context.check_invariants,
                on_progress=watch,
            )
            result = driver.run()
        except _WRONG as error:
            fail(f"{implementation.capabilities.name}: {error}", exit_code=1)
    return result


@contextmanager
def _recorded(
    implementation: Implementation, path: Path | None, context: ReplayContext
) -> Iterator[Implementation]:
    """Yield the implementation, recorded to `path` if given; print how to replay the record."""
    if path is None:
        yield implementation
        return
    scenario = f"replay {context.trace}"
    recorded = RecordedImplementation(implementation, path, scenario=scenario)
    try:
        with recorded:
            yield recorded
    finally:
        if recorded.is_written:
            operations = f"{recorded.num_operations:,} operations"
            line = f"{path}: {operations}; to check them: kvspec golden {path} --impl kvref"
            say(line, console=progress_console())


def _write(replays: Sequence[tuple[ReplayResult, dict[str, Any]]], given: dict[str, Any]) -> None:
    """Render all outputs before writing any, so that a failure does not leave some of them."""
    contents = [content for _, content in replays]
    pictures = [(result.series, content) for result, content in replays]
    files: dict[Path, bytes] = {}
    if given["plot_path"] is not None or given["html_path"] is not None:
        from kvcheck.tools.replay.html import report_html
        from kvcheck.tools.replay.plot import plot_bytes

        if given["plot_path"] is not None:
            path = given["plot_path"]
            image_format = path.suffix.lower().lstrip(".")
            files[path] = plot_bytes(pictures, image_format=image_format)
        if given["html_path"] is not None:
            svg = plot_bytes(pictures, image_format="svg")
            files[given["html_path"]] = report_html(contents, svg).encode()
    for path, data in files.items():
        write_whole(path, data)
    is_one = len(contents) == 1
    write_json(contents[0] if is_one else beside.reports(contents), given["json_path"])
    if str(given["json_path"]) == STDOUT:
        return
    if set_globally("quiet"):
        say(*map(verdict, contents))
    else:
        width = output_console().width
        text = report_text(contents[0], width) if is_one else beside.text(contents, width)
        click.echo(text, nl=False)
