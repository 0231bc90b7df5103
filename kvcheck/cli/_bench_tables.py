"""The tables of `kvspec bench`, and the lines below them, from its document."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from rich import box
from rich.console import Console
from rich.table import Table

from kvcheck.cli._support import say
from kvcheck.tools.bench.calls import HASH
from kvcheck.tools.bench.script import HASH_FUNCTION

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
    """Yield a table for each phase, and one for the replay."""
    found: dict[str, list[tuple[str, Document]]] = {}
    for row in document["measurements"]:
        phase, case = row["phase"], row["case"]
        if case["kind"] == "replay":
            found.setdefault(f"{case['label']}: ms per replay", []).append((phase, row))
        elif phase != HASH or not case["hit_percent"]:  # hashing knows no hits
            title = f"{phase}, ns per {row['unit']}"
            found.setdefault(title, []).append((case["label"], row))
    for title, rows in found.items():
        table = Table(title=title, title_justify="left", title_style="bold", box=box.SIMPLE_HEAD)
        table.add_column("case")
        table.add_column("implementation", overflow="fold")
        for name in ("time", "quartiles", "ratio", "quartiles"):
            table.add_column(name, justify="right", no_wrap=True)
        for label, row in rows:
            for line in _lines(document["baseline"], row):
                table.add_row(label, *line)
                label = ""
            table.add_section()
        yield table


def _lines(baseline: str, row: Document) -> Iterator[list[str]]:
    unit = 1e6 if row["unit"] == "replay" else 1.0
    for name, result in row["results"].items():
        ratio = result["ratio"] if name != baseline else None
        yield [name, *_cells(result["ns_per_unit"], unit), *(_cells(ratio, 1.0) if ratio else ())]


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
    for each in document["implementations"]:
        yield f"{each['name']}: {each['implements']} {each['version']}; {each['includes']}"
    for each in document["left_out"]:
        yield f"left out: {each['name']}, {each['case']['label']} ({each['seconds']:.0f} s or more)"
    here = document["machine"]
    load = "" if here["load_1min"] is None else f", load {here['load_1min']}"
    yield f"{here['processor']}, {here['cores']} cores{load}, {here['python']}"
