"""`kvspec vectors`: write the examples as conversations, for tests in other languages."""

from __future__ import annotations

from pathlib import Path

import click

from kvcheck.cli._options import FOLDER, output_option
from kvcheck.cli._support import closest, fail, say
from kvcheck.tools.archive import set_names, write_archive


@click.command()
@output_option("The folder to write.", required=True, type=FOLDER, metavar="FOLDER")
@click.option(
    "--set",
    "sets",
    multiple=True,
    metavar="NAME",
    help="Write only the examples of this chapter, such as pool. May be repeated.",
)
def command(output: Path, sets: tuple[str, ...]) -> int:
    """Write the examples as JSON lines, for tests without Python.

    Each file is a conversation: messages of the protocol, each with the right reply. The folder
    examples/vectors of the repository has readers in Rust, C++, Go and TypeScript.
    """
    for name in sets:
        if name not in (known := set_names()):
            fail(f"no chapter {name!r}{closest(name, known)}; known: {', '.join(known)}")
    number = write_archive(output, sets)
    say(f"{output}: {number} files")
    return 0
