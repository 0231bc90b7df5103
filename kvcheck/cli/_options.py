"""Options and arguments shared by several commands."""

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
    help="Save the run's progress in FILE, and resume from it if the file exists.",
)
records_option = click.option(
    "--records",
    "records_path",
    type=FOLDER,
    metavar="DIR",
    help="Write each violation to DIR as a record, for kvspec golden, view, shrink and redact.",
)


def oracle_option(
    text: str = "Implementation to compare with.",
) -> Callable[[Command], Command]:
    return click.option("--oracle", default="kvref", show_default=True, metavar="IMPL", help=text)


def profile_option(text: str) -> Callable[[Command], Command]:
    """Return the option --profile of a command that reads records; `text`: what it applies to."""
    return click.option(
        "--profile",
        default=RECORDS_PROFILE,
        show_default=True,
        metavar="NAME_OR_FILE",
        help=f"{text}: the name of a shipped profile, or a TOML file.",
    )


def output_option(text: str, **options: Any) -> Callable[[Command], Command]:
    """Return the option --output, a file unless `options` override its type."""
    return click.option(
        "-o", "--output", **{"type": FILE, "metavar": "FILE", "help": text, **options}
    )


def json_option(
    text: str = "Write a report as JSON; - for stdout.",
) -> Callable[[Command], Command]:
    """Return the option --json, which names a file, or - for stdout."""
    return click.option("--json", "json_path", type=PATH, metavar="FILE", help=text)
