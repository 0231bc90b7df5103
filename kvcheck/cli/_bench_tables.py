"""The tables of `kvspec bench`, and the lines below them, from its document."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from rich import box
from rich.console import Console
from rich.table import Table

from kvcheck.cli._support import say
from kvcheck.tools.bench.cases import HASH_FUNCTION
from kvcheck.tools.bench.scenarios import HASH

TABLE_WIDTH = 112
"""Minimum width of tables: wrapped lines on a narrow terminal are readable, cut columns are not."""

Document = Mapping[str, Any]


def show(document: Document, console: Console) -> None:
    if console.width < TABLE_WIDTH:
        console.width = TABLE_WIDTH
    for table in _tables(document):
        console.print(table)
    say(*_facts(document), console=console)


def _tables(document: Document) -> Iterator[Table]:
    grown, replayed = [], []
    for phase in document["phases"]:
        found = [each for each in document["measurements"] if each["phase"] == phase]
        replayed += [each for each in found if each["case"]["kind"] == "replay"]
        # Hashing depends on the length alone, not on hits.
        found = [each for each in found if phase != HASH or not each["case"].get("hit_percent")]
        grown += [each for each in found if each["case"].get("cold")]
        rows = [each for each in found if each not in grown and each not in replayed]
        if rows:
            yield _table(document, f"{phase}, ns per {rows[0]['unit']}", rows)
    if grown:
        yield _table(document, "cold, by pool size: ns per block; look-up: ns per request", grown)
    if replayed:
        case = replayed[0]["case"]
        title = f"{case['trace']}, {case['num_requests']} requests: ms per replay"
        yield _table(document, title, replayed, ns_per_unit=1e6)
    if document["pools"]:
        yield _pool_table(document["pools"])


def _table(
    document: Document, title: str, rows: Sequence[Document], *, ns_per_unit: float = 1.0
) -> Table:
    table = _empty_table(title)
    table.add_column("case")
    table.add_column("implementation", overflow="fold")
    unit = "ns" if ns_per_unit == 1.0 else "ms"
    for name, style in ((unit, ""), ("quartiles", "dim"), ("ratio", "cyan"), ("quartiles", "dim")):
        table.add_column(name, justify="right", style=style, no_wrap=True)
    for row in rows:
        label = _case(row)
        for name, result in row["results"].items():
            cells = _cells(result["ns_per_unit"], ns_per_unit)
            if name != document["baseline"] and result["ratio"] is not None:
                cells += _cells(result["ratio"], 1.0)
            table.add_row(label, name, *cells)
            label = ""
        table.add_section()
    return table


def _pool_table(pools: Sequence[Document]) -> Table:
    table = _empty_table("pools: cost per block; full: after every block was cached once")
    for name in ("pool", "implementation"):
        table.add_column(name, overflow="fold")
    for name in ("made in ms", "bytes", "bytes, full", "objects", "objects, full"):
        table.add_column(name, justify="right", no_wrap=True)
    for size in sorted({each["num_blocks"] for each in pools}):
        label = f"{size:,} blocks"
        for cost in (each for each in pools if each["num_blocks"] == size):
            numbers = (cost[key] for key in ("bytes_", "full_bytes", "objects", "full_objects"))
            cells = ("" if each is None else _short(each / size) for each in numbers)
            table.add_row(label, cost["name"], _short(cost["create_s"] * 1e3), *cells)
            label = ""
        table.add_section()
    return table


def _empty_table(title: str) -> Table:
    return Table(title=title, title_justify="left", title_style="bold", box=box.SIMPLE_HEAD)


def _case(found: Document) -> str:
    """Return the label that distinguishes a row within its table."""
    case, phase = found["case"], found["phase"]
    if case["kind"] == "replay":
        return str(phase).removeprefix("replay: ")
    if case["kind"] == "decode":
        return f"{case['num_requests']:,} running"
    if case["cold"]:
        return f"{phase}, {case['num_blocks']:,} blocks"
    cached = "" if phase == HASH else f", {case['hit_percent']}% hit"
    return f"{case['num_requests']} × {case['prompt_tokens']:,} tokens{cached}"


def _cells(spread: Mapping[str, float], unit: float) -> list[str]:
    low, middle, high = (_short(spread[key] / unit) for key in ("q1", "median", "q3"))
    return [middle, f"{low} … {high}"]


def _short(value: float) -> str:
    """Round to three significant digits."""
    if value >= 100:
        return f"{value:,.0f}"
    return f"{value:.1f}" if value >= 10 else f"{value:.2f}"


def _facts(document: Document) -> Iterator[str]:
    yield f"median (quartiles) of {document['rounds']} rounds; garbage collector off while timing"
    if len(document["implementations"]) > 1:
        yield (
            f"ratio: time of {document['baseline']} / time of the row, in the same round;"
            " above 1 is faster"
        )
    yield f"blocks of 16 tokens, {HASH_FUNCTION}; audits off; all results were equal"
    yield (
        f"each timed part includes {document['timer_ns']:.0f} ns for clock and loop; a part is"
        " the phase in one round, in one step when decoding, of one prompt when allocating"
    )
    cases = [each["case"] for each in document["measurements"]]
    for case in [each for each in cases if each["kind"] == "replay"][:1]:
        yield (
            f"replay: {case['steps']:,} steps, {case['admissions']:,} admissions"
            f" (and {case['refused_admissions']:,} refused attempts),"
            f" {case['preemptions']:,} preemptions,"
            f" {case['allocations_of_running']:,} allocations of running requests,"
            f" {case['generated_tokens']:,} generated tokens,"
            f" a pool of {case['options']['num_blocks']:,} blocks"
        )
    if document["pools"]:
        yield (
            "pools: resident memory and Python allocator blocks that the pool added;"
            " empty where filling takes too long"
        )
    for each in document["implementations"]:
        includes = each["includes"] or "not part of any round"
        yield f"{each['name']}: {each['implements']} {each['version']}; {includes}"
    for each in document["left_out"]:
        case = ", ".join(f"{key} {value}" for key, value in each["case"].items())
        yield f"left out: {each['name']}, {case} ({each['seconds']:.0f} s)"
    here = document["machine"]
    load = "" if here["load_1min"] is None else f", load {here['load_1min']}"
    yield f"{here['processor']}, {here['cores']} cores{load}, {here['python']}"
