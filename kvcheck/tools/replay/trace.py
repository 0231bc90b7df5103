"""Request traces: what one line holds, and how it is read and checked.

The format is Mooncake's: one JSON object a line with `timestamp` (ms), `input_length`,
`output_length` (tokens) and `hash_ids`, one id per 512 input tokens (the last one may cover
fewer). Files are read as a stream, plain or compressed; the first bytes decide, not the name.
"""

from __future__ import annotations

import hashlib
import json
import os
import stat
import sys
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from types import TracebackType
from typing import BinaryIO, Protocol

from kvspec._json import Where
from kvspec._jsonlines import parse_json
from kvspec._stream import (
    MAX_LINE_BYTES,
    DamagedStreamError,
    MissingLibraryError,
    split_lines,
    uncompressed,
)
from kvspec.errors import FormatError, InvalidArgumentError

RUN_LENGTH_TOKENS = 512
"""Input tokens that one id of a trace stands for."""

STDIN = "-"


class TraceError(FormatError):
    """A trace that cannot be replayed; names the file, the line and the field."""


@dataclass(frozen=True, slots=True)
class TraceRecord:
    """One request of a trace.

    `line` counts from 1 in the file. `hash_ids[i]` names the content of input tokens
    512*i … 512*i + 511, cut to `input_length` in the last run.
    """

    line: int
    timestamp_ms: int
    input_length: int
    output_length: int
    hash_ids: tuple[int, ...]


class TraceSource(Protocol):
    """Where records come from: a file, a stream or a generator."""

    @property
    def name(self) -> str:
        """How errors and reports call it."""

    @property
    def total(self) -> int | None:
        """Size of the whole in the unit of `position` (bytes or requests); None if unknown."""

    @property
    def position(self) -> int:
        """How much of it was read."""

    def __iter__(self) -> Iterator[TraceRecord]:
        """The records, in order, each read when it is asked for."""


class TraceFile:
    """A trace in a file, or on standard input for the path `-`. A context manager, read once.

    `ordered`: timestamps must not go backwards. Raises TraceError when the file cannot be read,
    and while iterating for the first malformed line.
    """

    def __init__(self, path: str, *, ordered: bool = False) -> None:
        self._ordered = ordered
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

    def __iter__(self) -> Iterator[TraceRecord]:
        previous = 0
        line = 0
        try:
            for line, text in enumerate(split_lines(uncompressed(self._raw)), start=1):
                if len(text) > MAX_LINE_BYTES:
                    problem = f"is longer than {MAX_LINE_BYTES} bytes"
                    raise TraceError(self.name, line, None, problem)
                if not text.strip():
                    continue
                record = parse_record(text, file=self.name, line=line)
                if self._ordered and record.timestamp_ms < previous:
                    problem = (
                        f"{record.timestamp_ms} is before {previous}, the one of an earlier"
                        " request; sort the trace by timestamp or use --arrival ignore"
                    )
                    raise TraceError(self.name, line, "timestamp", problem)
                previous = record.timestamp_ms
                yield record
        except MissingLibraryError as error:
            raise TraceError(self.name, None, None, str(error)) from error
        except (OSError, DamagedStreamError) as error:
            # line counts the whole lines before the damage.
            problem = f"cannot be read further: {error}"
            raise TraceError(self.name, line + 1, None, problem) from error


def parse_record(text: bytes, *, file: str, line: int) -> TraceRecord:
    """The request on one line; unknown fields are ignored. Raises TraceError."""
    try:
        fields = parse_json(text, Where(file, line))
    except FormatError as error:
        raise TraceError(file, line, error.field, error.problem) from error
    if not isinstance(fields, dict):
        raise TraceError(file, line, None, "is not a JSON object with the fields of a request")
    timestamp = _count(fields, "timestamp", 0, file, line)
    input_length = _count(fields, "input_length", 1, file, line)
    output_length = _count(fields, "output_length", 0, file, line)
    ids = fields.get("hash_ids")
    if not isinstance(ids, list):
        problem = "is missing" if "hash_ids" not in fields else "must be a list of integers"
        raise TraceError(file, line, "hash_ids", problem)
    for index, run_id in enumerate(ids):
        if type(run_id) is not int or run_id < 0:
            problem = f"must be an integer of at least 0, not {_shown(run_id)}"
            raise TraceError(file, line, f"hash_ids[{index}]", problem)
    expected = -(-input_length // RUN_LENGTH_TOKENS)
    if len(ids) != expected:
        problem = (
            f"has {len(ids)} ids, but input_length {input_length} needs {expected}"
            f" (one per {RUN_LENGTH_TOKENS} tokens)"
        )
        raise TraceError(file, line, "hash_ids", problem)
    return TraceRecord(line, timestamp, input_length, output_length, tuple(ids))


def record_line(record: TraceRecord) -> str:
    """The record as one line of a trace, without the line feed."""
    return json.dumps(
        {
            "timestamp": record.timestamp_ms,
            "input_length": record.input_length,
            "output_length": record.output_length,
            "hash_ids": list(record.hash_ids),
        }
    )


def _count(fields: dict[str, object], name: str, minimum: int, file: str, line: int) -> int:
    """The integer field `name`; `True` and `1.0` are no counts."""
    if name not in fields:
        raise TraceError(file, line, name, "is missing")
    value = fields[name]
    if not isinstance(value, int) or isinstance(value, bool) or value < minimum:
        problem = f"must be an integer of at least {minimum}, not {_shown(value)}"
        raise TraceError(file, line, name, problem)
    return value


def _shown(value: object) -> str:
    """The value as JSON, cut to one short line."""
    text = json.dumps(value)
    return text if len(text) <= 40 else text[:37] + "…"


def select(
    records: Iterable[TraceRecord], *, sample: float = 1.0, limit: int | None = None
) -> Iterator[TraceRecord]:
    """The records that are kept: each with probability `sample`, then the first `limit` of them.

    Whether one is kept depends on its line number alone: the first 8 bytes (big-endian) of
    SHA-256("kvspec-sample:" + line number) below `sample` * 2^64. Raises InvalidArgumentError.
    """
    if not 0 < sample <= 1:
        raise InvalidArgumentError("sample", sample, "a number above 0 and at most 1")
    if limit is not None and limit < 1:
        raise InvalidArgumentError("limit", limit, "an int of at least 1")
    return _select(records, int(sample * 2**64), limit)


def _select(
    records: Iterable[TraceRecord], threshold: int, limit: int | None
) -> Iterator[TraceRecord]:
    """`select` after its checks; stops reading as soon as the limit is reached."""
    kept = 0
    for record in records:
        if _lot(record.line) >= threshold:
            continue
        yield record
        kept += 1
        if kept == limit:
            return


def _lot(line: int) -> int:
    """The number in 0 … 2^64 - 1 that decides whether a line is sampled."""
    digest = hashlib.sha256(b"kvspec-sample:%d" % line).digest()
    return int.from_bytes(digest[:8], "big")
