"""The picture of what-if curves: hit rates over the size of the pool. Needs matplotlib."""

from __future__ import annotations

import io
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from kvcheck.tools.replay.whatif import Curve

_COLOURS = ("#0072b2", "#d55e00", "#009e73", "#8e4585", "#e69f00", "#666666")


def plot_bytes(curves: Sequence[Curve], *, image_format: str) -> bytes:
    """Return a PNG or SVG; equal curves give equal bytes."""
    import matplotlib
    from matplotlib.figure import Figure
    from matplotlib.ticker import NullLocator

    buffer = io.BytesIO()
    with matplotlib.rc_context({"svg.hashsalt": "kvspec-whatif", "text.parse_math": False}):
        figure = Figure(figsize=(9, 5), layout="constrained")
        axes = figure.subplots()
        for number, found in enumerate(curves):
            colour = _COLOURS[number % len(_COLOURS)]
            name = f"{Path(found.trace).name}, blocks of {found.block_size}"
            tokens = [(point.num_blocks - 1) * found.block_size for point in found.points]
            lru = [point.lru for point in found.points]
            best = [point.optimal for point in found.points]
            axes.plot(tokens, lru, color=colour, marker="o", markersize=3.5, label=name)
            for other, name in enumerate(found.costs, number + 1):
                rates = [point.policies[name] for point in found.points]
                tone = _COLOURS[other % len(_COLOURS)]
                axes.plot(tokens, rates, color=tone, linewidth=1.2, label=name)
            axes.plot(tokens, best, color=colour, linestyle="--", label="best possible (Belady)")
            axes.axhline(found.infinite, color=colour, linestyle=":", label="endless pool")
        axes.set_xscale("log")
        axes.set_ylim(bottom=0)
        axes.set_xlabel("tokens that the pool holds")
        axes.set_ylabel("tokens hit, of those of all prompts")
        axes.xaxis.set_major_formatter("{x:,.0f}")  # powers would be formulas
        axes.xaxis.set_major_locator(_ticks(curves))
        axes.xaxis.set_minor_locator(NullLocator())
        axes.yaxis.set_major_formatter(lambda rate, _: f"{rate:.0%}")
        axes.grid(color="#dddddd", linewidth=0.6)
        axes.spines[["top", "right"]].set_visible(False)
        axes.legend(frameon=False, fontsize=8)
        metadata = {"Date": None} if image_format == "svg" else {}
        figure.savefig(buffer, format=image_format, dpi=150, metadata=metadata)
    return buffer.getvalue()


def _ticks(curves: Sequence[Curve]) -> Any:
    """Return where the axis of tokens has labels: at 1, 2 and 5 times powers, or closer."""
    from matplotlib.ticker import LogLocator, MaxNLocator

    sizes = [found.tokens(point.num_blocks) for found in curves for point in found.points]
    ratio = max(sizes) / min(sizes)
    if ratio < 10:
        return MaxNLocator(6)
    return LogLocator(subs=(1, 2, 5) if ratio < 500 else (1,))
