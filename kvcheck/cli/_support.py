"""Helpers of all commands: error lines, extras, consoles, saved states, atomic writes."""

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
"""Limit on `--num-blocks`: a manager allocates memory for each block."""

MOST_STATE_BYTES = 2**30
STATE_HEAD = b"kvspec-resume sha256 "
OLD_STATE_HEAD = b"kvspec-state sha256 "
"""The head that older versions wrote; saved managers (`spec/saved.md`) use that name now."""


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


def output_console() -> Console:
    """Return a console on stdout, for results; NO_COLOR turns its colours off."""
    return Console(highlight=False)


def progress_console() -> Console:
    """Return a console on stderr, for progress and remarks, so that stdout can be piped."""
    return Console(stderr=True, highlight=False)


def progress_bars(*, counts: bool = False, **options: Any) -> Progress:
    """Return progress bars on stderr with the elapsed time; hidden unless it is a terminal.

    `counts`: show "n of m" and the remaining time instead of the elapsed time.
    """
    console = progress_console()
    after = (MofNCompleteColumn(), TimeRemainingColumn()) if counts else (TimeElapsedColumn(),)
    columns = (TextColumn("{task.description}"), BarColumn(), *after)
    hidden = not console.is_terminal
    return Progress(*columns, console=console, transient=True, disable=hidden, **options)


def read_state(path: Path, command: str) -> tuple[Any, Where] | None:
    """Read the JSON that `write_state` wrote, and its place for error messages.

    None if there is no file. Raises FormatError if it is damaged or was not written by `command`.
    """
    if not path.exists():
        return None
    where = Where(str(path))
    head, _, body = read_bounded(path, most_bytes=MOST_STATE_BYTES).partition(b"\n")
    anew = "remove it or name another file to start again"
    if head.startswith(b"{"):
        problem = "written by an older kvspec without a checksum, so damage cannot be detected"
        raise where.error(f"{problem}; {anew}")
    if head.startswith(OLD_STATE_HEAD):
        raise where.error(f"written by an older kvspec; {anew}")
    if not head.startswith(STATE_HEAD):
        raise where.error(f"not a saved state of kvspec {command}; name another file")
    if head != _state_head(body):
        raise where.error(f"damaged: its checksum does not match; {anew}")
    return parse_json(body, where), where


def write_state(document: Any, path: Path) -> None:
    """Write a command's progress as JSON, preceded by its checksum."""
    body = _json_text(document).encode()
    write_whole(path, _state_head(body) + b"\n" + body)


def _state_head(body: bytes) -> bytes:
    return STATE_HEAD + hashlib.sha256(body).hexdigest().encode()


def write_json(document: Any, path: Path | None = None) -> None:
    """Write a document as JSON: to stdout if the path is None or `-`, else to the file.

    Every `--json` uses this function: keys keep their order and floats all their digits.
    """
    text = _json_text(document)
    if path is None or str(path) == "-":
        sys.stdout.write(text)
    else:
        write_whole(path, text.encode())


def _json_text(document: Any) -> str:
    return json.dumps(document, indent=2, ensure_ascii=False, allow_nan=False) + "\n"


def write_whole(path: Path, content: bytes) -> None:
    """Write a file atomically: on any failure it is as it was before.

    Raises OSError, which names `path`.
    """
    if path.exists() and not path.is_file():
        path.write_bytes(content)  # write to a device such as /dev/null, do not replace it
        return
    target = path.resolve()  # behind a link
    temporary = None
    try:
        # In the same folder, because a rename is atomic only within one file system.
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
    # mkstemp makes private files; the mask can only be read by setting it.
    mask = os.umask(0)
    os.umask(mask)
    return mask
