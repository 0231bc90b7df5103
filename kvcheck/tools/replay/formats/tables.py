"""Traces that are tables of times and lengths: BurstGPT's and Azure's.

They say nothing about contents, so no two requests have anything in common here.
"""

from __future__ import annotations

import csv
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import count

from kvcheck.tools.replay.formats.input import Fields, text_lines
from kvcheck.tools.replay.trace import RUN_LENGTH_TOKENS, TraceError, TraceRecord


@dataclass(frozen=True)
class Columns:
    """The columns of a table that are read, and how its format is called."""

    name: str
    time: str
    input_length: str
    output_length: str

    @property
    def form(self) -> str:
        """Description of the format in errors."""
        columns = f"{self.time}, {self.input_length}, {self.output_length}"
        return f"{self.name} is a CSV table with the columns {columns}"


BURSTGPT = Columns("burstgpt", "Timestamp", "Request tokens", "Response tokens")
AZURE = Columns("azure", "TIMESTAMP", "ContextTokens", "GeneratedTokens")


class TableReader:
    """Rows without an input are left out, and counted."""

    has_times = True

    def __init__(self, columns: Columns) -> None:
        self.name = columns.name
        self._columns = columns
        self._left_out = 0
        self._ids = count()

    @property
    def notes(self) -> tuple[str, ...]:
        """Notes, the first of which says that there are no prefixes."""
        found: tuple[str, ...] = (
            "no prefixes in the data, so no hits are possible: the hit rate is 0 by construction;"
            " lengths and times are exact",
        )
        if self._left_out:
            found += (f"rows left out, with an input of 0 tokens: {self._left_out:,}",)
        return found

    def records(self, chunks: Iterable[bytes], file: str) -> Iterator[TraceRecord]:
        """Yield a record for every row."""
        header: list[str] = []
        began: datetime | None = None
        for line, data in text_lines(chunks, file):
            row = _cells(data, file, line)
            if not header:
                header = self._header(row, file, line)
                continue
            if len(row) != len(header):
                problem = f"has {len(row)} cells, but the table has {len(header)} columns"
                raise Fields({}, file, line, self._columns.form).error("", problem)
            cells = dict(zip(header, row, strict=True))
            fields = Fields(cells, file, line, self._columns.form)
            if self._columns is AZURE:
                moment = _moment(fields, AZURE.time)
                began = began or moment
                timestamp = round((moment - began).total_seconds() * 1000)
            else:
                timestamp = _seconds(fields, self._columns.time)
            if timestamp < 0:
                raise fields.error(self._columns.time, "is before the first row; sort the table")
            input_length = _length(fields, self._columns.input_length)
            output_length = _length(fields, self._columns.output_length)
            if not input_length:
                self._left_out += 1
                continue
            runs = -(-input_length // RUN_LENGTH_TOKENS)
            ids = tuple(next(self._ids) for _ in range(runs))
            yield TraceRecord(line, timestamp, input_length, output_length, ids)

    def _header(self, row: list[str], file: str, line: int) -> list[str]:
        """Return the names of the columns."""
        header = [each.strip() for each in row]
        wanted = self._columns
        for name in (wanted.time, wanted.input_length, wanted.output_length):
            if name not in header:
                raise Fields({}, file, line, wanted.form).error(name, "is no column of the table")
        return header


def _cells(data: bytes, file: str, line: int) -> list[str]:
    try:
        (row,) = csv.reader([data.decode("utf-8-sig").rstrip("\r")])
    except UnicodeDecodeError as error:
        raise TraceError(file, line, None, f"not UTF-8 at byte {error.start}") from None
    except csv.Error as error:
        raise TraceError(file, line, None, f"no row of a CSV table: {error}") from None
    return row


def _seconds(fields: Fields, name: str) -> int:
    text: str = fields.value[name]
    try:
        seconds: object = float(text)
    except ValueError:
        seconds = text
    return fields.checked_milliseconds(name, seconds)


def _moment(fields: Fields, name: str) -> datetime:
    """Parse a date and time, whose fraction may have more digits than Python reads."""
    text: str = fields.value[name].strip()
    whole, dot, rest = text.partition(".")
    digits = rest[: len(rest) - len(rest.lstrip("0123456789"))]
    zone = rest[len(digits) :]
    try:
        found = datetime.fromisoformat(whole + (f".{digits[:6]:0<6}" if dot else "") + zone)
    except ValueError:
        problem = f"must be a date and time like 2023-11-16 18:17:03.9799600, not {text[:40]!r}"
        raise fields.error(name, problem) from None
    return found if found.tzinfo is not None else found.replace(tzinfo=UTC)


def _length(fields: Fields, name: str) -> int:
    text = fields.value[name].strip()
    if not (text.isascii() and text.isdigit() and len(text) <= 9):
        raise fields.error(name, f"must be a number of tokens, not {text[:40]!r}")
    return int(text)
