"""`kvspec explore`: check every operation in every state of small configurations."""

from __future__ import annotations

import shlex
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import click
from rich.console import Console
from rich.table import Table

from kvcheck.cli._options import POSITIVE, impl_option, json_option, oracle_option, records_option
from kvcheck.cli._support import (
    FAILED,
    INTERRUPTED,
    closest,
    fail,
    output_console,
    progress_bars,
    progress_console,
    say,
    write_json,
)
from kvcheck.cli._workers import workers_for, workers_options
from kvcheck.discovery import find_implementation
from kvcheck.explore import trace
from kvcheck.explore.bounds import Configuration
from kvcheck.explore.configurations import configurations
from kvcheck.explore.search import Exploration, Pair
from kvcheck.explore.session import Report, recorded_counts, run
from kvspec.interface import Feature


@click.command()
@impl_option(default="kvref")
@click.option(
    "--config",
    "names",
    multiple=True,
    metavar="NAME",
    help="Explore only this configuration; --list shows them. May be repeated.",
)
@click.option(
    "--deep",
    is_flag=True,
    help="Also explore the larger configurations, which takes many hours on one core.",
)
@click.option("--list", "is_list", is_flag=True, help="List the configurations and exit.")
@click.option(
    "--whole",
    is_flag=True,
    help="Treat states that differ only in the names of blocks and requests as different.",
)
@oracle_option()
@workers_options
@click.option(
    "--max-edges", type=POSITIVE, metavar="N", help="Leave a configuration after about N edges."
)
@records_option
@json_option()
def command(
    name: str,
    names: tuple[str, ...],
    deep: bool,
    is_list: bool,
    whole: bool,
    oracle: str,
    jobs: int,
    cluster: str | None,
    max_edges: int | None,
    records_path: Path | None,
    json_path: Path | None,
) -> int:
    """Explore every state of small configurations, and try every operation there.

    The search is breadth first, from the empty pool. Each operation in each state is checked
    against the invariants of states and transitions. Unless IMPL is the oracle itself, its results,
    events and states are also compared with the oracle's. Within the bounds of a configuration the
    search is exhaustive. A broken rule is shown with the shortest sequence of operations to it.

    An edge is an operation in a state, with its result. States that differ only in the names of
    blocks and requests are explored once, unless --whole is given.

    Exit code 0: no rule is broken, 1: some are, or the counts differ from those recorded, 2: it
    could not run, 130: interrupted, with nothing broken so far.
    """
    chosen = choose(names, deep=deep)
    if is_list:
        list_configurations(configurations() if not names else chosen)
        return 0
    if whole:
        chosen = tuple(replace(configuration, up_to_names=False) for configuration in chosen)
    pair = pair_of(name, oracle)
    with workers_for(jobs, cluster) as workers, progress() as heard:
        report = run(pair, chosen, workers=workers, max_edges=max_edges, heard=heard)
    if not report.results and not report.interrupted:
        lacking = sorted({lack for lacks in report.left_out.values() for lack in lacks})
        fail(f"nothing in {name} could be explored, because it lacks {', '.join(lacking)}")
    write_json(to_json(report, pair, chosen), json_path)
    show(report, pair, output_console(json_path))
    if records_path is not None:
        write_records(report, pair, records_path, progress_console())
    return exit_code(report)


def exit_code(report: Report) -> int:
    """Return 0, 1 or INTERRUPTED; 1 also if counts differ from those recorded."""
    if report.violations or any(result.as_recorded is False for result in report.results):
        return FAILED
    return INTERRUPTED if report.interrupted else 0


def choose(names: tuple[str, ...], *, deep: bool) -> tuple[Configuration, ...]:
    """Return the named configurations, else all, the larger ones only if `deep`."""
    known = {configuration.name: configuration for configuration in configurations()}
    for name in names:
        if name not in known:
            fail(f"no configuration {name!r}{closest(name, known)}; known: {', '.join(known)}")
    if names:
        return tuple(known[name] for name in dict.fromkeys(names))
    return tuple(each for each in configurations() if deep or not each.is_deep)


def pair_of(name: str, oracle_name: str) -> Pair:
    """Return the oracle and the subject; no subject if both names are equal."""
    oracle = find_implementation(oracle_name)
    subject = None if name == oracle_name else find_implementation(name)
    if Feature.RESTORE not in oracle.capabilities.features:
        fail(f"{oracle_name} lacks the feature restore, which an oracle needs")
    subject_name = None if subject is None else name
    return Pair(oracle, subject, oracle_name, subject_name, find_implementation)


@contextmanager
def progress() -> Iterator[Callable[[Exploration], None]]:
    """Show a progress bar on stderr if that is a terminal."""
    recorded = recorded_counts()
    with progress_bars() as bars:
        bar = bars.add_task("exploring")

        def heard(now: Exploration) -> None:
            name, counts = now.configuration.name, now.counts
            known = recorded.get(name) if now.configuration.up_to_names else None
            speed = counts.states / (time.monotonic() - now.began)
            text = (
                f"{name}  {counts.states:,} states, {counts.edges:,} edges, {speed:,.0f} states/s"
            )
            total = None if known is None else known.edges
            bars.update(bar, description=text, completed=counts.edges, total=total)

        yield heard


def list_configurations(configurations: tuple[Configuration, ...]) -> None:
    recorded = recorded_counts()
    for each in configurations:
        counts = recorded.get(each.name)
        size = "" if counts is None else f" ({counts.states:,} states, {counts.edges:,} edges)"
        deep = ", only with --deep" if each.is_deep else ""
        say(f"{each.name}: {each.summary}{size}{deep}")


def show(report: Report, pair: Pair, console: Console) -> None:
    """Print the table of counts, then each violation."""
    table = Table(box=None, pad_edge=False)
    table.add_column("configuration")
    for column in ("states", "edges", "refused", "errors", "depth", "edges/s"):
        table.add_column(column, justify="right")
    table.add_column("")
    for result in report.results:
        counts = result.counts
        speed = counts.edges / result.seconds if result.seconds else 0.0
        remark = "" if result.is_complete else "incomplete"
        if result.as_recorded is False:
            remark = "differs from the recorded counts"
        figures = (counts.states, counts.edges, counts.refused, counts.errors, counts.depth, speed)
        table.add_row(result.configuration.name, *(f"{figure:,.0f}" for figure in figures), remark)
    console.print(table)
    for violation in report.violations:
        say(*trace.lines(violation, pair), console=console)
    for name, lacking in report.left_out.items():
        say(f"left out: {name}, which needs {', '.join(lacking)}", console=console)
    states = sum(result.counts.states for result in report.results)
    edges = sum(result.counts.edges for result in report.results)
    found = f"{len(report.violations)} rules broken" if report.violations else "no rule broken"
    if report.interrupted:
        found += "; interrupted"
    say(f"{states:,} states, {edges:,} edges: {found}", console=console)


def write_records(report: Report, pair: Pair, folder: Path, console: Console) -> None:
    """Write a record of each violation, and print the command that replays it."""
    impl = pair.subject_name or pair.oracle_name
    for violation in report.violations:
        path, reason = trace.write_record(violation, pair, folder)
        line = f"no record: {reason}"
        if path is not None:
            line = f"kvspec golden {shlex.quote(str(path))} --impl {shlex.quote(impl)}"
        say(line, console=console)


def to_json(
    report: Report, pair: Pair, configurations: Sequence[Configuration]
) -> dict[str, object]:
    return {
        "impl": pair.subject_name or pair.oracle_name,
        "oracle": pair.oracle_name,
        "configurations": [each.name for each in configurations],
        "whole": not all(each.up_to_names for each in configurations),
        "interrupted": report.interrupted,
        "left_out": {name: list(lacking) for name, lacking in report.left_out.items()},
        "results": [result.to_json() for result in report.results],
        "violations": [trace.to_json(each, pair) for each in report.violations],
    }
