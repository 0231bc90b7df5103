"""docs/KILLS.md: the mistakes that each layer of checks kills, and what that costs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence

from kvcheck.mistakes import Mistake
from tests.kills.layers import LAYERS
from tests.kills.matrix import ALIVE, KILLED, LIMIT, Cell, by_mistake
from tests.mistakes import in_both, mistakes, of_kvfast
from tests.source import ROOT

PAGE = ROOT / "docs" / "KILLS.md"

HEAD = """\
# The kill matrix

Which layers of checks find which of {mistakes} mistakes made on purpose. A mistake is a few changed
lines of the reference, mostly like bugs that engines had ([kvref/mistakes](../kvref/mistakes)), of
kvfast at its sizes ([kvfast/mistakes](../kvfast/mistakes)), or of both at once
([tests/kills/in_both.diff](../tests/kills/in_both.diff)). The directed checks were written by
people who knew these mistakes. Try one: `kvspec check mistake:HandsOutBackwards`.
"""

FOOT = """\
*about*: mistakes of the kinds that the layer is about; *shown*: those that it was run on; *killed*:
those that it found; *alone*: no other layer that was tried found it; *cut off*: took longer than
the limit; *s*: seconds of the processor for all of the layer. A mistake is shown to a layer in a
process of its own, until the first check that finds something. Most cells were run when the mistake
or the layer was new; a commit shows an eighth of the mistakes to the directed suite, a night all.

The numbers are those of [tests/kills/cells.json](../tests/kills/cells.json), which
`python -m tests.kills` adds to. kvfast's host tier, fleets, the device and the formal model have
mistakes of their own, each of which the tests of its part must find.
"""


def everybody() -> tuple[Mistake, ...]:
    return (*mistakes(), *of_kvfast(), *(of_kvref for of_kvref, _ in in_both()))


def text(mistakes: Sequence[Mistake], known: Mapping[tuple[str, str], Cell]) -> str:
    cells = by_mistake(known.values())
    killers = {
        name: [cell.layer for cell in layers.values() if cell.outcome == KILLED]
        for name, layers in cells.items()
    }
    lines = [
        HEAD.format(mistakes=len(mistakes)),
        *_by_layer(mistakes, known, killers),
        "",
        FOOT,
        *_without_killer(mistakes, killers),
        "",
        *_in_both(mistakes, killers),
        "",
        *_alone(cells, killers),
    ]
    return "\n".join(lines) + "\n"


def _by_layer(
    mistakes: Sequence[Mistake],
    known: Mapping[tuple[str, str], Cell],
    killers: Mapping[str, Sequence[str]],
) -> Iterator[str]:
    alone = Counter(layers[0] for layers in killers.values() if len(layers) == 1)
    heads = "layer, what, about, shown, killed, alone, cut off, s/kill, s/survivor, s"
    yield f"| {heads.replace(', ', ' | ')} |"
    yield "|---|---|---:|---:|---:|---:|---:|---:|---:|---:|"
    for name, layer in LAYERS.items():
        cells = [cell for (_, of), cell in known.items() if of == name]
        killed = [cell for cell in cells if cell.outcome == KILLED]
        row = (
            name,
            layer.about,
            str(sum(map(layer.is_about, mistakes))),
            str(len(cells)),
            f"{len(killed)} ({100 * len(killed) / max(len(cells), 1):.0f} %)",
            str(alone[name]),
            str(sum(cell.outcome == LIMIT for cell in cells)),
            _mean(killed),
            _mean([cell for cell in cells if cell.outcome == ALIVE]),
            f"{sum(cell.cpu_s for cell in cells):,.0f}",
        )
        yield f"| {' | '.join(row)} |"


def _mean(cells: Sequence[Cell]) -> str:
    return f"{sum(cell.cpu_s for cell in cells) / len(cells):.2f}" if cells else "–"


def _without_killer(
    mistakes: Sequence[Mistake], killers: Mapping[str, Sequence[str]]
) -> Iterator[str]:
    alive = [m for m in mistakes if not killers.get(m.id) and not m.equivalent]
    yield "## Found by no layer\n"
    yield from [f"- `{m.id}` ({', '.join(m.rules)}): {m.about}" for m in alive] or ["None."]
    yield "\n## Equivalent: no check can find it\n"
    yield from [f"- `{m.id}`: {m.equivalent}" for m in mistakes if m.equivalent] or ["None."]


def _in_both(mistakes: Sequence[Mistake], killers: Mapping[str, Sequence[str]]) -> Iterator[str]:
    """List the mistakes that comparing kvref with kvfast can't show, and what shows each."""
    yield "## In both twins at once\n"
    yield "kvref and kvfast make the mistake alike, so only layers that compare with neither count."
    yield "*directed* finds them by the answers written in the examples; where it compares, its"
    yield "oracle is the mistaken twin itself. *history* needs no implementation: from what"
    yield "happened to each block it derives what is held, cached, hit and refused. It says nothing"
    yield "of statistics, events, samples and the bytes of hashes.\n"
    yield "| mistake | rule | what | killed by |"
    yield "|---|---|---|---|"
    for m in mistakes:
        if m.kind == "both":
            layers = ", ".join(killers.get(m.id, ())) or "none"
            yield f"| `{m.id}` | {', '.join(m.rules)} | {m.about} | {layers} |"


def _alone(
    cells: Mapping[str, Mapping[str, Cell]], killers: Mapping[str, Sequence[str]]
) -> Iterator[str]:
    yield "## Found by one layer alone\n\nOf those that at least three layers were shown.\n"
    yield "| layer | check | mistakes |"
    yield "|---|---|---|"
    rows: dict[tuple[str, str], list[str]] = {}
    for name, (layer, *more) in ((name, found) for name, found in killers.items() if found):
        if not more and len(cells[name]) >= 3:
            rows.setdefault((layer, cells[name][layer].by.replace("|", "\\|")), []).append(name)
    for (layer, by), names in sorted(rows.items()):
        yield f"| {layer} | {by} | {', '.join(f'`{name}`' for name in names)} |"
