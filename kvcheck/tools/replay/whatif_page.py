"""Show what-if curves on a self-contained page: point at a pool to read its hit rate.

`data/whatif.js` draws the curves and shows the chosen pool; the tables below them work without it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from html import escape
from typing import Any

from kvcheck.tools.replay.whatif import ENOUGH_PERCENT, Curve
from kvcheck.tools.replay.whatif_text import Memory, costs_line, enough_line, heading, names, table
from kvcheck.view.page import data_file, document, embedded


def whatif_page(curves: Sequence[Curve], memory: Memory | None = None) -> str:
    """Return the whole page; `memory`: what the tokens of a pool take."""
    style = data_file("check.css") + data_file("whatif.css")
    return document("What pools of other sizes would hit", _body(curves, memory), style=style)


def _body(curves: Sequence[Curve], memory: Memory | None) -> Iterator[str]:
    yield "<h1>What pools of other sizes would hit</h1>"
    headings = [heading(*each) for each in zip(curves, names(curves), strict=True)]
    for found, line in zip(curves, headings, strict=True):
        yield f'<p class="dim">{escape(line)}</p>'
        yield from (f"<p>Note: {escape(note)}</p>" for note in found.notes)
    if memory is not None:
        yield f"<p>{escape(memory.line)}</p>"
    yield "<noscript><p>The curves need JavaScript; nothing is loaded from elsewhere. The numbers"
    yield "are below.</p></noscript>"
    yield _CHART
    yield "<h2>The lines</h2>"
    yield f"<dl>{_MEANINGS}</dl>"
    yield "<h2>Numbers</h2>"
    for found, line in zip(curves, headings, strict=True):
        is_open = " open" if len(curves) == 1 else ""
        yield f"<details{is_open}><summary>{escape(line)}</summary><div>"
        lines = [enough_line(found, memory), *([costs_line(found)] if found.costs else [])]
        yield from (f"<p>{escape(line)}</p>" for line in lines)
        yield f"{_table(found, memory)}</div></details>"
    content = embedded(_content(curves, memory))
    yield f'<script type="application/json" id="curves">{content}</script>'
    yield f"<script>{data_file('whatif.js')}</script>"


_CHART = """
<div id="tool" hidden>
  <div class="legend" id="legend"></div>
  <div id="chart"><svg id="lines" role="img"
    aria-label="Hit rate over the size of the pool; the tables below say the same in numbers"></svg>
    <div id="tip" hidden></div></div>
  <label id="choice"><span>Pool</span> <input type="range" id="pool" min="0" step="1">
    <output id="size"></output></label>
  <div id="answers" aria-live="polite"></div>
</div>
"""

_MEANINGS = """
<dt>hit rate</dt><dd>Prompt tokens found in the cache, of all prompt tokens, with the rules' order
of eviction: least recently released first.</dd>
<dt>best possible</dt><dd>The same with the order of eviction that knows what comes (Belady): no
order hits more with so many blocks.</dd>
<dt>endless pool</dt><dd>Nothing is ever evicted: all that the trace repeats and a cache of full
blocks can hit.</dd>
<dt>what is left out</dt><dd>One request runs at a time. With many at once, running requests hold
blocks and end in another order; kvspec replay runs them so, with one size.</dd>
"""


def _content(curves: Sequence[Curve], memory: Memory | None) -> dict[str, Any]:
    """Return the data that the script draws."""
    sizes = {found.block_size for found in curves}
    return {
        "enough_percent": ENOUGH_PERCENT,
        "token_bytes": 0 if memory is None else memory.bytes_per_token,
        "curves": [
            {
                "name": name if len(sizes) == 1 else f"{name}, blocks of {found.block_size}",
                "block_size": found.block_size,
                "infinite": found.infinite,
                "enough_blocks": found.enough_blocks,
                "points": [
                    (each.num_blocks, each.lru, each.optimal, each.policies)
                    for each in found.points
                ],
            }
            for name, found in zip(names(curves), curves, strict=True)
        ],
    }


def _table(found: Curve, memory: Memory | None) -> str:
    columns, cells = table(found, memory)
    head = "".join(f'<th scope="col">{escape(name)}</th>' for name in columns)
    lines = ("".join(f'<td class="number">{escape(cell)}</td>' for cell in line) for line in cells)
    body = "".join(f"<tr>{line}</tr>" for line in lines)
    return f'<div class="wide"><table class="numbers"><tr>{head}</tr>{body}</table></div>'
