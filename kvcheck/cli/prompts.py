"""`kvspec prompts`: find where prompts part, and what another template would hit."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

import click

from kvcheck.cli._options import POSITIVE, json_option, verbose_option
from kvcheck.cli._support import (
    MOST_BLOCKS,
    STDOUT,
    check_outputs,
    fail,
    output_console,
    progress_bars,
    right_table,
    say,
    set_globally,
    write_json,
)
from kvcheck.cli._traces import with_trace_options
from kvcheck.tools.replay.formats.choice import FINEST
from kvcheck.tools.replay.partings import Parting, Partings, partings, prompts_of
from kvcheck.tools.replay.report import wrapped
from kvcheck.tools.replay.source import open_trace
from kvcheck.tools.replay.trace import select

_SHOWN = 34


@click.command()
@click.argument("trace", metavar="TRACE")
@click.option(
    "--block-size",
    type=POSITIVE,
    help="Tokens in a block.  [default: 16; the tokens per id where TRACE has ids]",
)
@click.option(
    "--num-blocks",
    type=click.IntRange(2, MOST_BLOCKS),
    help="Blocks in the pool, including the null block.  [default: endless]",
)
@click.option("--top", type=POSITIVE, default=5, metavar="N", help="Show the N commonest places.")
@click.option("--limit", type=POSITIVE, metavar="N", help="Use only the first N requests.")
@json_option()
@verbose_option
@with_trace_options
def command(
    trace: str,
    block_size: int | None,
    num_blocks: int | None,
    top: int,
    limit: int | None,
    json_path: Path | None,
    verbose: bool,
    run_length: int | None,
    **reading: Any,
) -> None:
    """Show where prompts part, and what another template would hit.

    TRACE is named as for `kvspec replay`. A request parts where it first differs from the earlier
    request that it shares most with. For the commonest places the table shows how many requests
    part there, how many tokens they share in that block and do not hit, and how many prompt tokens
    more or less are computed if the text before it is filled up to a block, and if the differing
    text comes last. Both are counted with the changed prompts, one request at a time, as `kvspec
    whatif` does.

    Below the table is the text at each place, if TRACE has texts; with --tokenizer positions are
    those of its tokens. In a trace of ids, such as Mooncake's, places are only known to an id.
    """
    check_outputs(json_path)
    finest = FINEST if run_length is None else run_length
    with open_trace(trace, endless=limit is not None, run_length=finest, **reading) as source:
        prompts = prompts_of(select(source, limit=limit), lambda: source.spelling)
    if not prompts.records:
        fail(f"{trace}: holds no requests")
    size = block_size or (16 if prompts.alphabet.run == 1 else None)
    with progress_bars() as bar:
        task = bar.add_task(trace, total=top)
        found = partings(prompts, size, num_blocks, top, lambda: bar.advance(task))
    write_json({"trace": trace, "notes": source.notes, **asdict(found)}, json_path)
    if str(json_path) != STDOUT:
        _show(trace, found, source.notes, verbose=verbose)


def _show(trace: str, found: Partings, notes: tuple[str, ...], *, verbose: bool) -> None:
    console = output_console()
    size = found.num_blocks
    pool = "an endless pool hits" if size is None else f"{size:,} blocks hit"
    head = (
        f"{trace}: {found.requests:,} requests, {found.tokens:,} prompt tokens in blocks of"
        f" {found.block_size}; {pool} {found.hit_tokens / found.tokens:.2%}"
    )
    if set_globally("quiet"):
        say(head, console=console)
        return
    lines = [
        head,
        *(f"  note: {note}" for note in notes),
        f"{found.parting:,} requests part from all earlier ones, places: {found.places:,};"
        f" {found.continuing:,} go on where an earlier prompt ended, or repeat it",
    ]
    say(*wrapped(lines, console.width), console=console)
    if not found.partings:
        return
    names = ("at token", "requests", "shared in block", "filled up", "", "last", "")
    rows = [
        (
            f"{each.at_tokens:,}",
            f"{each.requests:,}",
            f"{each.in_block_tokens:,}",
            *_change(each.filled_tokens, found.tokens),
            *_change(each.last_tokens, found.tokens),
        )
        for each in found.partings
    ]
    console.print(right_table(names, rows))
    say("filled up, last: more or less prompt tokens computed, of all of them", console=console)
    for each in found.partings:
        say(*_text_lines(each, None if verbose else _SHOWN), console=console)


def _change(saved: int | None, tokens: int) -> tuple[str, str]:
    """Return by how much the prompt tokens that are computed change, and as a share of all."""
    return ("–", "") if saved is None else (f"{-saved:+,}", f"{-saved / tokens:+.2%}")


def _text_lines(each: Parting, most: int | None) -> Iterator[str]:
    """Yield the texts that come at a place, each behind the text in front of all."""
    if each.before is None:
        return
    before = _line(each.before)
    before = before if most is None or len(before) <= most else "…" + before[1 - most :]
    place = f"  {each.at_tokens:,}: "
    if most is None:  # texts in full stand below each other
        yield f"{place}{before}"
        yield from (f"    |{_line(way)}" for way in each.ways)
        return
    for number, way in enumerate(map(_line, each.ways)):
        head = place + before if number == 0 else " " * len(place + before)
        yield f"{head}|{way if len(way) <= most else way[: most - 1] + '…'}"


def _line(text: str) -> str:
    return text.replace("\n", "↵")
