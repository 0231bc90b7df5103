"""`kvspec view`: write a page that shows a record step by step."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import click

from kvcheck.cli._options import impl_option, output_option, profile_option, record_argument
from kvcheck.cli._support import fail, say, write_whole
from kvcheck.discovery import find_implementation
from kvcheck.records.select import named_record
from kvcheck.tools.view import NotShownError, load
from kvcheck.view.page import page
from kvspec.profile import find_profile


@click.command()
@record_argument
@output_option("File for the page.", required=True, metavar="FILE.html")
@impl_option("Replay on it, as pools of more than 64 blocks need, and show where it differs")
@profile_option("With --impl, policies of a record that names none")
@click.option(
    "--from",
    "first_operation",
    type=click.IntRange(min=0),
    default=0,
    metavar="N",
    help="Start at operation N, for records that are too long for one page.",
)
def command(
    record: Path, output: Path, name: str | None, profile: str, first_operation: int
) -> int:
    """Write a page that shows a record step by step: blocks, requests, free queue.

    The page is a single file that needs no network. It shows each call, its result and the state
    after it; it marks hits, evictions, preemptions and refusals, and jumps to them with a button or
    a key. FILE.html#op=17 opens it at operation 17. RECORD is a file, or a shipped record:
    life_of_blocks or identities.

    With --impl the record is replayed, and the first difference is shown at its operation. The page
    of a record written by `kvspec check --records` opens at the operation that broke the rule.

    Exit code 0: the page was written (and nothing differs), 1: written, and the implementation
    differs, 2: could not run.
    """
    implementation = None if name is None else find_implementation(name)
    try:
        recording = load(
            named_record(record),
            implementation,
            first_operation=first_operation,
            policy=find_profile(profile).policy,
        )
    except NotShownError as error:
        fail(str(error))
    recording = replace(recording, replayed_on=name)
    write_whole(output, page(recording).encode("utf-8"))
    number = sum(frame.operation is not None for frame in recording.frames)
    say(f"{output}: {number} operations of {record}", *recording.notes)
    if recording.violation is not None and recording.violation.rule is None:
        say(recording.violation.text)
        return 1
    return 0
