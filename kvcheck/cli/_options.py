"""Options and arguments that several commands have."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import click

from kvspec.profile import RECORDS_PROFILE

Command = TypeVar("Command", bound=Callable[..., Any])

PATH = click.Path(path_type=Path)
FILE = click.Path(path_type=Path, dir_okay=False)
FOLDER = click.Path(path_type=Path, file_okay=False)

record_argument = click.argument("record", metavar="RECORD", type=PATH)
resume_option = click.option(
    "--resume",
    "resume_path",
    type=FILE,
    metavar="FILE",
    help="Keep there how far the run is, and go on from there if the file exists.",
)
records_option = click.option(
    "--records",
    "records_path",
    type=FOLDER,
    metavar="DIR",
    help="Write each violation as a record there, for kvspec golden, view, shrink and redact.",
)


def oracle_option(text: str = "What to compare with.") -> Callable[[Command], Command]:
    """The option --oracle."""
    return click.option("--oracle", default="kvref", show_default=True, metavar="IMPL", help=text)


def profile_option(text: str) -> Callable[[Command], Command]:
    """The option --profile of a command that reads records; `text`: where it is of use."""
    return click.option(
        "--profile",
        default=RECORDS_PROFILE,
        show_default=True,
        metavar="NAME_OR_FILE",
        help=f"{text}: a shipped profile or a TOML file.",
    )


def output_option(text: str, **options: Any) -> Callable[[Command], Command]:
    """The option --output: the file that is written, unless `options` say otherwise."""
    return click.option(
        "-o", "--output", **{"type": FILE, "metavar": "FILE", "help": text, **options}
    )


def json_option(text: str = "Write a report.") -> Callable[[Command], Command]:
    """The option --json of a report that goes to a file, or with - to stdout."""
    return click.option("--json", "json_path", type=PATH, metavar="FILE", help=text)
