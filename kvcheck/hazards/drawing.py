"""A hazard as text: its rule, and the work that touches the block, a column for each stream."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from kvcheck.hazards.checker import Hazard
from kvcheck.hazards.lines import Line, Run
from kvcheck.rulebook import stated


def drawn(hazard: Hazard, lines: Sequence[tuple[int, Line]]) -> Iterator[str]:
    """Yield the lines of a picture. `lines` are those of the record up to the hazard."""
    yield f"{hazard.place}: {hazard.what}"
    yield f"  {stated(hazard.rule)}"
    touching = [
        (number, line)
        for number, line in lines
        if isinstance(line, Run)
        and any(each.of_block == hazard.place.of_block for each in line.reads + line.writes)
    ]
    streams = list(dict.fromkeys(line.stream for _, line in touching))
    if len(streams) > 1 or touching:
        yield "  line   " + "".join(f"{stream:<24}" for stream in streams)
    for number, line in touching:
        column = streams.index(line.stream)
        mark = "*" if line.id in (hazard.first, hazard.second) else " "
        yield f"  {number:>4} {mark} " + " " * 24 * column + _told(line, hazard)


def _told(line: Run, hazard: Hazard) -> str:
    does = [
        f"{verb} {each.begin}-{each.end - 1}"
        for verb, places in (("reads", line.reads), ("writes", line.writes))
        for each in places
        if each.of_block == hazard.place.of_block
    ]
    does = [each.replace("writes", "zeroes") if line.is_zeroing else each for each in does]
    return f"{line.id} {', '.join(does)}"
