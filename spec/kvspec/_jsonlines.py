"""Files with one JSON object per line, plain or gzip: streaming in, all or nothing out."""

from __future__ import annotations

import gzip
import json
import os
import zlib
from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NoReturn

from kvspec._json import Where
from kvspec.errors import FormatError

GZIP_MAGIC = b"\x1f\x8b"


def read_objects(path: Path) -> Generator[tuple[Where, Any], None, None]:
    """Each line's value with its place, in order; one line in memory at a time.

    gzip is recognised by its first bytes, not by the name. Raises FormatError for a file that
    can't be opened, is cut off, isn't UTF-8 or holds a line that isn't JSON. Blank lines are
    errors too: a file that was cut and glued must not pass.
    """
    file = str(path)
    line = 0
    try:
        with path.open("rb") as raw:
            packed = raw.peek(2)[:2] == GZIP_MAGIC
            stream = gzip.GzipFile(fileobj=raw) if packed else raw
            for line, data in enumerate(stream, start=1):
                where = Where(file, line)
                yield where, parse_line(data, where)
    except FileNotFoundError:
        raise FormatError(file, None, None, "no such file") from None
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise FormatError(file, line + 1, None, f"damaged gzip data: {error}") from None
    except OSError as error:
        raise FormatError(file, None, None, error.strerror or str(error)) from None


def parse_line(data: bytes, where: Where) -> Any:
    """One line's JSON value. Raises FormatError, whatever the bytes are."""

    def unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        value = dict(pairs)
        if len(value) != len(pairs):
            names = [name for name, _ in pairs]
            double = next(name for name in names if names.count(name) > 1)
            raise where.member(double).error("given twice in one object")
        return value

    def refuse(constant: str) -> NoReturn:
        raise where.error(f"{constant} is not JSON")

    try:
        text = data.decode("utf-8")
    except UnicodeDecodeError as error:
        raise where.error(f"not UTF-8 at byte {error.start}") from None
    if not text.strip():
        raise where.error("empty line; every line holds one JSON object")
    try:
        return json.loads(text, object_pairs_hook=unique, parse_constant=refuse)
    except json.JSONDecodeError as error:
        raise where.error(f"not JSON at column {error.colno}: {error.msg}") from None
    except ValueError as error:  # an int of thousands of digits
        raise where.error(str(error)) from None
    except RecursionError:
        raise where.error("nested too deeply") from None


@contextmanager
def object_writer(path: Path) -> Iterator[Callable[[Any], None]]:
    """Writes one value per line, gzip when the name ends in `.gz`.

    The file appears under its name when the `with` block ends, and never if it ends with an error.
    Equal values give equal bytes (gzip's time stamp is left out). A device such as /dev/null is
    written to, not replaced.
    """
    is_device = path.exists() and not path.is_file()
    temporary = path if is_device else path.with_name(f".{path.name}.{os.getpid()}.part")
    try:
        with temporary.open("wb") as raw:
            packed = path.name.endswith(".gz")
            target = gzip.GzipFile("", "wb", 9, raw, mtime=0) if packed else raw

            def write(value: Any) -> None:
                target.write(json.dumps(value, separators=(",", ":")).encode("ascii") + b"\n")

            yield write
            if packed:
                target.close()
        if not is_device:
            os.replace(temporary, path)
    except BaseException:
        if not is_device:
            temporary.unlink(missing_ok=True)
        raise
