"""`kvspec bench`: how fast implementations are, phase by phase, side by side."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from pathlib import Path
from types import MappingProxyType

import click
from rich import box
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table

from kvspec.bench.cases import HASH_FUNCTION, DecodeCase, Plan, full_plan, quick_plan
from kvspec.bench.measure import Measured, Measurement, Subject, measure, turns
from kvspec.bench.report import PHASES, Report, Spread, machine, ratios, unit
from kvspec.bench.scenarios import HASH
from kvspec.cli._support import fail, output_console, progress_console, write_json
from kvspec.discovery import find_implementation, installed_implementations

PEERS: Mapping[str, str] = MappingProxyType({"vllm": "kvspec.adapters.vllm:implementation"})

TABLE_WIDTH = 100
"""Tables are this wide at least: what a narrow terminal wraps can be read, what is cut cannot."""


@click.command()
@click.option(
    "--impl",
    "names",
    multiple=True,
    metavar="IMPL",
    help="A name such as kvref, package.module:factory, or cmd:PROGRAM ARGS…; may be repeated.",
)
@click.option(
    "--peer", type=click.Choice(list(PEERS)), help="Compare with this project's own manager."
)
@click.option(
    "--json",
    "json_path",
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="Write every round's times, and the facts; - for stdout.",
)
@click.option("--quick", is_flag=True, help="Fewer and smaller cases: seconds, not minutes.")
def command(names: tuple[str, ...], peer: str | None, json_path: Path | None, quick: bool) -> None:
    """Measure how fast implementations are, phase by phase, side by side.

    Each phase is timed alone: hash a prompt, look it up, allocate its blocks (which caches them),
    free them; append a token, allocate its slot. All implementations do the same work in every
    round, in random order, without audits; a ratio is taken within a round, to the peer or else to
    the first IMPL. Without --impl, all installed implementations. Their answers are compared.

    Exit code 0: measured, 2: could not run, or the implementations answered differently.
    """
    if json_path is not None and not json_path.parent.is_dir():
        fail(f"--json {json_path}: there is no folder {json_path.parent}")
    subjects = _subjects(names, peer)
    plan = quick_plan() if quick else full_plan()
    started = datetime.now(UTC)
    measured = _measure(plan, subjects)
    report = Report(subjects, measured, plan.num_rounds, _command(names, peer, quick), started)
    if json_path is not None:
        write_json(report.to_json(), json_path)
    show(report, progress_console() if str(json_path) == "-" else output_console())


def _command(names: tuple[str, ...], peer: str | None, quick: bool) -> str:
    """The command line that measures the same again."""
    impls = [part for name in names for part in ("--impl", name)]
    peers = ["--peer", peer] if peer is not None else []
    return shlex.join(["kvspec", "bench", *impls, *peers, *(["--quick"] if quick else [])])


def _subjects(names: tuple[str, ...], peer: str | None) -> tuple[Subject, ...]:
    """The peer first, if any; each once."""
    chosen = {peer: PEERS[peer]} if peer is not None else {}
    for name in names or installed_implementations():
        if name in chosen:
            fail(f"--impl {name}: given twice")
        chosen[name] = name
    subjects = tuple(Subject(name, find_implementation(path)) for name, path in chosen.items())
    for subject in subjects:
        if HASH_FUNCTION not in subject.implementation.capabilities.hash_functions:
            fail(f"{subject.name} has no hash function {HASH_FUNCTION}, which all have to use here")
    return subjects


def _measure(plan: Plan, subjects: tuple[Subject, ...]) -> Measured:
    """Run the plan, with a bar on stderr where that is a terminal."""
    console = progress_console()
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeRemainingColumn(),
    )
    # The bar is drawn between turns: a thread that draws would take time from what is timed.
    with Progress(
        *columns,
        console=console,
        transient=True,
        auto_refresh=False,
        disable=not console.is_terminal,
    ) as progress:
        bar = progress.add_task("preparing", total=turns(plan, len(subjects)))

        def on_turn(label: str) -> None:
            progress.update(bar, advance=1, description=label, refresh=True)

        return measure(plan, subjects, on_turn=on_turn)


def show(report: Report, console: Console) -> None:
    """Print the tables, and below them what their numbers mean."""
    if console.width < TABLE_WIDTH:
        console.width = TABLE_WIDTH
    for table in _tables(report):
        console.print(table)
    for line in _facts(report):
        console.print(line, markup=False, soft_wrap=True)


def _tables(report: Report) -> Iterator[Table]:
    found = [each for each in report.measured.measurements if not _is_repeated(each)]
    for phase in PHASES:
        rows = [each for each in found if each.phase == phase and not _is_cold(each)]
        if rows:
            yield _table(report, f"{phase}, ns per {unit(phase)}", rows)
    grown = [each for each in found if _is_cold(each)]
    if grown:
        title = "as the pool grows, cold: ns per block, of a look-up per request"
        yield _table(report, title, sorted(grown, key=lambda each: PHASES.index(each.phase)))


def _is_cold(found: Measurement) -> bool:
    return not isinstance(found.case, DecodeCase) and found.case.cold


def _is_repeated(found: Measurement) -> bool:
    """Hashing reads no pool and knows no hit: once per length is enough."""
    case = found.case
    return found.phase == HASH and not isinstance(case, DecodeCase) and case.hit_percent > 0


def _table(report: Report, title: str, rows: list[Measurement]) -> Table:
    table = Table(title=title, title_justify="left", title_style="bold", box=box.SIMPLE_HEAD)
    table.add_column("case")
    table.add_column("implementation", overflow="fold")
    for name, style in (("ns", ""), ("quartiles", "dim"), ("ratio", "cyan"), ("quartiles", "dim")):
        table.add_column(name, justify="right", style=style, no_wrap=True)
    for row in rows:
        label = _case(row)
        for subject in report.subjects:
            spent = Spread.of(row.rounds_ns[subject.name])
            cells = [_short(spent.median), _quartiles(spent)]
            if subject.name != report.baseline:
                ratio = Spread.of(ratios(row, report.baseline, subject.name))
                cells += [_short(ratio.median), _quartiles(ratio)]
            table.add_row(label, subject.name, *cells)
            label = ""
        table.add_section()
    return table


def _case(found: Measurement) -> str:
    """What sets a row apart from the others of its table."""
    case = found.case
    if isinstance(case, DecodeCase):
        return f"{case.num_requests} running"
    if case.cold:
        return f"{found.phase}, {case.num_blocks:,} blocks"
    cached = "" if found.phase == HASH else f", {case.hit_percent}% hit"
    return f"{case.num_requests} × {case.prompt_tokens:,} tokens{cached}"


def _quartiles(spread: Spread) -> str:
    return f"{_short(spread.q1)} … {_short(spread.q3)}"


def _short(value: float) -> str:
    """Three digits that count."""
    if value >= 100:
        return f"{value:,.0f}"
    return f"{value:.1f}" if value >= 10 else f"{value:.2f}"


def _facts(report: Report) -> Iterator[str]:
    facts = machine()
    yield f"median (quartiles) of {report.num_rounds} rounds; garbage collector off while timing"
    if len(report.subjects) > 1:
        yield f"ratio: time of {report.baseline} / time of this one, same round; over 1 is faster"
    yield f"blocks of 16 tokens, {HASH_FUNCTION}; single calls, audits off; answers were equal"
    yield (
        f"in every part that is timed: {report.measured.timer_ns:.0f} ns for clock and loop;"
        " a part is the phase in a round, in a step when decoding, of one prompt when allocating"
    )
    for subject in report.subjects:
        said = subject.implementation.capabilities
        includes = report.measured.includes[subject.name]
        yield f"{subject.name}: {said.name} {said.version}; {includes}"
    load = "" if facts["load_1min"] is None else f", load {facts['load_1min']}"
    yield f"{facts['processor']}, {facts['cores']} cores{load}, {facts['python']}"
