"""Request traces: what a request of one is, whatever its file looks like, and which are kept."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from kvspec.errors import FormatError, InvalidArgumentError

RUN_LENGTH_TOKENS = 512
"""Input tokens that one id of Mooncake's and of generated traces represents."""

ESTIMATED = "lengths are estimates"
NO_OUTPUTS = "the trace has no generated tokens: answers in later prompts are misses"
"""The note of traces that have only numbers of them."""


class TraceError(FormatError):
    """A trace that cannot be replayed; names the file, the line and the field."""


@dataclass(frozen=True, slots=True)
class TraceRecord:
    """One request of a trace.

    `line` counts from 1 in the file; `part` from 0 where one line holds several requests.
    `hash_ids[i]` names the content of input tokens `run_length` * i up to the next run, cut to
    `input_length` in the last run. All records of a trace have the same `run_length`. Blocks of a
    higher `priority` are to be kept longer.

    `output_ids`: the runs behind these, where the output is known; None where it is not. The last
    of `hash_ids` then names the whole run, with the beginning of the output.
    """

    line: int
    timestamp_ms: int
    input_length: int
    output_length: int
    hash_ids: tuple[int, ...]
    run_length: int = RUN_LENGTH_TOKENS
    part: int = 0
    tenant: str = ""
    priority: int = 0
    output_ids: tuple[int, ...] | None = None

    @property
    def ids(self) -> tuple[int, ...]:
        """All runs that are known."""
        return self.hash_ids + (self.output_ids or ())

    @property
    def cached_length(self) -> int:
        """Known tokens that are computed: the last generated one never is."""
        generated = 0 if self.output_ids is None else max(self.output_length - 1, 0)
        return self.input_length + generated

    @property
    def needed_length(self) -> int:
        """Tokens that get slots: all but the last generated one."""
        return self.input_length + max(0, self.output_length - 1)

    @property
    def place(self) -> str:
        """`7`, or `7.2` for the third request of line 7: no two requests have the same."""
        return f"{self.line}.{self.part}" if self.part else str(self.line)


@dataclass(frozen=True, slots=True)
class Spelling:
    """How to read tokens, four bytes each with the low byte first, as text.

    `text` reads a part of a prompt; roles are in angle brackets. `width`: bytes that a part may be
    cut to, one where the tokens are the bytes of the text.
    """

    text: Callable[[bytes], str]
    width: int


class TraceSource(Protocol):
    """A source of records: a file, a stream or a generator."""

    @property
    def name(self) -> str:
        """Name in errors and reports."""

    @property
    def notes(self) -> tuple[str, ...]:
        """Sentences on what is inexact; complete once all records are read."""

    @property
    def spelling(self) -> Spelling | None:
        """How to read tokens as text, known once all records are read; None if there is none."""

    @property
    def total(self) -> int | None:
        """Size of the whole in the unit of `position` (bytes or requests); None if unknown."""

    @property
    def position(self) -> int:
        """Amount read so far."""

    def __iter__(self) -> Iterator[TraceRecord]:
        """Yield the records in order, each read when it is needed."""


def select(
    records: Iterable[TraceRecord], *, sample: float = 1.0, limit: int | None = None
) -> Iterator[TraceRecord]:
    """Yield each record with probability `sample`, up to `limit` records.

    Whether one is kept depends on its place alone: the first 8 bytes (big-endian) of
    SHA-256("kvspec-sample:" + place) below `sample` * 2^64. Raises InvalidArgumentError.
    """
    if not 0 < sample <= 1:
        raise InvalidArgumentError("sample", sample, "a number above 0 and at most 1")
    if limit is not None and limit < 1:
        raise InvalidArgumentError("limit", limit, "an int of at least 1")
    return _select(records, int(sample * 2**64), limit)


def _select(
    records: Iterable[TraceRecord], threshold: int, limit: int | None
) -> Iterator[TraceRecord]:
    """Select after the checks; stop reading as soon as the limit is reached."""
    kept = 0
    for record in records:
        if _lot(record.place) >= threshold:
            continue
        yield record
        kept += 1
        if kept == limit:
            return


def _lot(place: str) -> int:
    """Return the number in 0 … 2^64 - 1 that decides whether a request is sampled."""
    digest = hashlib.sha256(b"kvspec-sample:" + place.encode()).digest()
    return int.from_bytes(digest[:8], "big")


def short_names(traces: Sequence[str]) -> list[str]:
    """Return each trace's file name, or its whole path if another has the same name."""
    names = [Path(trace).name for trace in traces]
    return [
        trace if any(name == Path(other).name and trace != other for other in traces) else name
        for trace, name in zip(traces, names, strict=True)
    ]
