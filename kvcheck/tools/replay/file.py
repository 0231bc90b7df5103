"""A trace in a file or a pipe, plain or compressed; the first bytes decide, not the name."""

from __future__ import annotations

import os
import stat
import sys
from collections.abc import Iterable, Iterator
from itertools import chain
from types import TracebackType
from typing import BinaryIO

from kvcheck.tools.replay.formats.choice import (
    FORMATS,
    START_BYTES,
    TEXT_FORMATS,
    reader_of,
    recognised,
)
from kvcheck.tools.replay.formats.conversation import TextReader
from kvcheck.tools.replay.formats.input import Reader
from kvcheck.tools.replay.formats.text import Tokenizer
from kvcheck.tools.replay.trace import Spelling, TraceError, TraceRecord
from kvspec.files.stream import DamagedStreamError, MissingLibraryError, uncompressed

STDIN = "-"


class TraceFile:
    """A trace in a file, or on standard input for the path `-`. A context manager, read once.

    `ordered`: timestamps must not go backwards. `form`: one of `FORMATS`; without one the content
    decides. `tokenizer`: for texts. `run_length`: tokens of an id, see `reader_of`. Raises
    TraceError when the file cannot be read, and while iterating for the first malformed line.
    """

    def __init__(
        self,
        path: str,
        *,
        ordered: bool = False,
        form: str | None = None,
        tokenizer: Tokenizer | None = None,
        run_length: int | None = None,
    ) -> None:
        self._ordered, self._form, self._tokenizer = ordered, form, tokenizer
        self._run_length = run_length
        self._reader: Reader | None = None
        self._last_line = self._lines = self._requests = 0
        self._ends_line = False
        self._from_stdin = path == STDIN
        self.name = "standard input" if self._from_stdin else path
        self.total: int | None = None
        self._raw: BinaryIO = sys.stdin.buffer
        if self._from_stdin:
            return
        try:
            # Closed by __exit__: the file outlives this call.
            self._raw = open(path, "rb")  # noqa: SIM115
        except OSError as error:
            raise TraceError(path, None, None, f"cannot be read: {error.strerror}") from error
        status = os.fstat(self._raw.fileno())
        if stat.S_ISREG(status.st_mode):  # a named pipe has no size
            self.total = status.st_size

    def __enter__(self) -> TraceFile:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if not self._from_stdin:
            self._raw.close()

    @property
    def position(self) -> int:
        """Bytes read so far, compressed ones for a compressed file; 0 for a pipe."""
        return 0 if self.total is None else self._raw.tell()

    @property
    def notes(self) -> tuple[str, ...]:
        """Sentences on what this format leaves inexact; complete once all records are read."""
        if self._reader is None:
            return ()
        counts = f"requests: {self._requests:,}, from {self._lines:,} lines"
        return (*self._reader.notes, *([counts] if self._requests != self._lines else []))

    @property
    def spelling(self) -> Spelling | None:
        """How to read tokens as text; complete once all records are read."""
        return self._reader.spelling if isinstance(self._reader, TextReader) else None

    def __iter__(self) -> Iterator[TraceRecord]:
        previous = 0
        try:
            reader, chunks = self._begin()
            for record in reader.records(chunks, self.name):
                if self._ordered and not reader.has_times:
                    problem = "has no time; use --arrival ignore"
                    raise TraceError(self.name, record.line, None, problem)
                if self._ordered and record.timestamp_ms < previous:
                    problem = (
                        f"{record.timestamp_ms} ms is before {previous} ms, the time of an earlier"
                        " request; sort the trace by timestamp or use --arrival ignore"
                    )
                    raise TraceError(self.name, record.line, "timestamp", problem)
                previous = record.timestamp_ms
                self._requests += 1
                self._lines = max(self._lines, record.line)
                yield record
            self._lines = self._last_line - self._ends_line
        except MissingLibraryError as error:
            raise TraceError(self.name, None, None, str(error)) from error
        except (OSError, DamagedStreamError) as error:
            problem = f"cannot be read further: {error}"
            raise TraceError(self.name, self._last_line, None, problem) from error

    def _begin(self) -> tuple[Reader, Iterable[bytes]]:
        """Return the reader, and all of the content."""
        content = self._counted(uncompressed(self._raw))
        start: list[bytes] = []
        form = self._form
        if form is None:
            length = 0
            for chunk in content:
                start.append(chunk)
                length += len(chunk)
                if length >= START_BYTES:
                    break
            form = self._recognised(b"".join(start))
        if self._tokenizer is not None and form not in TEXT_FORMATS:
            problem = f"has no texts, as {form} has none; leave out --tokenizer"
            raise TraceError(self.name, None, None, problem)
        if self._run_length and form != "mooncake":
            problem = f"{form} gives the tokens per id itself; leave out --run-length"
            raise TraceError(self.name, None, None, problem)
        self._reader = reader_of(form, self._tokenizer, self._run_length)
        if self._ordered and not self._reader.has_times:
            problem = f"has no times, as {form} has none; use --arrival ignore"
            raise TraceError(self.name, None, None, problem)
        return self._reader, chain(start, content)

    def _recognised(self, start: bytes) -> str:
        if not start.strip():
            return FORMATS[0]  # empty: no requests in any
        form = recognised(start)
        if form is None:
            formats = ", ".join(FORMATS)
            problem = f"begins like no trace that is known; --format says what it is: {formats}"
            raise TraceError(self.name, 1, None, problem)
        return form

    def _counted(self, chunks: Iterable[bytes]) -> Iterator[bytes]:
        """Yield the chunks and count the lines, to locate damage."""
        self._last_line = 1
        for chunk in chunks:
            self._last_line += chunk.count(b"\n")
            self._ends_line = chunk.endswith(b"\n")
            yield chunk
