"""The tables of `kvspec bench`, and the lines below them."""

from __future__ import annotations

from collections.abc import Iterator

from rich import box
from rich.console import Console
from rich.table import Table

from kvcheck.cli._support import say
from kvcheck.tools.bench.cases import HASH_FUNCTION, DecodeCase, PromptCase, ReplayCase
from kvcheck.tools.bench.measure import Measurement
from kvcheck.tools.bench.replay import MANAGER, REPLAY_PHASES
from kvcheck.tools.bench.report import (
    PHASES,
    Report,
    Spread,
    case_facts,
    machine,
    ratios,
    unit,
)
from kvcheck.tools.bench.scenarios import HASH

TABLE_WIDTH = 112
"""Minimum width of tables: wrapped lines on a narrow terminal are readable, cut columns are not."""


def show(report: Report, console: Console) -> None:
    """Print the tables, and below them what their numbers mean."""
    if console.width < TABLE_WIDTH:
        console.width = TABLE_WIDTH
    for table in _tables(report):
        console.print(table)
    say(*_facts(report), console=console)


def _tables(report: Report) -> Iterator[Table]:
    found = [each for each in report.measured.measurements if not _is_repeated(each)]
    for phase in PHASES:
        rows = [each for each in found if each.phase == phase and not _is_cold(each)]
        if rows:
            yield _table(report, f"{phase}, ns per {unit(phase)}", rows)
    grown = [each for each in found if _is_cold(each)]
    if grown:
        title = "cold, by pool size: ns per block; look-up: ns per request"
        yield _table(report, title, sorted(grown, key=lambda each: PHASES.index(each.phase)))
    replayed = [each for each in found if each.phase in REPLAY_PHASES]
    if replayed:
        rows = sorted(replayed, key=lambda each: REPLAY_PHASES.index(each.phase))
        yield _table(report, f"{rows[0].case.label}: ms per replay", rows, ns_per_unit=1e6)
    if report.pools:
        yield _pool_table(report)


def _is_cold(found: Measurement) -> bool:
    return isinstance(found.case, PromptCase) and found.case.cold


def _is_repeated(found: Measurement) -> bool:
    """Return whether a row repeats another: hashing depends on the length alone, not on hits."""
    case = found.case
    return found.phase == HASH and isinstance(case, PromptCase) and case.hit_percent > 0


def _table(
    report: Report, title: str, rows: list[Measurement], *, ns_per_unit: float = 1.0
) -> Table:
    table = _empty_table(title)
    table.add_column("case")
    table.add_column("implementation", overflow="fold")
    shown = "ns" if ns_per_unit == 1.0 else "ms"
    for name, style in (
        (shown, ""),
        ("quartiles", "dim"),
        ("ratio", "cyan"),
        ("quartiles", "dim"),
    ):
        table.add_column(name, justify="right", style=style, no_wrap=True)
    for row in rows:
        label = _case(row)
        for contestant in report.contestants:
            times = row.rounds_ns.get(contestant.name)
            if times is None:
                continue
            spent = Spread.of([each / ns_per_unit for each in times])
            cells = [_short(spent.median), _quartiles(spent)]
            compared = ratios(row, report.baseline, contestant.name)
            if contestant.name != report.baseline and compared is not None:
                ratio = Spread.of(compared)
                cells += [_short(ratio.median), _quartiles(ratio)]
            table.add_row(label, contestant.name, *cells)
            label = ""
        table.add_section()
    return table


def _pool_table(report: Report) -> Table:
    table = _empty_table("pools: cost per block; full: after every block was cached once")
    for name in ("pool", "implementation"):
        table.add_column(name, overflow="fold")
    for name in ("made in ms", "bytes", "bytes, full", "objects", "objects, full"):
        table.add_column(name, justify="right", no_wrap=True)
    for size in sorted({each.num_blocks for each in report.pools}):
        label = f"{size:,} blocks"
        for cost in (each for each in report.pools if each.num_blocks == size):
            numbers = (cost.bytes_, cost.full_bytes, cost.objects, cost.full_objects)
            cells = ("" if each is None else _short(each / size) for each in numbers)
            table.add_row(label, cost.name, _short(cost.create_s * 1e3), *cells)
            label = ""
        table.add_section()
    return table


def _empty_table(title: str) -> Table:
    return Table(title=title, title_justify="left", title_style="bold", box=box.SIMPLE_HEAD)


def _case(found: Measurement) -> str:
    """Return the label that distinguishes a row within its table."""
    case = found.case
    if isinstance(case, ReplayCase):
        return found.phase.removeprefix("replay: ")
    if isinstance(case, DecodeCase):
        return f"{case.num_requests:,} running"
    if case.cold:
        return f"{found.phase}, {case.num_blocks:,} blocks"
    cached = "" if found.phase == HASH else f", {case.hit_percent}% hit"
    return f"{case.num_requests} × {case.prompt_tokens:,} tokens{cached}"


def _quartiles(spread: Spread) -> str:
    return f"{_short(spread.q1)} … {_short(spread.q3)}"


def _short(value: float) -> str:
    """Round to three significant digits."""
    if value >= 100:
        return f"{value:,.0f}"
    return f"{value:.1f}" if value >= 10 else f"{value:.2f}"


def _facts(report: Report) -> Iterator[str]:
    facts = machine()
    yield f"median (quartiles) of {report.num_rounds} rounds; garbage collector off while timing"
    if len(report.contestants) > 1:
        yield (
            f"ratio: time of {report.baseline} / time of the row, in the same round;"
            " above 1 is faster"
        )
    yield f"blocks of 16 tokens, {HASH_FUNCTION}; audits off; all results were equal"
    yield (
        f"each timed part includes {report.measured.timer_ns:.0f} ns for clock and loop; a part is"
        " the phase in one round, in one step when decoding, of one prompt when allocating"
    )
    yield from _replay_facts(report)
    if report.pools:
        yield (
            "pools: resident memory and Python allocator blocks that the pool added;"
            " empty where filling takes too long"
        )
    for contestant in report.contestants:
        said = contestant.subject.implementation.capabilities
        includes = report.measured.includes.get(contestant.name, "not part of any round")
        yield f"{contestant.name}: {said.name} {said.version}; {includes}"
    for each in report.measured.left_out:
        yield f"left out: {each.name}, {each.case.label} ({each.seconds:.0f} s)"
    load = "" if facts["load_1min"] is None else f", load {facts['load_1min']}"
    yield f"{facts['processor']}, {facts['cores']} cores{load}, {facts['python']}"


def _replay_facts(report: Report) -> Iterator[str]:
    for each in report.measured.measurements:
        if each.phase == MANAGER:
            facts = case_facts(each.case)
            yield (
                f"replay: {facts['steps']:,} steps, {facts['admissions']:,} admissions"
                f" (and {facts['refused_admissions']:,} refused attempts),"
                f" {facts['preemptions']:,} preemptions,"
                f" {facts['allocations_of_running']:,} allocations of running requests,"
                f" {facts['generated_tokens']:,} generated tokens,"
                f" a pool of {facts['options']['num_blocks']:,} blocks"
            )
