"""docs/KILLS.md: the mistakes that each layer of checks kills, and what that costs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from string import Template
from types import MappingProxyType

from kvcheck.mistakes import Mistake
from tests.kills.layers import LAYERS
from tests.kills.matrix import ALIVE, KILLED, LIMIT, Cell, by_mistake, code_of

PAGE = Path(__file__).parents[2] / "docs" / "KILLS.md"
DECISIONS = Path(__file__).parent / "decisions.md"
"""Conclusions from the numbers, written by hand, with places for the numbers."""

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
the limit; *older*: the function that the mistake changes has changed since then; *s*: seconds of
the processor for all of the layer. A mistake is shown to a layer in a process of its own, until the
first check that finds something.

The numbers are those of [tests/kills/cells.json](../tests/kills/cells.json).
`python -m tests.kills` runs the cells that are missing or older.
"""

OTHERS = """\
## Mistakes of other parts

Parts that are no manager, planner or whole step have mistakes of their own. Every run shows each of
them to the tests of its part, and fails if one is not found.
"""

PARTS: Mapping[str, str] = MappingProxyType(
    {
        "device": "`tests/device/test_mistakes.py`, with torch",
        "host tier": "`tests/tier/test_lockstep.py`",
        "fleet": "`tests/fleet`",
        "formal model": "`proofs.models.formal`, by the checker of TLA+",
    }
)
"""Kinds of mistakes that stand elsewhere, and what has to find each of them."""


def text(
    mistakes: Sequence[Mistake],
    known: Mapping[tuple[str, str], Cell],
    others: Sequence[Mistake] = (),
) -> str:
    """Return the whole page."""
    lines = [
        HEAD.format(mistakes=len(mistakes)),
        *_by_layer(mistakes, known),
        "",
        FOOT,
        *_by_part(others),
        "",
        *_without_killer(mistakes, known),
        "",
        *_in_both(mistakes, known),
        "",
        *_alone(known),
        "",
        Template(DECISIONS.read_text(encoding="utf-8")).substitute(figures(mistakes, known)),
    ]
    return "\n".join(lines).rstrip() + "\n"


def figures(
    mistakes: Sequence[Mistake], known: Mapping[tuple[str, str], Cell]
) -> Mapping[str, str]:
    """Return the numbers that the conclusions quote, by layer and kind of mistake."""
    kinds = {mistake.id: mistake.kind for mistake in mistakes}
    origins = {mistake.id: mistake.origin for mistake in mistakes}
    alone = {
        name
        for name, cells in by_mistake(known.values()).items()
        if sum(cell.outcome == KILLED for cell in cells.values()) == 1
    }
    found: dict[str, str] = {}
    for layer in LAYERS:
        cells = [cell for (_, of), cell in known.items() if of == layer]
        parts = {
            "all": cells,
            "both": [cell for cell in cells if kinds.get(cell.mistake) == "both"],
            "one": [cell for cell in cells if kinds.get(cell.mistake) != "both"],
            "fast": [cell for cell in cells if origins.get(cell.mistake) == "kvfast"],
        }
        for part, shown in parts.items():
            killed = {cell.mistake for cell in shown if cell.outcome == KILLED}
            found |= {
                f"{layer}_{part}_shown": str(len(shown)),
                f"{layer}_{part}_killed": str(len(killed)),
                f"{layer}_{part}_alone": str(len(killed & alone)),
                f"{layer}_{part}_percent": _share(len(killed), len(shown)).strip(" ()"),
            }
    return found


def _by_layer(mistakes: Sequence[Mistake], known: Mapping[tuple[str, str], Cell]) -> Iterator[str]:
    """Yield for each layer how many mistakes it was shown and killed, and its cost."""
    alone = _only_killers(known)
    codes = {mistake.id: code_of(mistake) for mistake in mistakes}
    heads = "layer, what, about, shown, older, killed, alone, cut off, s/kill, s/survivor, s"
    yield f"| {heads.replace(', ', ' | ')} |"
    yield "|---|---|---:|---:|---:|---:|---:|---:|---:|---:|---:|"
    for name, layer in LAYERS.items():
        cells = [cell for (_, of), cell in known.items() if of == name]
        about = sum(map(layer.is_about, mistakes))
        killed = [cell for cell in cells if cell.outcome == KILLED]
        alive = [cell for cell in cells if cell.outcome == ALIVE]
        row = (
            name,
            layer.about,
            str(about),
            str(len(cells)),
            str(sum(cell.code != codes[cell.mistake] for cell in cells)),
            f"{len(killed)}{_share(len(killed), len(cells))}",
            str(alone[name]),
            str(sum(cell.outcome == LIMIT for cell in cells)),
            _mean(killed),
            _mean(alive),
            f"{sum(cell.cpu_s for cell in cells):,.0f}",
        )
        yield f"| {' | '.join(row)} |"


def _by_part(others: Sequence[Mistake]) -> Iterator[str]:
    """Yield the number of each kind, and the layer that has to find them."""
    number = Counter(mistake.kind for mistake in others)
    yield OTHERS
    yield "| part | mistakes | found by |"
    yield "|---|---|---|"
    yield from (f"| {kind} | {number[kind]} | {layer} |" for kind, layer in PARTS.items())


def _share(part: int, whole: int) -> str:
    return f" ({100 * part / whole:.0f} %)" if whole else ""


def _mean(cells: Sequence[Cell]) -> str:
    return f"{sum(cell.cpu_s for cell in cells) / len(cells):.2f}" if cells else "–"


def _only_killers(known: Mapping[tuple[str, str], Cell]) -> Counter[str]:
    """Count for each layer the mistakes that it alone killed."""
    found: Counter[str] = Counter()
    for cells in by_mistake(known.values()).values():
        killers = [cell.layer for cell in cells.values() if cell.outcome == KILLED]
        if len(killers) == 1:
            found[killers[0]] += 1
    return found


def _without_killer(
    mistakes: Sequence[Mistake], known: Mapping[tuple[str, str], Cell]
) -> Iterator[str]:
    """Yield the survivors, and the mistakes that no check can see."""
    dead = {cell.mistake for cell in known.values() if cell.outcome == KILLED}
    alive = [m for m in mistakes if m.id not in dead and not m.equivalent]
    yield "## Found by no layer"
    yield ""
    yield from [f"- `{m.id}` ({', '.join(m.rules)}): {m.about}" for m in alive] or ["None."]
    yield ""
    yield "## Equivalent: no check can find it"
    yield ""
    yield from [f"- `{m.id}`: {m.equivalent}" for m in mistakes if m.equivalent] or ["None."]


def _in_both(mistakes: Sequence[Mistake], known: Mapping[tuple[str, str], Cell]) -> Iterator[str]:
    """List the mistakes that comparing kvref with kvfast can't show, and what shows each."""
    yield "## In both twins at once"
    yield ""
    yield "kvref and kvfast make the mistake alike, so only layers that compare with neither count."
    yield "*directed* finds them by the answers written in the examples; where it compares, its"
    yield "oracle is the mistaken twin itself. *history* needs no implementation: from what"
    yield "happened to each block it derives what is held, cached, hit and refused. It says nothing"
    yield "of statistics, events, samples and the bytes of hashes."
    yield ""
    yield "| mistake | rule | what | killed by |"
    yield "|---|---|---|---|"
    cells = by_mistake(known.values())
    for mistake in mistakes:
        if mistake.kind == "both":
            mine = cells.get(mistake.id, {}).values()
            killers = ", ".join(cell.layer for cell in mine if cell.outcome == KILLED)
            rules = ", ".join(mistake.rules)
            yield f"| `{mistake.id}` | {rules} | {mistake.about} | {killers or 'nobody'} |"


def _alone(known: Mapping[tuple[str, str], Cell]) -> Iterator[str]:
    """Yield the mistakes with one killer, though more layers were tried."""
    yield "## Found by one layer alone"
    yield ""
    yield "Of those that at least three layers were shown."
    yield ""
    rows: dict[tuple[str, str], list[str]] = {}
    for name, cells in sorted(by_mistake(known.values()).items()):
        killers = [cell for cell in cells.values() if cell.outcome == KILLED]
        if len(killers) == 1 and len(cells) >= 3:
            rows.setdefault((killers[0].layer, killers[0].by), []).append(name)
    yield "| layer | check | mistakes |"
    yield "|---|---|---|"
    for (layer, by), names in sorted(rows.items()):
        shown = by.replace("|", "\\|")
        yield f"| {layer} | {shown} | {', '.join(f'`{name}`' for name in names)} |"
