"""Helpers of all commands: error lines, extras, consoles, atomic writes."""

from __future__ import annotations

import difflib
import importlib
import json
import os
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any, NoReturn

import click
from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)
from rich.table import Table

from kvspec.files.replacing import replacing

DONE, FAILED, NOT_RUN, INTERRUPTED, READER_GONE = 0, 1, 2, 130, 141
EXIT_CODES = """\b
Exit codes:
  0    done, and what was checked holds
  1    done, and what was checked failed
  2    not done: wrong input, or it could not run
  130  interrupted
  141  the reader of the output went away"""

STDOUT = "-"

MOST_BLOCKS = 2**24
"""Limit on `--num-blocks`: a manager allocates memory for each block."""


class CommandError(Exception):
    """Ends the command with one line on stderr and an exit code; raised by `fail`."""

    def __init__(self, message: str, exit_code: int) -> None:
        super().__init__(message)
        self.message = message
        self.exit_code = exit_code


def fail(message: str, *, exit_code: int = 2) -> NoReturn:
    """End the command: `kvspec: error: message` on stderr, exit code 2 (could not run)."""
    raise CommandError(message, exit_code)


def require_extra(module: str, extra: str) -> ModuleType:
    """Import an optional module, or fail with the line that installs it."""
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError as error:
        if error.name != module.partition(".")[0]:
            raise  # the module is installed, but something that it imports is not
    fail(f"this needs {module}; install it with: pip install 'kvspec[{extra}]'")


def set_globally(name: str) -> Any:
    """Return the value of `--color` or `--quiet`, which every command has; None outside of one."""
    context = click.get_current_context(silent=True)
    return None if context is None else context.meta.get(f"kvspec.{name}")


class _Output(Console):
    """A console on stdout. Where the reader goes away Rich would end with 1, a failed check."""

    def on_broken_pipe(self) -> None:
        raise BrokenPipeError


def output_console(json_path: Path | None = None) -> Console:
    """Return a console for results: on stdout, or on stderr where JSON has taken stdout.

    NO_COLOR and `--color never` turn its colours off.
    """
    options: dict[str, Any] = {"highlight": False, "stderr": str(json_path) == STDOUT}
    match set_globally("color"):
        case "always":
            options |= {"force_terminal": True, "color_system": "standard", "no_color": False}
        case "never":
            options |= {"color_system": None}
    return _Output(**options)


def progress_console() -> Console:
    """Return a console on stderr, for progress and remarks; `--quiet` turns it off."""
    return Console(stderr=True, highlight=False, quiet=bool(set_globally("quiet")))


def say(*lines: object, console: Console | None = None, style: str | None = None) -> None:
    """Print lines as they are: never wrapped, and without markup."""
    target = output_console() if console is None else console
    for line in lines:
        target.print(line, markup=False, soft_wrap=True, style=style)


def check_outputs(*paths: Path | None, picture: Path | None = None) -> None:
    """Fail before a run if an output could not be written after it."""
    if picture is not None and picture.suffix.lower() not in (".png", ".svg"):
        fail(f"--plot {picture}: the name must end in .png or .svg")
    for path in (*paths, picture):
        if path is None or str(path) == STDOUT:
            continue
        folder = path.resolve().parent
        if path.is_dir():
            fail(f"{path}: cannot be written: is a folder")
        if not folder.is_dir():
            fail(f"{path}: cannot be written: there is no folder {path.parent}")
        if not os.access(folder, os.W_OK):
            fail(f"{path}: cannot be written: no permission to write in {folder}")


def closest(name: str, known: Iterable[str]) -> str:
    """Return a question to put behind an error about a name, or nothing if none is alike."""
    found = difflib.get_close_matches(name, list(known), 1)
    return f"; did you mean {found[0]}?" if found else ""


def right_table(columns: Sequence[str], lines: Iterable[Sequence[str]]) -> Table:
    """Return a table without lines, its cells on the right."""
    table = Table(box=None)
    for name in columns:
        table.add_column(name, justify="right")
    for line in lines:
        table.add_row(*line)
    return table


def progress_bars(*, counts: bool = False, **options: Any) -> Progress:
    """Return progress bars on stderr with the elapsed time; hidden unless it is a terminal.

    `counts`: show "n of m" and the remaining time instead of the elapsed time.
    """
    console = progress_console()
    after = (MofNCompleteColumn(), TimeRemainingColumn()) if counts else (TimeElapsedColumn(),)
    columns = (TextColumn("{task.description}"), BarColumn(), *after)
    hidden = console.quiet or not console.is_terminal
    return Progress(*columns, console=console, transient=True, disable=hidden, **options)


def write_json(document: Any, path: Path | None) -> None:
    """Write a document as JSON to the file, to stdout for `-`; nowhere if no `--json` was given.

    Every `--json` uses this function: keys keep their order and floats all their digits.
    """
    if path is None:
        return
    text = json.dumps(document, indent=2, ensure_ascii=False, allow_nan=False) + "\n"
    if str(path) == STDOUT:
        sys.stdout.write(text)
    else:
        write_whole(path, text.encode())


def write_whole(path: Path, content: bytes) -> None:
    """Write a file atomically: on any failure it is as it was before.

    Raises OSError, which names `path`.
    """
    with replacing(path) as file:
        file.write(content)
