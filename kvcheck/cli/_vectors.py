"""`kvspec explore --vectors DIR`: every edge of small graphs, written as records."""

from __future__ import annotations

from pathlib import Path

from rich.table import Table

from kvcheck.cli._support import fail, output_console, progress_bars
from kvcheck.explore.search import Pair
from kvcheck.explore.vectors.sets import SETS, VectorSet
from kvcheck.explore.vectors.write import write_sets
from kvcheck.records.manifest import Manifest


def write_vectors(folder: Path, names: tuple[str, ...], pair: Pair) -> None:
    """Write these sets, else all, with a bar on stderr where that is a terminal; show a table."""
    if pair.subject is not None:
        fail("--vectors writes what the oracle answers: give --oracle, not --impl")
    chosen = choose(names)
    with progress_bars() as bars:
        bar = bars.add_task("exploring", total=len(chosen))
        order = {each.configuration.name: number for number, each in enumerate(chosen)}

        def heard(name: str, share: float) -> None:
            bars.update(bar, description=name, completed=order[name] + share)

        written = write_sets(folder, pair.oracle, chosen, heard)
    show(written)


def choose(names: tuple[str, ...]) -> tuple[VectorSet, ...]:
    """The sets named, else all."""
    known = {each.configuration.name: each for each in SETS}
    for name in names:
        if name not in known:
            fail(f"no set of vectors {name!r}; there are: {', '.join(known)}")
    return tuple(known[name] for name in dict.fromkeys(names)) if names else SETS


def show(written: tuple[Manifest, ...]) -> None:
    """How large each set is."""
    table = Table(box=None, pad_edge=False)
    table.add_column("vectors")
    for column in ("states", "edges", "walks", "operations"):
        table.add_column(column, justify="right")
    for each in written:
        figures = (each.states, each.edges, len(each.walks), each.operations)
        table.add_row(each.name, *(f"{figure:,}" for figure in figures))
    output_console().print(table)
