"""The report of a replay as one page that needs nothing else: no network, no script."""

from __future__ import annotations

from html import escape
from typing import Any

from kvcheck.tools.replay.report import heading, note_lines, number_rows, seconds_rows

_STYLE = """
body { font: 15px/1.5 system-ui, sans-serif; color: #1b1b1b; background: #fff;
       max-width: 62rem; margin: 2rem auto; padding: 0 1rem; }
h1 { font-size: 1.4rem; margin-bottom: 0.2rem; }
h2 { font-size: 1.1rem; margin: 2rem 0 0.5rem; }
table { border-collapse: collapse; }
th, td { text-align: left; padding: 0.2rem 1rem 0.2rem 0; vertical-align: top;
         font-weight: normal; }
td.number { text-align: right; font-variant-numeric: tabular-nums; white-space: nowrap; }
th { color: #555; white-space: nowrap; }
tr.total td, tr.total th { font-weight: 600; color: #1b1b1b; }
.bars { width: 14rem; min-width: 9rem; padding-top: 0.55rem; }
.bar { height: 0.8rem; min-width: 1px; background: #0072b2; }
.bar.down { background: #d55e00; } .bar.up { background: #009e73; }
.meaning { color: #555; min-width: 14rem; } svg { max-width: 100%; height: auto; }
"""


def report_html(content: dict[str, Any], plot_svg: bytes) -> str:
    """The page: the numbers, the explanation as bars, the picture."""
    svg = plot_svg.decode("utf-8")
    svg = svg[svg.index("<svg") :]  # inside a page there is no XML declaration
    return "\n".join(
        [
            "<!DOCTYPE html>",
            '<html lang="en"><head><meta charset="utf-8">',
            '<meta name="viewport" content="width=device-width, initial-scale=1">',
            f"<title>Replay of {escape(content['trace'])}</title>",
            f"<style>{_STYLE}</style></head><body>",
            "<h1>Prefix-cache replay</h1>",
            f"<p>{escape(heading(content))}</p>",
            *(f"<p>{escape(line.strip())}</p>" for line in note_lines(content)),
            "<h2>Numbers</h2>",
            _table(number_rows(content)),
            "<h2>From the trace’s repeat rate to the hit rate</h2>",
            _waterfall(content),
            "<h2>Over time</h2>",
            svg,
            "<h2>Options</h2>",
            _table([(name, str(value)) for name, value in content["options"].items()]),
            "<h2>Seconds by phase</h2>",
            _table(seconds_rows(content)),
            "<h2>Versions</h2>",
            _table(sorted(content["versions"].items())),
            "</body></html>",
            "",
        ]
    )


def _table(rows: list[tuple[str, str]]) -> str:
    cells = (f"<tr><th>{escape(label)}</th><td>{escape(value)}</td></tr>" for label, value in rows)
    return "<table>" + "".join(cells) + "</table>"


def _waterfall(content: dict[str, Any]) -> str:
    """One row per item: how the rate moves, as a bar between the rate before and after."""
    rate = content["trace_repeat_rate"]
    rows = [_bar_row("trace repeat rate", rate, 0.0, rate, "", "", kind="total")]
    for item in content["explanation"]["items"]:
        change = item["rate_change"]
        if change == 0:
            continue
        tokens = "" if item["tokens"] is None else f"{item['tokens']:+,}"
        low, high = min(rate, rate + change), max(rate, rate + change)
        name = item["name"].replace("_", " ")
        kind = "up" if change > 0 else "down"
        rows.append(_bar_row(name, change, low, high, tokens, item["meaning"], kind=kind))
        rate += change
    hit_rate = content["hit_rate"]
    rows.append(_bar_row("hit rate", hit_rate, 0.0, hit_rate, "", "", kind="total"))
    residual = content["explanation"]["residual"]
    rows.append(_bar_row("unexplained", residual, 0.0, 0.0, "", "", kind="rest"))
    header = "<tr><th></th><th>points</th><th>0 … 100 %</th><th>tokens</th><th></th></tr>"
    return "<table>" + header + "".join(rows) + "</table>"


def _bar_row(
    name: str, value: float, low: float, high: float, tokens: str, meaning: str, *, kind: str
) -> str:
    number = f"{value:.3%}" if kind in ("total", "rest") else f"{100 * value:+.3f}"
    bar = ""
    if high > low:
        place = f"margin-left:{100 * max(low, 0.0):.3f}%;width:{100 * (high - low):.3f}%"
        bar = f'<div class="bar {kind}" style="{place}"></div>'
    return (
        f'<tr class="{kind}"><th>{escape(name)}</th><td class="number">{number}</td>'
        f'<td class="bars">{bar}</td><td class="number">{tokens}</td>'
        f'<td class="meaning">{escape(meaning)}</td></tr>'
    )
