"""`kvspec whatif`: what traces would hit with other pools, and what is possible at best."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Any

import click
from rich.table import Table

from kvcheck.cli._support import (
    MOST_BLOCKS,
    fail,
    output_console,
    progress_bars,
    require_extra,
    write_json,
    write_whole,
)
from kvcheck.tools.replay.source import open_trace
from kvcheck.tools.replay.trace import select
from kvcheck.tools.replay.units import Units, units_of
from kvcheck.tools.replay.whatif import Curve, curve, sizes_between

_FORMATS = ("png", "svg")


@click.command()
@click.argument("traces", nargs=-1, required=True, metavar="TRACE…")
@click.option(
    "--block-size",
    "block_sizes",
    type=click.IntRange(min=1),
    multiple=True,
    default=(512,),
    show_default=True,
    help="In tokens; a divisor or a multiple of 512. More than once: a curve for each.",
)
@click.option(
    "--sizes",
    type=click.IntRange(1, 1000),
    default=20,
    show_default=True,
    help="Pools, evenly in ratios between the largest request and all of the trace.",
)
@click.option(
    "--num-blocks",
    "chosen",
    type=click.IntRange(2, MOST_BLOCKS),
    multiple=True,
    help="These pools instead, the null block included.",
)
@click.option("--limit", type=click.IntRange(min=1), metavar="N", help="Only the first N requests.")
@click.option("--json", "json_path", metavar="F", help="Write the curves to F; - is stdout.")
@click.option("--plot", "plot_path", metavar="F", help="Draw the curves: F.png or F.svg.")
def command(
    traces: tuple[str, ...],
    block_sizes: tuple[int, ...],
    sizes: int,
    chosen: tuple[int, ...],
    limit: int | None,
    json_path: str | None,
    plot_path: str | None,
) -> None:
    """Show what traces would hit with pools of other sizes.

    Each TRACE is as in `kvspec replay`. For each pool: the hit rate of the rules, and of the best
    order of eviction there is, which knows what comes (Belady); and once that of a pool that never
    evicts. One request runs at a time; spec/replay.md says what that leaves out.

    Exit code 0: done. 2: it could not run.
    """
    if plot_path is not None:
        if Path(plot_path).suffix.lower().lstrip(".") not in _FORMATS:
            fail(f"--plot {plot_path}: the name must end in .png or .svg")
        require_extra("matplotlib", "plot")
    curves = []
    with progress_bars() as bar:
        for trace in traces:
            for block_size in block_sizes:
                units = _read(trace, block_size, limit)
                pools = sorted(set(chosen)) or sizes_between(units, sizes)
                if pools[0] < units.smallest_pool:
                    problem = f"the largest request of {trace} needs {units.smallest_pool} blocks"
                    fail(f"--num-blocks {pools[0]}: {problem} of {block_size} tokens")
                task = bar.add_task(f"{trace}, {block_size}", total=len(pools) + 1)
                step = _Step(bar, task)
                curves.append(curve(trace, units, pools, on_step=step))
    if plot_path is not None:
        from kvcheck.tools.replay.whatif_plot import plot_bytes

        image_format = Path(plot_path).suffix.lower().lstrip(".")
        write_whole(Path(plot_path), plot_bytes(curves, image_format=image_format))
    if json_path is not None:
        write_json({"curves": [asdict(each) for each in curves]}, Path(json_path))
    if json_path != "-":
        for each in curves:
            _show(each)


class _Step:
    """Moves a bar on."""

    def __init__(self, bar: Any, task: Any) -> None:
        self.bar, self.task = bar, task

    def __call__(self) -> None:
        self.bar.advance(self.task)


def _read(trace: str, block_size: int, limit: int | None) -> Units:
    with open_trace(trace, endless=limit is not None) as source:
        units = units_of(select(source, limit=limit), block_size)
    if not units.requests:
        fail(f"{trace}: holds no requests")
    return units


def _show(found: Curve) -> None:
    title = f"{found.trace}: {found.num_requests:,} requests, blocks of {found.block_size} tokens"
    table = Table(title=title, title_justify="left", box=None)
    for name in ("blocks", "tokens", "hit rate", "best possible", "of what an endless pool hits"):
        table.add_column(name, justify="right")
    for point in found.points:
        share = point.lru / found.infinite if found.infinite else 1.0
        table.add_row(
            f"{point.num_blocks:,}",
            f"{(point.num_blocks - 1) * found.block_size:,}",
            f"{point.lru:.2%}",
            f"{point.optimal:.2%}",
            f"{share:.1%}",
        )
    table.add_row("endless", "", f"{found.infinite:.2%}", f"{found.infinite:.2%}", "100.0%")
    output_console().print(table)
