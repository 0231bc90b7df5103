"""From bytes to the objects of a trace, one at a time, and checked access to their fields."""

from __future__ import annotations

import json
import math
import re
from array import array
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Any, Protocol

from kvcheck.tools.replay.trace import TraceError, TraceRecord
from kvspec.errors import FormatError
from kvspec.files.jsonlines import parse_json
from kvspec.files.objects import Where
from kvspec.files.stream import MAX_LINE_BYTES, split_lines

MAX_OBJECT_BYTES = 2**28
"""Longest object in a file that is one JSON value: an agent's session may be this long."""

_MARKS = re.compile(rb'\\.|["\\\[\]{}]', re.DOTALL)
"""The bytes that can end strings and objects; a backslash includes the byte that it escapes."""


class Reader(Protocol):
    """One form of a trace. An instance reads one file.

    `name`: for `--format`. `has_times`: whether the data has the times of arrival.
    """

    name: str
    has_times: bool

    @property
    def notes(self) -> tuple[str, ...]:
        """Sentences on what is inexact; complete once all records are read."""

    def records(self, chunks: Iterable[bytes], file: str) -> Iterator[TraceRecord]:
        """Yield the requests of a file of that name, from its content. Raises TraceError."""


@dataclass(frozen=True)
class Fields:
    """An object of a trace, and its place; `path` leads to it from the object of the line.

    `form`: the format's name and its expected content, for errors.
    """

    value: dict[str, Any]
    file: str
    line: int
    form: str
    path: str = ""

    def error(self, name: str, problem: str) -> TraceError:
        """Return an error with the problem of the field, what is expected, and advice."""
        advice = "if the file has another format, name it with --format"
        field = self.path + name
        return TraceError(self.file, self.line, field or None, f"{problem}; {self.form}; {advice}")

    def get(self, name: str) -> Any:
        """Return the value of the field; raise an error if it is missing."""
        if name not in self.value:
            raise self.error(name, "is missing")
        return self.value[name]

    def count(self, name: str, minimum: int) -> int:
        """Return an integer; `true` and `1.0` do not count."""
        value = self.get(name)
        if type(value) is not int or value < minimum:
            expected = f"must be an integer of at least {minimum}"
            raise self.error(name, f"{expected}, not {shown(value)}")
        return value

    def milliseconds(self, name: str, unit: str = "seconds") -> int:
        """Return a number of seconds, or of `milliseconds`, rounded to whole milliseconds."""
        value = self.get(name)
        if not isinstance(value, int | float) or value is True or not 0 <= value < 2**53:
            raise self.error(name, f"must be {unit}, a number of at least 0, not {shown(value)}")
        return math.floor(value * (1000 if unit == "seconds" else 1) + 0.5)

    def text(self, name: str) -> str:
        value = self.get(name)
        if not isinstance(value, str):
            raise self.error(name, f"must be a text, not {shown(value)}")
        return value

    def objects(self, name: str) -> list[Fields]:
        value = self.get(name)
        if not isinstance(value, list):
            raise self.error(name, f"must be a list of objects, not {shown(value)}")
        found = []
        for index, item in enumerate(value):
            if not isinstance(item, dict):
                raise self.error(f"{name}[{index}]", f"must be an object, not {shown(item)}")
            path = f"{self.path}{name}[{index}]."
            found.append(Fields(item, self.file, self.line, self.form, path))
        return found

    def naturals(self, name: str) -> list[int]:
        """Return a list of integers of at least 0."""
        value = self.get(name)
        if not isinstance(value, list):
            raise self.error(name, "must be a list of integers")
        for index, item in enumerate(value):
            if type(item) is not int or item < 0:
                problem = f"must be an integer of at least 0, not {shown(item)}"
                raise self.error(f"{name}[{index}]", problem)
        return value

    def tokens(self, name: str) -> array[int]:
        """Return a list of tokens as an engine logs them, each below 2^32."""
        try:
            return array("I", self.naturals(name))
        except OverflowError:
            raise self.error(name, "has a token of 2^32 or more") from None

    def inner(self, name: str) -> Fields:
        """Return a member that is an object."""
        value = self.get(name)
        if not isinstance(value, dict):
            raise self.error(name, "must be an object")
        return Fields(value, self.file, self.line, self.form, f"{name}.")

    def labelled(self, record: TraceRecord, tenant: str, sign: int) -> TraceRecord:
        """Return the record with the tenant and the priority of the line, if it has them.

        `sign`: -1 where the lowest number is the most important, as in vLLM's requests.
        """
        name, priority = self.value.get(tenant), self.value.get("priority") or 0
        if type(priority) is not int or abs(priority) >= 2**63:
            raise self.error("priority", f"must be an integer, not {shown(priority)}")
        label = name if isinstance(name, str) else "" if name is None else json.dumps(name)
        return replace(record, tenant=label, priority=sign * priority)

    def run_ids(
        self, input_length: int, run_length: int, *, last_may_lack: bool = False
    ) -> tuple[int, ...]:
        """Return `hash_ids`: one for each run of the input, the last one cut.

        `last_may_lack`: a last run that is cut may have no id.
        """
        ids = self.naturals("hash_ids")
        expected = -(-input_length // run_length)
        allowed = {expected, input_length // run_length} if last_may_lack else {expected}
        if len(ids) not in allowed:
            problem = (
                f"has {len(ids)} ids, but {input_length} input tokens need {expected}"
                f" (one per {run_length} tokens)"
            )
            fits = _fitting(input_length, len(ids)) if last_may_lack else None
            hint = "" if fits is None else f"; --run-length {fits} fits this line"
            raise self.error("hash_ids", problem + hint)
        return tuple(ids)


def cut_note(count: int) -> str:
    """Return a note on prompts whose last run has no id, which then shares nothing."""
    return f"prompts whose last run is cut and has no id: {count:,}; none shares it"


def _fitting(input_length: int, num_ids: int) -> int | None:
    """Return the power of two, from 1 to 2^16, that cuts the input into `num_ids` runs."""
    lengths = (1 << bits for bits in range(17))
    return next((each for each in lengths if -(-input_length // each) == num_ids), None)


def shown(value: object) -> str:
    """Return the value as JSON, cut to one short line."""
    text = json.dumps(value)
    return text if len(text) <= 40 else text[:37] + "…"


def text_lines(chunks: Iterable[bytes], file: str) -> Iterator[tuple[int, bytes]]:
    """Yield the lines that are not blank, each with its number."""
    for line, text in enumerate(split_lines(chunks), start=1):
        if len(text) > MAX_LINE_BYTES:
            raise TraceError(file, line, None, f"is longer than {MAX_LINE_BYTES} bytes")
        if text.strip():
            yield line, text


def json_lines(chunks: Iterable[bytes], file: str, form: str) -> Iterator[Fields]:
    """Yield the objects of a file that has one on every line."""
    for line, text in text_lines(chunks, file):
        yield parsed(text, file, line, form)


def json_objects(chunks: Iterable[bytes], file: str, form: str) -> Iterator[Fields]:
    """Yield the objects of a file, on a line each, over several lines, or in one list."""
    for line, text in _split_objects(chunks, file, form):
        yield parsed(text, file, line, form)


def parsed(text: bytes, file: str, line: int, form: str) -> Fields:
    """Return the object of a line."""
    try:
        value = parse_json(text, Where(file, line))
    except FormatError as error:
        raise TraceError(file, line, error.field, error.problem) from error
    if not isinstance(value, dict):
        raise Fields({}, file, line, form).error("", "is not a JSON object")
    return Fields(value, file, line, form)


class _Splitter:
    """Finds where objects begin and end, by brackets outside of strings.

    `depth` counts open brackets without the one of a list around all objects.
    """

    def __init__(self, file: str, form: str) -> None:
        self.file, self.form = file, form
        self.pending = bytearray()
        self.line = self.began = 1
        self.depth = 0
        self.in_list = self.in_string = False

    def error(self, problem: str) -> TraceError:
        return Fields({}, self.file, self.line, self.form).error("", problem)

    def between(self, data: bytes) -> None:
        """Check the bytes between objects: white space and commas."""
        for text in data.split(b"\n"):
            if text.strip(b" \t\r,"):
                raise self.error(f"is no JSON object: {shown(text[:30].decode(errors='replace'))}")
            self.line += 1
        self.line -= 1

    def inside(self, data: bytes) -> None:
        """Collect a part of an object."""
        self.pending += data
        self.line += data.count(b"\n")
        if len(self.pending) > MAX_OBJECT_BYTES:
            self.line = self.began
            raise self.error(f"begins an object of more than {MAX_OBJECT_BYTES} bytes")

    def passed(self, data: bytes) -> None:
        if self.depth:
            self.inside(data)
        else:
            self.between(data)

    def bracket(self, mark: bytes) -> bytes | None:
        """Handle a bracket outside of strings; returns the object that it ends, if any."""
        if not self.depth and mark != b"{":
            if mark == (b"]" if self.in_list else b"["):
                self.in_list = not self.in_list
                return None
            raise self.error(f"is no JSON object: {mark.decode()} where one should begin")
        if not self.depth:
            self.began = self.line
        self.inside(mark)
        self.depth += 1 if mark in b"{[" else -1
        if self.depth:
            return None
        found = bytes(self.pending)
        self.pending.clear()
        return found


def _split_objects(chunks: Iterable[bytes], file: str, form: str) -> Iterator[tuple[int, bytes]]:
    """Yield each object's bytes, and the line on which it begins."""
    state = _Splitter(file, form)
    held = b""
    for chunk in chunks:
        data, held, start = held + chunk, b"", 0
        for match in _MARKS.finditer(data):
            mark = match.group()
            if mark == b"\\":  # its other half is in the next chunk
                data, held = data[:-1], mark
            elif mark == b'"':
                state.in_string = not state.in_string
            elif not state.in_string and len(mark) == 1:
                state.passed(data[start : match.start()])
                start = match.end()
                found = state.bracket(mark)
                if found is not None:
                    yield state.began, found
        state.passed(data[start:])
    if state.depth or state.in_list:
        state.line = state.began
        raise state.error("begins what the file does not end: it is cut off")
