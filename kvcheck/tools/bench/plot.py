"""The picture of a run: what a block costs as the pool grows.

Needs matplotlib (extra `plot`), imported when a picture is made. Drawn from the JSON document of a
run, without global state and without a date, so equal input gives equal bytes.
"""

from __future__ import annotations

import io
from typing import TYPE_CHECKING, Any

from kvcheck.tools.bench.scenarios import ADMIT, ALLOCATE, FREE, LOOK_UP

if TYPE_CHECKING:
    from matplotlib.artist import Artist
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

PHASES = (LOOK_UP, ALLOCATE, ADMIT, FREE)
COLORS = ("#d55e00", "#0072b2", "#009e73", "#8e4585", "#e69f00", "#666666")


def plot_bytes(document: dict[str, Any], *, image_format: str) -> bytes:
    import matplotlib

    buffer = io.BytesIO()
    # The salt gives an SVG's elements the same names each time; a `$` in a name does not start a
    # formula.
    with matplotlib.rc_context(
        {"svg.hashsalt": "kvspec-bench", "text.parse_math": False, "font.size": 9.0}
    ):
        metadata = {"Date": None} if image_format == "svg" else {}
        _figure(document).savefig(buffer, format=image_format, dpi=150, metadata=metadata)
    return buffer.getvalue()


def _figure(document: dict[str, Any]) -> Figure:
    """Draw one panel per phase, with logarithmic axes."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(9, 6.5), layout="constrained")
    panels = figure.subplots(2, 2, sharex=True)
    named: dict[str, Artist] = {}
    for axes, phase in zip(panels.flat, PHASES, strict=True):
        _draw(axes, document, phase)
        handles, labels = axes.get_legend_handles_labels()
        named |= dict(zip(labels, handles, strict=True))
    for axes in panels[-1]:
        axes.set_xlabel("blocks of the pool")
    figure.legend(
        list(named.values()), list(named), loc="outside lower center", ncols=4, frameon=False
    )
    title = "Cost per block as the pool grows; full of cached blocks, half of each prompt cached"
    figure.suptitle(title, fontsize=10, x=0.01, ha="left")
    return figure


def _draw(axes: Axes, document: dict[str, Any], phase: str) -> None:
    from matplotlib.ticker import LogLocator, NullFormatter

    names = [each["name"] for each in document["implementations"]]
    for color, name in zip(COLORS, names, strict=False):
        points = points_of(document, phase, name)
        if not points:
            continue
        sizes, low, middle, high = zip(*points, strict=True)
        style = "--" if name.endswith(", batched") else "-"
        axes.plot(sizes, middle, style, color=color, marker="o", markersize=3, label=name)
        axes.fill_between(sizes, low, high, color=color, alpha=0.2, lw=0)
    axes.set_xscale("log", base=4)
    axes.set_yscale("log")
    axes.xaxis.set_major_formatter(_size)
    axes.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
    axes.yaxis.set_major_formatter("{x:,.0f}")
    axes.yaxis.set_minor_formatter(NullFormatter())
    axes.set_title(phase, loc="left")
    axes.set_ylabel("ns per block")
    axes.grid(True, color="#dddddd", linewidth=0.6)
    axes.set_axisbelow(True)
    axes.spines[["top", "right"]].set_visible(False)


def points_of(
    document: dict[str, Any], phase: str, name: str
) -> list[tuple[int, float, float, float]]:
    """Return (pool in blocks, quartile, median, quartile) in ns per block, pools ascending."""
    points = []
    for found in document["measurements"]:
        case, result = found["case"], found["results"].get(name)
        if found["phase"] != phase or result is None or not case.get("cold"):
            continue
        # A look-up is per request; what it reads are the blocks of the hit, and a miss.
        blocks = case["prompt_tokens"] // document["block_size_tokens"]
        per = blocks * case["hit_percent"] // 100 + 1 if found["unit"] == "request" else 1
        times = result["ns_per_unit"]
        points.append((case["num_blocks"], *(times[each] / per for each in ("q1", "median", "q3"))))
    return sorted(points)


def _size(value: float, _position: float) -> str:
    for unit, size in (("M", 2**20), ("k", 2**10)):
        if value >= size:
            return f"{value / size:g}{unit}"
    return f"{value:g}"
