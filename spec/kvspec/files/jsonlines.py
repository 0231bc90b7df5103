"""JSON files of bounded size, whole or line by line: streamed when read, atomic when written."""

from __future__ import annotations

import gzip
import json
import re
from collections import Counter
from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NoReturn

from kvspec.errors import FormatError
from kvspec.files.objects import Where, check_plain
from kvspec.files.replacing import replacing
from kvspec.files.stream import (
    MAX_LINE_BYTES,
    DamagedStreamError,
    MissingLibraryError,
    split_lines,
    uncompressed,
)


def read_objects(path: Path, *, most_bytes: int | None = None) -> Generator[tuple[Where, Any]]:
    """Yield each line's value with its place, in order, with one line in memory at a time.

    Plain, gzip or zstd, recognised by the first bytes. Raises FormatError for a file that can't be
    opened, is cut off, isn't UTF-8 or holds a line that is too long or isn't JSON. Blank lines are
    errors too: a file that was cut and glued must not pass. `most_bytes`: of all lines together,
    for a caller that keeps them; what is compressed counts as long as its content is.
    """
    file = str(path)
    line = read_bytes = 0
    try:
        with path.open("rb") as raw:
            for line, data in enumerate(split_lines(uncompressed(raw)), start=1):
                where = Where(file, line)
                read_bytes += len(data) + 1
                if len(data) > MAX_LINE_BYTES:
                    raise where.error(f"longer than {MAX_LINE_BYTES} bytes")
                if most_bytes is not None and read_bytes > most_bytes:
                    problem = f"more than {most_bytes} bytes up to here, which is all that is kept"
                    raise where.error(f"{problem} in memory at once; make the file shorter")
                yield where, parse_line(data, where)
    except FileNotFoundError:
        raise FormatError(file, None, None, "no such file") from None
    except DamagedStreamError as error:
        raise FormatError(file, line + 1, None, str(error)) from None
    except MissingLibraryError as error:
        raise FormatError(file, None, None, str(error)) from None
    except OSError as error:
        raise FormatError(file, None, None, error.strerror or str(error)) from None


def read_document(path: Path, *, most_bytes: int) -> Any:
    """Read the one JSON value of a file, which may span several lines. Raises FormatError."""
    where = Where(str(path))
    data = read_bounded(path, most_bytes=most_bytes)
    if not data.strip():
        raise where.error("empty")
    return parse_json(data, where, is_whole=True)


def read_bounded(path: Path, *, most_bytes: int) -> bytes:
    """Read a file; FormatError if it cannot be read or is longer than `most_bytes`."""
    where = Where(str(path))
    try:
        with path.open("rb") as raw:
            data = raw.read(most_bytes + 1)
    except FileNotFoundError:
        raise where.error("no such file") from None
    except OSError as error:
        raise where.error(f"cannot be read: {error.strerror or error}") from None
    if len(data) > most_bytes:
        raise where.error(f"longer than {most_bytes} bytes, so not what is meant to be here")
    return data


def parse_line(data: bytes, where: Where) -> Any:
    """Parse one line's JSON value. Raises FormatError for any other bytes."""
    if not data.strip():
        raise where.error("empty line; every line holds one JSON object")
    return parse_json(data, where)


def parse_json(data: bytes, where: Where, *, is_whole: bool = False) -> Any:
    """Parse a JSON value. Raises FormatError for any other bytes.

    No member may occur twice, and no value lie outside of `check_plain`'s bounds. `is_whole`: the
    bytes are a whole file, so that an error names the line.
    """

    def unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        value = dict(pairs)
        if len(value) != len(pairs):
            times = Counter(name for name, _ in pairs)
            double = next(name for name, number in times.items() if number > 1)
            raise where.member(double).error("given twice in one object")
        return value

    def refuse(constant: str) -> NoReturn:
        raise where.error(f"{constant} is not JSON")

    try:
        text = data.decode("utf-8")
    except UnicodeDecodeError as error:
        raise where.error(f"not UTF-8 at byte {error.start}") from None
    try:
        value = json.loads(text, object_pairs_hook=unique, parse_constant=refuse)
    except json.JSONDecodeError as error:
        at = Where(where.file, error.lineno) if is_whole else where
        raise at.error(f"not JSON at column {error.colno}: {error.msg}") from None
    except ValueError as error:
        if isinstance(error, FormatError):
            raise
        raise where.error("an int of thousands of digits") from None
    except RecursionError:
        raise where.error("nested too deeply") from None
    check_plain(value, where, most_values=len(text))
    if _HALF_PAIR.search(text) is not None:
        _check_texts(value, where)
    return value


_HALF_PAIR = re.compile(r"\\u[dD][89a-fA-F]")
"""JSON's escape of half a character, which alone has no UTF-8 form."""


def _check_texts(value: Any, where: Where) -> None:
    try:
        json.dumps(value, ensure_ascii=False).encode()
    except UnicodeEncodeError:
        raise where.error("a text with half a character (a lone surrogate)") from None


@contextmanager
def object_writer(path: Path) -> Iterator[Callable[[Any], None]]:
    """Write one value per line, gzip when the name ends in `.gz`.

    The file appears under its name when the `with` block ends, and never if it ends with an error
    (`replacing`). Equal values give equal bytes (gzip's time stamp is left out).
    """
    with replacing(path) as raw:
        packed = path.name.endswith(".gz")
        target = gzip.GzipFile("", "wb", 9, raw, mtime=0) if packed else raw

        def write(value: Any) -> None:
            target.write(json.dumps(value, separators=(",", ":")).encode("ascii") + b"\n")

        yield write
        if packed:
            target.close()
