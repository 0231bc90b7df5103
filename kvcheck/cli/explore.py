"""`kvspec explore`: every state of small configurations, and every operation there."""

from __future__ import annotations

import shlex
from dataclasses import replace
from pathlib import Path

import click
from rich.console import Console
from rich.table import Table

from kvcheck.cli._options import (
    json_option,
    oracle_option,
    records_option,
    resume_option,
)
from kvcheck.cli._support import (
    fail,
    output_console,
    progress_bars,
    progress_console,
    read_state,
    write_json,
    write_state,
)
from kvcheck.cli._workers import workers_for, workers_options
from kvcheck.discovery import find_implementation
from kvcheck.explore import trace
from kvcheck.explore.bounds import Configuration
from kvcheck.explore.configurations import CONFIGURATIONS
from kvcheck.explore.saved import Saved
from kvcheck.explore.search import Exploration, Pair
from kvcheck.explore.session import Report, Session, recorded_counts
from kvspec.interface import Feature

INTERRUPTED = 130
IMPL = "kvref"
"""Who is explored where nobody is named."""


@click.command()
@click.option(
    "--impl",
    "name",
    default=IMPL,
    show_default=True,
    metavar="IMPL",
    help="A name such as kvfast, package.module:factory, or cmd:PROGRAM ARGS….",
)
@click.option(
    "--config",
    "names",
    multiple=True,
    metavar="NAME",
    help="Only this configuration; may be given several times. --list shows them.",
)
@click.option(
    "--deep",
    is_flag=True,
    help="The larger configurations, too: many hours of one core.",
)
@click.option("--list", "is_list", is_flag=True, help="Show the configurations and explore none.")
@click.option(
    "--whole",
    is_flag=True,
    help="States that differ only in the names of blocks and requests count as different.",
)
@oracle_option()
@workers_options
@click.option(
    "--max-edges",
    type=click.IntRange(min=1),
    metavar="N",
    help="Leave a configuration after about so many edges.",
)
@resume_option
@records_option
@json_option("Write a report; - for stdout.")
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
    resume_path: Path | None,
    records_path: Path | None,
    json_path: Path | None,
) -> int:
    """Explore every state of small configurations, and try every operation there.

    Breadth first, from the empty pool: each operation in each state is checked by the invariants of
    states and of transitions, and, unless IMPL is the oracle itself, compared with the oracle:
    answers, events and the state. Within the bounds of a configuration nothing is left out. A
    broken rule is shown with the shortest way to it.

    An edge is an operation in a state and what came of it. States that differ only in the names of
    blocks and requests are explored once, unless --whole is given.

    Exit code 0: no rule is broken, 1: some are, or other counts than recorded, 2: it could not run,
    130: interrupted, and nothing was broken until then.
    """
    chosen = choose(names, deep=deep)
    if is_list:
        list_configurations(CONFIGURATIONS if not names else chosen)
        return 0
    if whole:
        chosen = tuple(replace(configuration, up_to_names=False) for configuration in chosen)
    session = Session(pair_of(name, oracle), chosen, max_edges=max_edges)
    if resume_path is not None:
        target = resume_path
        session.save = lambda saved: write_state(saved.to_json(), target)
    earlier = earlier_run(resume_path)
    with workers_for(jobs, cluster) as session.workers:
        report = run(session, earlier)
    if not report.results and not report.interrupted:
        lacking = sorted({lack for lacks in report.left_out.values() for lack in lacks})
        fail(f"{name} has nothing that could be explored: {', '.join(lacking)} is lacking")
    if json_path is not None:
        write_json(to_json(report, session), json_path)
    show(report, session, progress_console() if str(json_path) == "-" else output_console())
    if records_path is not None:
        write_records(report, session, records_path, progress_console())
    return exit_code(report)


def exit_code(report: Report) -> int:
    """1 also for counts that are not as recorded: the graph has become another one."""
    if report.violations or any(result.as_recorded is False for result in report.results):
        return 1
    return INTERRUPTED if report.interrupted else 0


def choose(names: tuple[str, ...], *, deep: bool) -> tuple[Configuration, ...]:
    """The configurations named, else all; the larger ones only when asked for."""
    known = {configuration.name: configuration for configuration in CONFIGURATIONS}
    for name in names:
        if name not in known:
            fail(f"no configuration {name!r}; there are: {', '.join(known)}")
    if names:
        return tuple(known[name] for name in dict.fromkeys(names))
    return tuple(each for each in CONFIGURATIONS if deep or not each.is_deep)


def pair_of(name: str, oracle_name: str) -> Pair:
    """The oracle, and the subject unless it is the same."""
    oracle = find_implementation(oracle_name)
    subject = None if name == oracle_name else find_implementation(name)
    if Feature.RESTORE not in oracle.capabilities.features:
        fail(f"{oracle_name} lacks restore, which an oracle needs")
    subject_name = None if subject is None else name
    return Pair(oracle, subject, oracle_name, subject_name, find_implementation)


def run(session: Session, saved: Saved | None) -> Report:
    """Run with a bar on stderr where that is a terminal."""
    recorded = recorded_counts()
    with progress_bars() as bars:
        bar = bars.add_task("exploring")

        def heard(now: Exploration) -> None:
            name, counts = now.configuration.name, now.counts
            known = recorded.get(name) if now.configuration.up_to_names else None
            speed = counts.states / now.seconds if now.seconds else 0.0
            text = (
                f"{name}  {counts.states:,} states, {counts.edges:,} edges, {speed:,.0f} states/s"
            )
            total = None if known is None else known.edges
            bars.update(bar, description=text, completed=counts.edges, total=total)

        session.heard = heard
        return session.run(saved)


def earlier_run(path: Path | None) -> Saved | None:
    """How far an earlier run came, None without one; FormatError if the file holds none."""
    found = None if path is None else read_state(path, "explore")
    return None if found is None else Saved.from_json(*found)


def list_configurations(configurations: tuple[Configuration, ...]) -> None:
    """Names, what they are about, and how large they are."""
    recorded = recorded_counts()
    console = output_console()
    for each in configurations:
        counts = recorded.get(each.name)
        size = "" if counts is None else f" ({counts.states:,} states, {counts.edges:,} edges)"
        deep = ", only with --deep" if each.is_deep else ""
        console.print(f"{each.name}: {each.summary}{size}{deep}", markup=False, soft_wrap=True)


def show(report: Report, session: Session, console: Console) -> None:
    """A table of counts, and every violation in words."""
    table = Table(box=None, pad_edge=False)
    table.add_column("configuration")
    for column in ("states", "edges", "refused", "errors", "depth", "edges/s"):
        table.add_column(column, justify="right")
    table.add_column("")
    for result in report.results:
        counts = result.counts
        speed = counts.edges / result.seconds if result.seconds else 0.0
        remark = "" if result.is_complete else "not all of it"
        if result.as_recorded is False:
            remark = "not as recorded"
        figures = (counts.states, counts.edges, counts.refused, counts.errors, counts.depth, speed)
        table.add_row(result.configuration.name, *(f"{figure:,.0f}" for figure in figures), remark)
    console.print(table)
    for violation in report.violations:
        for line in trace.lines(violation, session.pair):
            console.print(line, markup=False, soft_wrap=True)
    for name, lacking in report.left_out.items():
        console.print(f"left out: {name}, for lack of {', '.join(lacking)}", markup=False)
    states = sum(result.counts.states for result in report.results)
    edges = sum(result.counts.edges for result in report.results)
    found = f"{len(report.violations)} rules broken" if report.violations else "no rule is broken"
    if report.interrupted:
        found += "; interrupted"
    console.print(f"{states:,} states, {edges:,} edges: {found}", markup=False)


def write_records(report: Report, session: Session, folder: Path, console: Console) -> None:
    """A record for each violation, and the command that replays it."""
    impl = session.pair.subject_name or session.pair.oracle_name
    for violation in report.violations:
        path, reason = trace.write_record(violation, session.pair, folder)
        line = f"no record: {reason}"
        if path is not None:
            line = f"kvspec golden {shlex.quote(str(path))} --impl {shlex.quote(impl)}"
        console.print(line, markup=False, soft_wrap=True)


def to_json(report: Report, session: Session) -> dict[str, object]:
    """The report for machines."""
    return {
        **session.about,
        "interrupted": report.interrupted,
        "left_out": {name: list(lacking) for name, lacking in report.left_out.items()},
        "results": [result.to_json() for result in report.results],
        "violations": [trace.to_json(each, session.pair) for each in report.violations],
    }
