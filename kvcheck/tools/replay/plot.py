"""The picture of a replay: usage, hit rate, and what left the cache, over the steps.

Needs matplotlib (extra `plot`), imported when a picture is made. Drawn without its global state
and without a date, so equal input gives equal bytes.
"""

from __future__ import annotations

import io
import textwrap
import warnings
from collections.abc import Sequence
from itertools import accumulate
from math import nan
from typing import TYPE_CHECKING, Any

from kvcheck.tools.replay import beside
from kvcheck.tools.replay.series import Bucket, Series

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

FORMATS: tuple[str, ...] = ("png", "svg")
_COLOURS = ("#0072b2", "#d55e00", "#009e73", "#8e4585", "#e69f00", "#666666")
_MOVES = ("evictions", "preemptions")
_WINDOWS_PER_RUN = 20
_BARS = 200


def plot_bytes(replays: Sequence[tuple[Series, dict[str, Any]]], *, image_format: str) -> bytes:
    """Return the chart as a PNG or SVG file, of one or several replays with their reports."""
    import matplotlib

    buffer = io.BytesIO()
    # The salt gives an SVG's elements the same names each time; a `$` in a file name does not start
    # a formula.
    with (
        matplotlib.rc_context(
            {
                "svg.hashsalt": "kvspec-replay",
                "text.parse_math": False,
                "font.size": 9.0,
                "axes.titlesize": 9.0,
            }
        ),
        warnings.catch_warnings(),
    ):
        warnings.filterwarnings("ignore", message="Glyph .* missing from")  # in a file name
        figure = _figure(replays)
        metadata = {"Date": None} if image_format == "svg" else {}
        figure.savefig(buffer, format=image_format, dpi=150, metadata=metadata)
    return buffer.getvalue()


def _figure(replays: Sequence[tuple[Series, dict[str, Any]]]) -> Figure:
    """Draw four panels over one axis of steps, with a colour for each trace."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(10, 8), layout="constrained")
    panels = figure.subplots(4, 1, sharex=True, gridspec_kw={"height_ratios": (3, 3, 1.6, 1.6)})
    usage, hits, *moved = panels
    contents = [content for _, content in replays]
    figure.suptitle(_wrapped(beside.heading(contents)), fontsize=10, x=0.01, ha="left")
    for number, name in enumerate(beside.names(contents)):
        (series, content), colour = replays[number], _COLOURS[number % len(_COLOURS)]
        _draw_usage(usage, series.buckets, name, colour)
        _draw_hit_rate(hits, series, f"{name} ({content['hit_rate']:.2%})", colour)
        repeats = content["trace_repeat_rate"]
        hits.axhline(repeats, color=colour, linestyle="--", linewidth=0.8, alpha=0.7)
        for axes, what in zip(moved, _MOVES, strict=True):
            edges, heights = _moves(series, what)
            label = f"{name} ({content[what]:,})"
            if heights:
                axes.stairs(heights, edges, color=colour, fill=len(replays) == 1, label=label)
    usage.set_ylim(0, 1.02)
    usage.set_title("Usage of the pool (pale: the highest)", loc="left")
    usage.set_ylabel("blocks in use")
    hits.set_ylim(bottom=0)
    shown = "thin: of late; dashed: repeated ids in the trace"
    hits.set_title(f"Hit rate of first admissions since the start ({shown})", loc="left")
    hits.set_ylabel("hit / queried tokens")
    for axes, what in zip(moved, _MOVES, strict=True):
        axes.set_title(what.capitalize(), loc="left")
        axes.set_ylim(bottom=0)
        axes.set_ylabel("per step")
    _finish(panels, max(sum(each.steps for each in series.buckets) for series, _ in replays))
    return figure


def _finish(panels: Sequence[Axes], num_steps: int) -> None:
    """Apply what all panels share."""
    from matplotlib.ticker import PercentFormatter

    panels[-1].set_xlabel("step of the logical clock")
    panels[-1].set_xlim(0, max(num_steps, 1))
    for axes in panels[:2]:
        axes.yaxis.set_major_formatter(PercentFormatter(xmax=1.0, decimals=0))
    for axes in panels:
        axes.grid(True, color="#dddddd", linewidth=0.6)
        axes.set_axisbelow(True)
        axes.spines[["top", "right"]].set_visible(False)
        axes.xaxis.set_major_formatter("{x:,.0f}")
        if axes.get_legend_handles_labels()[0]:
            axes.legend(frameon=False, fontsize=8, loc="best")


def _draw_usage(axes: Axes, buckets: list[Bucket], name: str, colour: str) -> None:
    ends = _ends(buckets)
    mean = [bucket.usage_sum / bucket.steps for bucket in buckets]
    highest = [bucket.usage_max for bucket in buckets]
    axes.fill_between(ends, highest, step="pre", color=colour, alpha=0.2, lw=0)
    axes.plot(ends, mean, color=colour, linewidth=1.0, label=name)


def _draw_hit_rate(axes: Axes, series: Series, label: str, colour: str) -> None:
    ends = _ends(series.buckets)
    axes.plot(ends, cumulative_hit_rate(series), color=colour, linewidth=1.6, label=label)
    axes.plot(ends, windowed_hit_rate(series)[0], color=colour, linewidth=0.6, alpha=0.6)


def _moves(series: Series, what: str) -> tuple[list[int], list[float]]:
    """Return edges and heights of at most _BARS bars: single buckets would be too many spikes."""
    buckets = series.buckets
    width = -(-len(buckets) // _BARS) or 1
    edges = [0]
    heights = []
    for start in range(0, len(buckets), width):
        part = buckets[start : start + width]
        steps = sum(bucket.steps for bucket in part)
        edges.append(edges[-1] + steps)
        heights.append(sum(getattr(bucket, what) for bucket in part) / steps)
    return edges, heights


def cumulative_hit_rate(series: Series) -> list[float]:
    """Hit rate from the first step to the end of each bucket; NaN before the first look-up."""
    return [hit / queried if queried else nan for hit, queried in _looked_up(series)[1:]]


def windowed_hit_rate(series: Series) -> tuple[list[float], int]:
    """Hit rate over a window that ends with each bucket, and the window's length in steps.

    NaN where nothing was looked up. The window is a twentieth of the run.
    """
    width = max(1, len(series.buckets) // _WINDOWS_PER_RUN)
    sums = _looked_up(series)
    pairs = zip([sums[0]] * (width - 1) + sums, sums[1:], strict=False)
    rates = [
        (hit - was) / (asked - had) if asked > had else nan for (was, had), (hit, asked) in pairs
    ]
    return rates, width * series.steps_per_bucket


def _looked_up(series: Series) -> list[tuple[int, int]]:
    """Return the tokens hit and looked up before the first bucket, and to the end of each."""
    hits = accumulate((each.hit_tokens for each in series.buckets), initial=0)
    queried = accumulate((each.queried_tokens for each in series.buckets), initial=0)
    return list(zip(hits, queried, strict=True))


def _ends(buckets: list[Bucket]) -> list[int]:
    """Return the steps up to the end of each bucket."""
    return list(accumulate(bucket.steps for bucket in buckets))


def _wrapped(text: str) -> str:
    return "\n".join(textwrap.wrap(text, 110))
