"""The report of a replay as one page that needs nothing else: no network, no script."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from html import escape
from typing import Any

from kvcheck.tools.replay import beside
from kvcheck.tools.replay.report import note_lines
from kvcheck.view.page import data_file, document

_STYLE = """
table { width: auto; } th, td { overflow-wrap: normal; }
td.number, .beside td { text-align: right; white-space: nowrap;
                        font-variant-numeric: tabular-nums; }
th { color: var(--dim); } .beside tr:first-child th { text-align: right; color: var(--text); }
tr.total td, tr.total th { font-weight: 600; color: var(--text); }
.bars { width: 14rem; min-width: 9rem; padding-top: 0.55rem; }
.bar { height: 0.8rem; min-width: 1px; background: #3a8fc4; }
.bar.down { background: #d55e00; } .bar.up { background: #009e73; }
.meaning { color: var(--dim); min-width: 14rem; } .wide { overflow-x: auto; }
.picture { background: #fff; border-radius: 6px; }
svg { display: block; width: 100%; height: auto; }
@media (prefers-color-scheme: dark) { .picture { filter: invert(0.9) hue-rotate(180deg); } }
@media (max-width: 40rem) { .bars { display: none; }
  th, td { padding-right: 0.6rem; } th { white-space: normal; }
  .steps { display: block; } .steps tr { display: flex; flex-wrap: wrap; }
  .steps th { flex: 1; } .steps th, .steps td { border: none; }
  .steps tr { border-top: 1px solid var(--line); } .steps .number { width: 5rem; }
  .steps .meaning { flex: 0 0 100%; padding-top: 0; } .steps tr:first-child { display: none; } }
"""


def report_html(contents: Sequence[dict[str, Any]], plot_svg: bytes) -> str:
    """Return the page: the numbers of each trace, the chart, and each explanation as bars."""
    title = "Replay of " + ", ".join(beside.names(contents))
    style = data_file("check.css") + _STYLE
    return document(title, _body(contents, plot_svg), style=style)


def _body(contents: Sequence[dict[str, Any]], plot_svg: bytes) -> Iterator[str]:
    yield "<h1>Prefix-cache replay</h1>"
    yield f"<p>{escape(beside.heading(contents))}</p>"
    names = beside.names(contents)
    yield f"<h2>Numbers</h2>{_table(beside.numbers(contents), names)}"
    yield f"<h2>Over time</h2>{_picture(plot_svg)}"
    yield "<h2>From the trace’s repeat rate to the hit rate</h2>"
    for name, content in zip(names, contents, strict=True):
        yield f"<details open><summary>{escape(name)}</summary><div>"
        yield from (f"<p>{escape(line.strip())}</p>" for line in note_lines(content))
        yield f"{_waterfall(content)}</div></details>"
    yield f"<h2>Options</h2>{_table(_options(contents[0]))}"
    yield f"<h2>Versions</h2>{_table(sorted(contents[0]['versions'].items()))}"


def _options(content: dict[str, Any]) -> list[tuple[str, str]]:
    return [(name, str(value)) for name, value in content["options"].items()]


def _picture(plot_svg: bytes) -> str:
    svg = plot_svg.decode("utf-8")
    svg = svg[svg.index("<svg") :]  # a page must not contain an XML declaration
    return f'<div class="picture">{svg}</div>'


def _table(rows: Sequence[tuple[str, ...]], names: Sequence[str] = ()) -> str:
    """Return labels and values; with names, a column for each."""
    head = "".join(f'<th scope="col">{escape(name)}</th>' for name in names)
    lines = (
        f"<tr><th>{escape(label)}</th>{''.join(f'<td>{escape(cell)}</td>' for cell in cells)}</tr>"
        for label, *cells in rows
    )
    head = f"<tr><th></th>{head}</tr>" if names else ""
    kind = ' class="beside"' if names else ""
    return f'<div class="wide"><table{kind}>{head}{"".join(lines)}</table></div>'


def _waterfall(content: dict[str, Any]) -> str:
    """Return one row per item: how the rate changes, as a bar from the rate before to that
    after.
    """
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
    header = (
        "<tr><th></th><th>points</th><th class=bars>0 … 100 %</th><th>tokens</th><th></th></tr>"
    )
    return f'<div class="wide"><table class="steps">{header}{"".join(rows)}</table></div>'


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
