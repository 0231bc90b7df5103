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
from kvcheck.tools.replay.report import heading
from kvcheck.tools.replay.series import Bucket, Series

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

FORMATS: tuple[str, ...] = ("png", "svg")
_BLUE, _ORANGE, _GREEN, _RED, _GREY = "#0072b2", "#e69f00", "#009e73", "#d55e00", "#666666"
_PURPLE = "#8e4585"
_COLOURS = (_BLUE, _RED, _GREEN, _PURPLE, _ORANGE, _GREY)
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
        figure = _figure(*replays[0]) if len(replays) == 1 else _figure_of_all(replays)
        metadata = {"Date": None} if image_format == "svg" else {}
        figure.savefig(buffer, format=image_format, dpi=150, metadata=metadata)
    return buffer.getvalue()


def _figure(series: Series, content: dict[str, Any]) -> Figure:
    """Draw four panels over one axis of steps."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(10, 8), layout="constrained")
    panels = figure.subplots(4, 1, sharex=True, gridspec_kw={"height_ratios": (3, 3, 1.6, 1.6)})
    usage, hits, evictions, preemptions = panels
    figure.suptitle(_wrapped(heading(content)), fontsize=10, x=0.01, ha="left")
    ends = _ends(series.buckets)
    _draw_usage(usage, ends, series.buckets)
    _draw_hit_rate(hits, ends, series, content)
    _draw_moves(evictions, series, "evictions", color=_RED)
    _draw_moves(preemptions, series, "preemptions", color=_PURPLE)
    _finish(panels, max(ends, default=1))
    return figure


def _figure_of_all(replays: Sequence[tuple[Series, dict[str, Any]]]) -> Figure:
    """Draw usage, hit rate and evictions, with a curve for each trace."""
    from matplotlib.figure import Figure

    contents = [content for _, content in replays]
    figure = Figure(figsize=(10, 8), layout="constrained")
    panels = figure.subplots(3, 1, sharex=True, gridspec_kw={"height_ratios": (3, 3, 2)})
    usage, hits, evictions = panels
    figure.suptitle(_wrapped(beside.heading(contents)), fontsize=10, x=0.01, ha="left")
    for number, name in enumerate(beside.names(contents)):
        series, content = replays[number]
        ends, colour = _ends(series.buckets), _COLOURS[number % len(_COLOURS)]
        mean = [each.usage_sum / each.steps for each in series.buckets]
        usage.plot(ends, mean, color=colour, linewidth=1.0, label=name)
        label = f"{name} ({content['hit_rate']:.2%})"
        hits.plot(ends, cumulative_hit_rate(series), color=colour, linewidth=1.6, label=label)
        hits.plot(ends, windowed_hit_rate(series)[0], color=colour, linewidth=0.6, alpha=0.6)
        edges, heights = _moves(series, "evictions")
        evictions.stairs(heights, edges, color=colour, label=f"{name} ({content['evictions']:,})")
    usage.set_ylim(0, 1.02)
    usage.set_title("Usage of the pool", loc="left")
    usage.set_ylabel("blocks in use")
    hits.set_ylim(bottom=0)
    hits.set_title("Hit rate of first admissions since start (thin: of late)", loc="left")
    hits.set_ylabel("hit / queried tokens")
    evictions.set_title("Evictions", loc="left")
    evictions.set_ylabel("per step")
    for axes in (usage, hits):
        axes.yaxis.set_major_formatter(_percent())
    for axes in panels:
        axes.legend(frameon=False, fontsize=8, loc="best")
    _finish(panels, max(sum(each.steps for each in series.buckets) for series, _ in replays))
    return figure


def _finish(panels: Sequence[Axes], num_steps: int) -> None:
    """Apply what all panels share."""
    panels[-1].set_xlabel("step of the logical clock")
    panels[-1].set_xlim(0, num_steps)
    for axes in panels:
        axes.grid(True, color="#dddddd", linewidth=0.6)
        axes.set_axisbelow(True)
        axes.spines[["top", "right"]].set_visible(False)
        axes.xaxis.set_major_formatter("{x:,.0f}")


def _draw_usage(axes: Axes, ends: list[int], buckets: list[Bucket]) -> None:
    mean = [bucket.usage_sum / bucket.steps for bucket in buckets]
    highest = [bucket.usage_max for bucket in buckets]
    axes.fill_between(ends, highest, step="pre", color=_BLUE, alpha=0.25, lw=0, label="highest")
    axes.plot(ends, mean, color=_BLUE, linewidth=1.0, label="mean")
    axes.set_ylim(0, 1.02)
    axes.yaxis.set_major_formatter(_percent())
    axes.set_ylabel("blocks in use")
    axes.set_title("Usage of the pool", loc="left")
    _legend(axes)


def _draw_hit_rate(axes: Axes, ends: list[int], series: Series, content: dict[str, Any]) -> None:
    windowed, window_steps = windowed_hit_rate(series)
    axes.plot(
        ends,
        windowed,
        color=_ORANGE,
        linewidth=0.9,
        label=f"over {window_steps:,} steps",
    )
    cumulative = cumulative_hit_rate(series)
    axes.plot(ends, cumulative, color=_GREEN, linewidth=1.6, label="since start")
    axes.axhline(
        content["trace_repeat_rate"],
        color=_GREY,
        linestyle="--",
        linewidth=1.0,
        label=f"repeated ids in the trace ({content['trace_repeat_rate']:.1%})",
    )
    shown = [rate for rate in (*windowed, *cumulative) if rate == rate]  # NaN is not a rate
    axes.set_ylim(0, min(1.02, 1.15 * max((*shown, content["trace_repeat_rate"])) or 1.02))
    axes.yaxis.set_major_formatter(_percent())
    axes.set_ylabel("hit / queried tokens")
    axes.set_title(f"Hit rate of first admissions ({content['hit_rate']:.2%})", loc="left")
    _legend(axes)


def _draw_moves(axes: Axes, series: Series, what: str, *, color: str) -> None:
    """Draw the number per step, as bars."""
    edges, heights = _moves(series, what)
    if heights:
        axes.stairs(heights, edges, fill=True, color=color, alpha=0.8)
    total = sum(getattr(bucket, what) for bucket in series.buckets)
    axes.set_ylim(0, 1.1 * max(heights, default=0) or 1)
    axes.set_ylabel("per step")
    axes.set_title(f"{what.capitalize()} ({total:,})", loc="left")


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


def _percent() -> Any:
    from matplotlib.ticker import PercentFormatter

    return PercentFormatter(xmax=1.0, decimals=0)


def _legend(axes: Axes) -> None:
    axes.legend(
        loc="lower right", bbox_to_anchor=(1.0, 1.0), ncols=3, frameon=False, borderaxespad=0.1
    )


def _wrapped(text: str) -> str:
    return "\n".join(textwrap.wrap(text, 110))
