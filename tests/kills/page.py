"""docs/KILLS.md: what each layer of checks kills, what it costs, and who is killed by nobody."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from types import MappingProxyType

from kvcheck.mistakes import Mistake
from tests.kills.layers import LAYERS
from tests.kills.matrix import ALIVE, KILLED, LIMIT, Cell, by_mistake

PAGE = Path(__file__).parents[2] / "docs" / "KILLS.md"
DECISIONS = Path(__file__).parent / "decisions.md"
"""What follows from the numbers, written by hand."""

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
process of its own, until the first check that finds something.

<details><summary>Where the numbers come from</summary>

`python -m tests.kills`, {date}; [tests/kills/cells.json](../tests/kills/cells.json), of {commits}.

</details>
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
        "contract": "`proofs.code.contracts`, by CrossHair",
        "model": "`proofs.models.pool`, by z3",
        "formal model": "`proofs.models.formal`, by the checker of TLA+",
    }
)
"""Kinds of mistakes that stand elsewhere, and what has to find each of them."""


def text(
    mistakes: Sequence[Mistake],
    known: Mapping[tuple[str, str], Cell],
    others: Sequence[Mistake] = (),
) -> str:
    """The whole page."""
    lines = [
        HEAD.format(mistakes=len(mistakes)),
        *_by_layer(mistakes, known),
        "",
        FOOT.format(date=datetime.now(UTC).date(), commits=_commits(known)),
        *_by_part(others),
        "",
        *_without_killer(mistakes, known),
        "",
        *_in_both(mistakes, known),
        "",
        *_alone(known),
        "",
        DECISIONS.read_text(encoding="utf-8") if DECISIONS.exists() else "",
    ]
    return "\n".join(lines).rstrip() + "\n"


def _commits(known: Mapping[tuple[str, str], Cell]) -> str:
    commits = sorted({cell.commit for cell in known.values()})
    return ("commit " if len(commits) == 1 else "commits ") + ", ".join(commits)


def _by_layer(mistakes: Sequence[Mistake], known: Mapping[tuple[str, str], Cell]) -> Iterator[str]:
    """Each layer: how many it was shown, how many it killed, and what that took."""
    alone = _only_killers(known)
    yield "| layer | what | about | shown | killed | alone | cut off | s/kill | s/survivor | s |"
    yield "|---|---|---:|---:|---:|---:|---:|---:|---:|---:|"
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
            f"{len(killed)}{_share(len(killed), len(cells))}",
            str(alone[name]),
            str(sum(cell.outcome == LIMIT for cell in cells)),
            _mean(killed),
            _mean(alive),
            f"{sum(cell.cpu_s for cell in cells):,.0f}",
        )
        yield f"| {' | '.join(row)} |"


def _by_part(others: Sequence[Mistake]) -> Iterator[str]:
    """How many there are of each kind, and who has to find them."""
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
    """Of each layer, how many mistakes it alone killed."""
    found: Counter[str] = Counter()
    for cells in by_mistake(known.values()).values():
        killers = [cell.layer for cell in cells.values() if cell.outcome == KILLED]
        if len(killers) == 1:
            found[killers[0]] += 1
    return found


def _without_killer(
    mistakes: Sequence[Mistake], known: Mapping[tuple[str, str], Cell]
) -> Iterator[str]:
    """Who lives, and who can't be seen."""
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
    """What comparing kvref with kvfast can't show, and who shows it."""
    yield "## In both twins at once"
    yield ""
    yield "kvref and kvfast make the mistake alike, so only layers that compare with neither count."
    yield "*history* tells them without an implementation: what happened to each block, from which"
    yield "it follows what is held, cached, hit and refused. It says nothing of statistics, events,"
    yield "samples and the bytes of hashes."
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
    """Mistakes with one killer, though more layers were tried."""
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
