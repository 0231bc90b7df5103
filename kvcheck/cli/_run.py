"""Run a command so that every error ends in an exit code and one line on stderr."""

from __future__ import annotations

import contextlib
import io
import os
import sys
import traceback
from typing import Literal, TextIO

import click
from click.shell_completion import shell_complete

from kvcheck.cli._commands import LazyGroup
from kvcheck.cli._support import EXIT_CODES, INTERRUPTED, READER_GONE, CommandError
from kvspec.errors import InvalidArgumentError, KVSpecError

COMPLETE = "_KVSPEC_COMPLETE"
"""The variable by which a shell asks for completions."""


@click.group(
    cls=LazyGroup,
    context_settings={
        "help_option_names": ["-h", "--help"],
        "max_content_width": 100,
        "show_default": True,
    },
    epilog=EXIT_CODES,
)
@click.version_option(package_name="kvspec", message="kvspec %(version)s")
def group() -> None:
    """Check, replay and inspect implementations of the KV-cache contract."""


def run(args: list[str]) -> int:
    """Run `kvspec` with these arguments; returns the exit code and never raises."""
    try:
        _prepare_streams()
        if asked := os.environ.get(COMPLETE):
            return shell_complete(group, {}, "kvspec", COMPLETE, asked)
        code = _invoke(args)
        sys.stdout.flush()  # raises here, not at interpreter exit, if the reader closed the pipe
        return code
    except CommandError as error:
        return _say(error.message, exit_code=error.exit_code)
    except click.ClickException as error:
        return _usage(error)
    except BrokenPipeError:
        _discard_stdout()
        return READER_GONE
    except (KeyboardInterrupt, click.Abort):
        return _say("interrupted", exit_code=INTERRUPTED)
    except InvalidArgumentError as error:
        option = f"--{error.field.replace('_', '-')}"
        is_given = any(each.partition("=")[0] == option for each in args)
        said = str(error)
        return _say(said.replace(f"{error.field} =", option, 1) if is_given else said)
    except KVSpecError as error:
        return _say(str(error))
    except OSError as error:
        # `str` would lead with the number: [Errno 2] No such file …
        where = f"{error.filename}: " if error.filename is not None else ""
        _flush_or_discard()
        return _say(f"{where}{error.strerror or error}")
    except MemoryError:
        return _say("out of memory; ask for fewer blocks, or less at once")
    except Exception:
        # A defect of kvspec. Python's own exit code, 1, would mean that a check failed.
        traceback.print_exc()
        return _say("internal error, please report the lines above")


def _prepare_streams() -> None:
    """Open streams that the caller closed, and escape characters that they cannot encode.

    A closed stream is None in `sys`, and the next file opened would get its number. Raises
    CommandError if standard output was closed.
    """
    is_closed = sys.stdout is None
    if sys.stdin is None:
        sys.stdin = _nowhere("r")
    if sys.stdout is None:
        sys.stdout = _nowhere("w")
    if sys.stderr is None:
        sys.stderr = _nowhere("w")
    for stream in (sys.stdout, sys.stderr):
        # A character that the locale lacks, or a file name that is not text, must not be an error.
        if isinstance(stream, io.TextIOWrapper) and stream.errors in ("strict", "surrogateescape"):
            stream.reconfigure(errors="backslashreplace")
    if is_closed:
        raise CommandError("standard output is closed; send it to a file, or to /dev/null", 2)


def _nowhere(mode: Literal["r", "w"]) -> TextIO:
    return open(os.devnull, mode, encoding="utf-8")


def _invoke(args: list[str]) -> int:
    # Not group.main(): it ends the process itself, and exits with 1 on a broken pipe.
    try:
        with group.make_context("kvspec", args) as context:
            code = group.invoke(context)
    except click.exceptions.NoArgsIsHelpError as error:
        click.echo(error.format_message(), err=True)
        return 2
    except click.exceptions.Exit as ended:
        return ended.exit_code
    return code if isinstance(code, int) else 0


def _usage(error: click.ClickException) -> int:
    message = error.format_message().replace(" is not a valid integer range", " is no integer")
    message = message.replace(" Did you mean '--help'?", "")  # nothing else is alike
    context = getattr(error, "ctx", None)
    if isinstance(context, click.Context):
        message = f"{message.rstrip('.')} (see: {context.command_path} --help)"
    return _say(message)


def _say(message: str, *, exit_code: int = 2) -> int:
    # Printed without click or rich, which might wrap, colour or fail on an error message.
    try:
        print(f"kvspec: error: {message}", file=sys.stderr, flush=True)
    except OSError:
        return READER_GONE
    return exit_code


def _flush_or_discard() -> None:
    """Flush earlier output; drop it if printing itself failed, as on a full disk."""
    try:
        sys.stdout.flush()
    except OSError:
        _discard_stdout()


def _discard_stdout() -> None:
    """Send buffered output to /dev/null, so that Python's flush at exit does not fail."""
    with open(os.devnull, "wb") as nowhere, contextlib.suppress(OSError, ValueError):
        os.dup2(nowhere.fileno(), sys.stdout.fileno())
