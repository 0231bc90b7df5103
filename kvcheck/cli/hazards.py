"""`kvspec hazards`: check a record of copies and steps for accesses in the wrong order."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path

import click

from kvcheck.cli._options import json_option, verbose_option
from kvcheck.cli._support import fail, output_console, say, write_json
from kvcheck.hazards.checker import Hazard, HazardChecker
from kvcheck.hazards.lines import HazardRecordError, Line, Run, lines_of
from kvcheck.rulebook import stated
from kvspec.errors import InvalidArgumentError

MAX_DRAWN = 5


@click.command()
@click.argument(
    "record", metavar="RECORD", type=click.Path(exists=True, dir_okay=False, path_type=Path)
)
@json_option()
@verbose_option
def command(record: Path, json_path: Path | None, verbose: bool) -> int:
    """Check a record of copies and steps for accesses in the wrong order.

    RECORD has one JSON object per line: which request has which block, what each copy and each step
    reads and writes, on which stream, and when the host knew that it had ended. docs/hazards.md
    describes it. The first hazards, with -v all, are drawn with the work that touches the block on
    each stream.

    Exit code 0: no hazard, 1: hazards were found, 2: RECORD cannot be read.
    """
    checker, found = HazardChecker(), list[Hazard]()
    try:
        lines = list(lines_of(record.read_text(encoding="utf-8").splitlines()))
        for number, line in lines:
            found += checker.take(line, number)
    except (HazardRecordError, InvalidArgumentError, UnicodeDecodeError) as error:
        fail(f"{record}: {error}")
    shown = []
    for hazard in found[: None if verbose else MAX_DRAWN]:
        upto = [(number, line) for number, line in lines if number <= hazard.lines[-1]]
        shown += [*drawn(hazard, upto), ""]
    by_rule = Counter(hazard.rule for hazard in found)
    counts = ", ".join(f"{rule} {num}" for rule, num in sorted(by_rule.items()))
    num_found = f"{len(found):,} hazard{'' if len(found) == 1 else 's'}"
    shown.append(f"{len(lines):,} lines, {num_found}{counts and ': '}{counts}")
    say(*(each.rstrip() for each in shown), console=output_console(json_path))
    keys = ("rule", "place", "what", "lines")
    rows = [(h.rule, str(h.place), h.what, list(h.lines)) for h in found]
    write_json([dict(zip(keys, row, strict=True)) for row in rows], json_path)
    return 1 if found else 0


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
