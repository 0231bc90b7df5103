"""Compare what a record holds with what an implementation did, and describe differences."""

from __future__ import annotations

import json
import traceback
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kvcheck.play.difference import first_difference
from kvcheck.play.player import Outcome
from kvcheck.play.state import View, digest, parts
from kvspec.record import Observed

SHOWN_CHARACTERS = 300
"""Values longer than this are cut in a readable diff; `--verbose` and `--json` show all."""

BUILTIN_ERRORS: Mapping[str, type[Exception]] = {
    error.__name__: error for error in (ValueError, KeyError, LookupError, NotImplementedError)
}
"""The classes a trace's `raises` may name: what a caller writes after `except`."""


@dataclass(frozen=True)
class Difference:
    """A value that differs from the one required.

    `place` is where the two values differ, e.g. `[0][2]` (empty: at the top).
    """

    field: str
    expected: Any
    got: Any
    place: str = ""
    expected_there: Any = None
    got_there: Any = None

    def lines(self, limit: int | None) -> Iterator[str]:
        """Yield the readable form; `limit` cuts long values (None: never)."""
        yield self.field
        yield f"  expected {_show(self.expected, limit)}"
        yield f"  got      {_show(self.got, limit)}"
        if self.place:
            expected, got = _show(self.expected_there, limit), _show(self.got_there, limit)
            yield f"  first at {self.place}: expected {expected}, got {got}"


@dataclass(frozen=True)
class Mismatch:
    """A record that an implementation does not follow.

    `what` names the record ("operation 17"), `call` the call, made with `arguments`.
    `before` and `after` describe the state around it, as the implementation shows it.
    """

    file: str
    line: int
    what: str
    call: str
    arguments: Mapping[str, Any]
    differences: tuple[Difference, ...]
    before: str = ""
    after: str = ""

    def render(self, *, verbose: bool = False) -> str:
        limit = None if verbose else SHOWN_CHARACTERS
        arguments = ", ".join(
            f"{name}={_cut(json.dumps(value), limit)}" for name, value in self.arguments.items()
        )
        lines = [f"{self.file}, line {self.line}: {self.what}", f"  {self.call}({arguments})"]
        for difference in self.differences:
            lines += [f"  {line}" for line in difference.lines(limit)]
        for title, state in (("state before", self.before), ("state after", self.after)):
            if state:
                lines += [f"  {title}", *(f"    {line}" for line in state.splitlines())]
        return "\n".join(lines)

    def to_json(self) -> dict[str, Any]:
        return {
            "file": self.file,
            "line": self.line,
            "record": self.what,
            "call": self.call,
            "arguments": dict(self.arguments),
            "differences": [
                {"field": d.field, "expected": d.expected, "got": d.got, "place": d.place}
                for d in self.differences
            ],
            "state_before": self.before,
            "state_after": self.after,
        }


def compare_values(field: str, expected: Any, got: Any) -> Iterator[Difference]:
    """Yield the difference between two JSON values, if there is one."""
    parting = first_difference(expected, got)
    if parting is not None:
        place, expected_there, got_there = parting
        yield Difference(field, expected, got, place, expected_there, got_there)


def compare_outcome(result: Any, raises: str | None, outcome: Outcome) -> Iterator[Difference]:
    """Compare the outcome of a call with the one required.

    Only the class of an error counts, not its message: an implementation passes when
    `except ValueError` would catch what it raises.
    """
    error = outcome.error
    if raises is None and error is not None:
        yield Difference("error", "none", describe_error(error))
    elif raises is None:
        yield from compare_values("result", result, outcome.result)
    elif error is None:
        yield Difference("error", raises, f"none, but the result {_show(outcome.result, 100)}")
    elif not isinstance(error, BUILTIN_ERRORS[raises]):
        yield Difference("error", raises, describe_error(error))


def compare_usage(expected: Observed, num_free_blocks: int, usage: float) -> Iterator[Difference]:
    """Compare the number of free blocks and the usage, which every record shows."""
    yield from compare_values("num_free_blocks", expected.num_free_blocks, num_free_blocks)
    yield from compare_values("usage", expected.usage, usage)


def compare_observed(expected: Observed, got: View, before: View | None) -> Iterator[Difference]:
    """Compare the state that a record shows with that of the implementation.

    `before` is the state that the previous record was found equal to; members that a record omits
    must still be as they were there.
    """
    yield from compare_usage(expected, got.num_free_blocks, got.usage)
    if expected.state_sha256 is not None:
        yield from _compare_hashes(expected, got, before)
        return
    for name in got.state:
        unchanged = None if before is None else before.state[name]
        yield from compare_values(
            f"state.{name}", expected.state.get(name, unchanged), got.state[name]
        )
    order = expected.dup_order
    if order is None:
        order = {} if before is None else before.dup_order
    yield from compare_values("dup_order", dict(order), dict(got.dup_order))


def _compare_hashes(expected: Observed, got: View, before: View | None) -> Iterator[Difference]:
    for name in got.state:
        if name in expected.state_parts:
            wanted = expected.state_parts[name]
        elif before is not None:
            wanted = parts({name: before.state[name]})[name]
        else:
            continue
        part = parts({name: got.state[name]})[name]
        yield from compare_values(f"state_parts.{name}", wanted, part)
    yield from compare_values("state_sha256", expected.state_sha256, digest(dict(got.state)))


def describe_error(error: Exception) -> str:
    """Return `Class: message (file:line)` with the place where it was raised."""
    frames = traceback.extract_tb(error.__traceback__)
    where = f" ({Path(frames[-1].filename).name}:{frames[-1].lineno})" if frames else ""
    return f"{type(error).__name__}: {error}{where}"


def _show(value: Any, limit: int | None) -> str:
    if not isinstance(value, str):
        return _cut(json.dumps(value, default=repr), limit)
    printable = value.encode("utf-8", "backslashreplace").decode("utf-8")
    return _cut(printable, limit).replace("\n", "\n" + " " * 13)


def _cut(text: str, limit: int | None) -> str:
    """Return the first `limit` characters (None: all), and how many there were."""
    if limit is None or len(text) <= limit:
        return text
    return f"{text[:limit]} … ({len(text)} characters)"
