"""Charts of the benchmarks, drawn from the tables of bench/RESULTS.md while the site is built.

A table is found by its place, `<!-- begin NAME -->`, and by its first heading. Its cells are read
as printed, so no figure is stored twice.
"""

from __future__ import annotations

import io
import re
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING

from sphinx.application import Sphinx

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

PAGE, FOLDER = "bench/RESULTS", "plots"
COLORS = ("#d55e00", "#0072b2", "#009e73", "#8e4585", "#e69f00", "#666666")
NUMBER = r"([\d.,]+)"
SPREAD = re.compile(rf"{NUMBER} \({NUMBER} … {NUMBER}\)")
INCH_PER_ROW, WIDTH_INCHES = 0.23, 4.9

Spread = tuple[float, float, float]
"""Median, lower quartile, upper quartile."""


class NoTableError(LookupError):
    """bench/RESULTS.md does not have what a picture is drawn from."""


@dataclass(frozen=True)
class Plot:
    """A picture of some columns of a table.

    `curves` names the picture's kind: a curve over the number with which each row begins, both
    axes logarithmic; otherwise a row in the picture for each row of the table.
    """

    place: str
    table: str
    columns: tuple[str, ...]
    axis: str
    title: str
    curves: bool = False

    @property
    def file(self) -> str:
        """Name of the chart's file."""
        return f"{self.place}-{re.sub('[^a-z]+', '-', self.table.partition(',')[0])}.svg"


STEP = "decode step, ns per request"
ADMIT = "admit, ns per block"
AGAIN = "hash + look up, ns per request"
STOCK = "time of the stock scheduler / on kvfast"


def _beside(place: str, peer: str, table: str, title: str, *, curves: bool = False) -> Plot:
    return Plot(
        place, table, (peer, "kvfast", "kvfast, batched"), table.rpartition(", ")[2], title, curves
    )


PLOTS = (
    _beside("vllm", "vllm", STEP, "Decode step, vLLM 0.24.0", curves=True),
    _beside("vllm", "vllm", ADMIT, "Admission, vLLM 0.24.0"),
    _beside("vllm-0.33", "vllm", STEP, "Decode step, vLLM 0.33.0", curves=True),
    _beside("vllm-0.33", "vllm", ADMIT, "Admission, vLLM 0.33.0"),
    Plot("engines", "load", ("schedule: ratio", "update: ratio"), STOCK, "vLLM's scheduler"),
    _beside("sglang", "sglang", AGAIN, "SGLang"),
    _beside("nano-vllm", "nano-vllm", AGAIN, "nano-vllm"),
)


def connect(app: Sphinx) -> None:
    """Show the pictures above their tables, and write them."""
    app.connect("source-read", show)
    app.connect("build-finished", write)


def show(app: Sphinx, page: str, source: list[str]) -> None:
    """Insert the charts before the place of each table."""
    if page == PAGE:
        for place in dict.fromkeys(plot.place for plot in PLOTS):
            begin = f"<!-- begin {place} -->\n"
            shown = "".join(map(_html, (plot for plot in PLOTS if plot.place == place)))
            source[0] = source[0].replace(begin, f'<div class="plots">{shown}</div>\n\n{begin}', 1)


def _html(plot: Plot) -> str:
    alt = escape(f"{plot.title}: {', '.join(plot.columns)}; {plot.axis}")
    return (
        f'<figure><img src="../{FOLDER}/{plot.file}" alt="{alt}" loading="lazy"><figcaption>Median'
        f" and quartiles of the first table below that begins with <em>{escape(plot.table)}</em>."
        "</figcaption></figure>"
    )


def write(app: Sphinx, error: Exception | None) -> None:
    """Write one file for each."""
    if error is None:
        text = Path(app.srcdir, f"{PAGE}.md").read_text("utf-8")
        folder = Path(app.outdir, FOLDER)
        folder.mkdir(exist_ok=True)
        for plot in PLOTS:
            (folder / plot.file).write_bytes(svg(plot, text))


def read(plot: Plot, text: str) -> dict[str, list[Spread]]:
    """Return median and quartiles by row and column. Raise NoTableError without the table."""
    _, _, rest = text.partition(f"<!-- begin {plot.place} -->")
    block = rest.partition(f"<!-- end {plot.place} -->")[0]
    _, head, rows = block.partition(f"\n| {plot.table} |")
    if not head:
        raise NoTableError(
            f"{PAGE}.md has no table {plot.table!r} between the marks {plot.place!r}"
        )
    lines = (head[1:] + rows).partition("\n\n")[0].splitlines()
    names, _, *table = (_cells(line) for line in lines)
    at = [_column(name, names) for name in plot.columns]
    return {cells[0]: [_spread(cells[i], plot) for i in at] for cells in table}


def _cells(line: str) -> list[str]:
    return [cell.strip() for cell in line.strip("| ").split("|")]


def _column(name: str, names: Sequence[str]) -> int:
    """Find a column: `update: ratio` is the first column `ratio` after `update`."""
    at = 0
    for part in name.split(": "):
        if part not in names[at:]:
            raise NoTableError(f"no column {name!r} in {PAGE}.md; there are {', '.join(names)}")
        at = names.index(part, at)
    return at


def _spread(cell: str, plot: Plot) -> Spread:
    found = SPREAD.fullmatch(cell)
    if found is None:
        raise NoTableError(f"in the table {plot.table!r}, {cell!r} is no median with quartiles")
    middle, low, high = (float(each.replace(",", "")) for each in found.groups())
    return middle, low, high


def svg(plot: Plot, text: str) -> bytes:
    """Return the chart: equal bytes for equal figures."""
    import matplotlib

    buffer = io.BytesIO()
    with matplotlib.rc_context(
        {"svg.hashsalt": plot.file, "text.parse_math": False, "font.size": 9.0}
    ):
        figure = _curves(plot, read(plot, text)) if plot.curves else _rows(plot, read(plot, text))
        figure.savefig(buffer, format="svg", metadata={"Date": None})
    return buffer.getvalue()


def _curves(plot: Plot, rows: dict[str, list[Spread]]) -> Figure:
    figure, axes = _panel(plot, height=3.3)
    over = [int(row.split()[0].replace(",", "")) for row in rows]
    for at, (name, color) in enumerate(zip(plot.columns, COLORS, strict=False)):
        middle, low, high = zip(*(row[at] for row in rows.values()), strict=True)
        style = "--" if name.endswith(", batched") else "-"
        axes.plot(over, middle, style, color=color, marker="o", markersize=3.5, label=name)
        axes.fill_between(over, low, high, color=color, alpha=0.2, lw=0)
    axes.set_xscale("log", base=4)
    axes.set_xticks(over, [f"{each:,}" for each in over])
    axes.set_yscale("log")
    axes.yaxis.set_major_formatter("{x:,.0f}")
    axes.set_xlabel("running requests")
    axes.set_ylabel(plot.axis)
    axes.grid(True, color="#dddddd", linewidth=0.6)
    _legend(figure, axes)
    return figure


def _rows(plot: Plot, rows: dict[str, list[Spread]]) -> Figure:
    figure, axes = _panel(plot, height=1.2 + INCH_PER_ROW * len(rows))
    for at, (name, color) in enumerate(zip(plot.columns, COLORS, strict=False)):
        middle, low, high = zip(*(row[at] for row in rows.values()), strict=True)
        beside = (at - (len(plot.columns) - 1) / 2) * 0.2
        y = [row + beside for row in range(len(rows))]
        axes.hlines(y, low, high, color=color, linewidth=1.6, alpha=0.6)
        axes.plot(middle, y, "o", color=color, markersize=3.5, label=name.partition(":")[0])
    axes.set_xscale("log")
    axes.xaxis.set_major_formatter(_plain)
    axes.xaxis.set_minor_formatter(_few)
    axes.set_yticks(range(len(rows)), list(rows))
    axes.set_ylim(len(rows) - 0.5, -0.5)
    axes.set_xlabel(plot.axis)
    if "ratio" in plot.columns[0]:
        axes.axvline(1, color="#888888", linewidth=0.9)
    axes.grid(True, axis="x", which="both", color="#dddddd", linewidth=0.6)
    axes.tick_params(axis="y", length=0)
    _legend(figure, axes)
    return figure


def _plain(value: float, _position: float | None = None) -> str:
    return f"{value:,.0f}" if value >= 1 else f"{value:g}"


def _few(value: float, position: float | None = None) -> str:
    """Label only 2 and 5 between powers of ten."""
    return _plain(value, position) if f"{value:e}"[0] in "25" else ""


def _panel(plot: Plot, *, height: float) -> tuple[Figure, Axes]:
    from matplotlib.figure import Figure

    figure = Figure(figsize=(WIDTH_INCHES, height), layout="constrained")
    axes = figure.subplots()
    axes.set_axisbelow(True)
    axes.spines[["top", "right"]].set_visible(False)
    figure.suptitle(plot.title, fontsize=10, x=0.01, ha="left")
    return figure, axes


def _legend(figure: Figure, axes: Axes) -> None:
    handles, labels = axes.get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=len(labels), frameon=False)
