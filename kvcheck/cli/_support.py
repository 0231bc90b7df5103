"""What the commands share: failing with one line, extras, consoles, and files written whole."""

from __future__ import annotations

import contextlib
import hashlib
import importlib
import json
import os
import sys
import tempfile
from pathlib import Path
from types import ModuleType
from typing import Any, NoReturn

from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)

from kvspec._json import Where
from kvspec._jsonlines import parse_json, read_bounded

MOST_BLOCKS = 2**24
"""Of a pool that an option asks for: a manager takes memory for each."""

MOST_STATE_BYTES = 2**30
STATE_HEAD = b"kvspec-resume sha256 "
OLD_STATE_HEAD = b"kvspec-state sha256 "
"""Saved states (`spec/saved.md`) have that name now."""


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
            raise  # it is there; something it needs is not
    fail(f"this needs {module}; install it with: pip install 'kvspec[{extra}]'")


def output_console() -> Console:
    """For results, on stdout. Colours only on a terminal; NO_COLOR turns them off."""
    return Console(highlight=False)


def progress_console() -> Console:
    """For progress and remarks, on stderr, so that stdout can be piped."""
    return Console(stderr=True, highlight=False)


def progress_bars(*, counts: bool = False, **options: Any) -> Progress:
    """Bars behind words, and the time so far, on stderr where that is a terminal; else nothing.

    `counts`: how many of how many, and the time left, in place of the time so far.
    """
    console = progress_console()
    after = (MofNCompleteColumn(), TimeRemainingColumn()) if counts else (TimeElapsedColumn(),)
    columns = (TextColumn("{task.description}"), BarColumn(), *after)
    hidden = not console.is_terminal
    return Progress(*columns, console=console, transient=True, disable=hidden, **options)


def read_state(path: Path, command: str) -> tuple[Any, Where] | None:
    """The JSON that `write_state` left for a command to go on from, and where it stands.

    None without the file; FormatError for one that is damaged or that something else wrote.
    """
    if not path.exists():
        return None
    where = Where(str(path))
    head, _, body = read_bounded(path, most_bytes=MOST_STATE_BYTES).partition(b"\n")
    anew = "remove it, or name another file, to begin anew"
    if head.startswith(b"{"):
        problem = "has no checksum, as an older kvspec wrote it, so that damage can't be told"
        raise where.error(f"{problem}; {anew}")
    if head.startswith(OLD_STATE_HEAD):
        raise where.error(f"written by an older kvspec; {anew}")
    if not head.startswith(STATE_HEAD):
        raise where.error(f"no state of kvspec {command}; name another file")
    if head != _state_head(body):
        raise where.error(f"damaged: its checksum is another; {anew}")
    return parse_json(body, where), where


def write_state(document: Any, path: Path) -> None:
    """Write what a command needs to go on from: the checksum of the JSON, and the JSON."""
    body = _json_text(document).encode()
    write_whole(path, _state_head(body) + b"\n" + body)


def _state_head(body: bytes) -> bytes:
    return STATE_HEAD + hashlib.sha256(body).hexdigest().encode()


def write_json(document: Any, path: Path | None = None) -> None:
    """Write a document as JSON: to stdout when there is no path or it is `-`, else as a file.

    Every `--json` of the command goes through here: keys keep their order, floats their digits.
    """
    text = _json_text(document)
    if path is None or str(path) == "-":
        sys.stdout.write(text)
    else:
        write_whole(path, text.encode())


def _json_text(document: Any) -> str:
    return json.dumps(document, indent=2, ensure_ascii=False, allow_nan=False) + "\n"


def write_whole(path: Path, content: bytes) -> None:
    """Write a file so that it is either all there or, on any failure, as it was before.

    Raises OSError, which names `path`.
    """
    if path.exists() and not path.is_file():
        path.write_bytes(content)  # a device such as /dev/null is written to, not replaced
        return
    target = path.resolve()  # behind a link
    temporary = None
    try:
        # In the same folder: a rename is whole only within one file system.
        handle, temporary = tempfile.mkstemp(dir=target.parent, prefix=f".{target.name}.")
        with os.fdopen(handle, "wb") as file:
            file.write(content)
        os.chmod(temporary, target.stat().st_mode if target.exists() else 0o666 & ~_umask())
        os.replace(temporary, target)
    except BaseException as error:
        if temporary is not None:
            with contextlib.suppress(OSError):
                os.unlink(temporary)
        if isinstance(error, OSError):
            raise OSError(error.errno, error.strerror, str(path)) from error
        raise


def _umask() -> int:
    # mkstemp makes private files; there is no way to read the mask but to set it.
    mask = os.umask(0)
    os.umask(mask)
    return mask
