"""Judge a result: equal, true, or refused. The words of a failure are read from the source."""

from __future__ import annotations

import ast
import linecache
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from types import FrameType
from typing import Any

from kvcheck.play.difference import WrongAnswer
from kvcheck.play.left_out import LeftOut
from kvspec.errors import InvalidArgumentError, InvariantViolation, RemoteError

ANSWERS, HOLDS = "answers_as_the_rule_says", "the_rule_holds"
"""Names of these checks in findings."""

ILLEGAL_CALL = "KV-ERR-2"
"""The rule of a refused call that left a change behind, whatever its check is about."""

CALL_ENDS = "how the call ends"
"""A failed check of `raises`."""

UNSAID = ""
"""Default rule of a wrong result: the first of its check."""


class NotationError(ValueError):
    """A line that is not in the notation: `line` number, `reason`."""

    def __init__(self, reason: str, line: int = 0) -> None:
        self.line, self.reason = line, reason
        super().__init__(f"line {line}: {reason}" if line else reason)


@dataclass
class Caught:
    value: Any = None


def wrong(what: str, expected: object, got: object, rule: str = UNSAID) -> WrongAnswer:
    return WrongAnswer(ANSWERS, rule, what, expected, got)


def equal(got: object, expected: object, what: str = "", *, rule: str = UNSAID) -> None:
    """Check that the result is what the rule says. `what`: replaces the source of `got`."""
    if got != expected:
        raise wrong(what or source_of_call(sys._getframe(1)), expected, got, rule)


def holds(fact: object, what: str = "", *, rule: str = UNSAID) -> None:
    if not fact:
        asked = what or source_of_call(sys._getframe(1))
        raise InvariantViolation(HOLDS, rule, f"not so: {asked}")


@contextmanager
def raises(
    error: type[BaseException] | tuple[type[BaseException], ...],
    *,
    unchanged: Callable[[], object] | None = None,
    **members: object,
) -> Iterator[Caught]:
    """Check that the body raises this error with these members, and what is `unchanged` is."""
    wanted = error if isinstance(error, tuple) else (error,)
    names = " or ".join(cls.__name__ for cls in wanted)
    before = unchanged() if unchanged is not None else None
    caught = Caught()
    try:
        yield caught
    except error as found:
        travels(found)
        caught.value = found
    except (LeftOut, NotationError, InvariantViolation):
        raise
    except Exception as other:  # of another type: the wrong error
        travels(other)
        raise wrong(CALL_ENDS, names, other) from other
    else:
        raise wrong(CALL_ENDS, names, "an answer")
    told = {name: getattr(caught.value, name, None) for name in members}
    if _listed(told) != _listed(members):
        raise wrong(f"the {names}", members, told)
    after = unchanged() if unchanged is not None else None
    if after != before:
        raise wrong("the state after it", before, after, ILLEGAL_CALL)


def _listed(value: object) -> object:
    """Return the value with tuples as lists, as it arrives from another process."""
    if isinstance(value, dict):
        return {name: _listed(member) for name, member in value.items()}
    if isinstance(value, (list, tuple)):
        return [_listed(item) for item in value]
    return value


def travels(error: BaseException) -> None:
    """Leave the check out if one of its values cannot be sent to another process."""
    if isinstance(error, InvalidArgumentError) and "the protocol can carry" in error.allowed:
        raise LeftOut(error.allowed) from None
    if isinstance(error, RemoteError) and error.is_of_protocol and "unknown type" in str(error):
        raise LeftOut("specs of types that the protocol knows") from None


def source_of_call(frame: FrameType) -> str:
    """Return the source of the first argument of the call that a frame is at."""
    positions = list(frame.f_code.co_positions())[frame.f_lasti // 2]
    first, last, begin, end = positions
    if first is None or last is None or begin is None or end is None:
        return "the answer"
    lines = [linecache.getline(frame.f_code.co_filename, n) for n in range(first, last + 1)]
    lines[-1] = lines[-1].encode()[:end].decode()
    lines[0] = lines[0].encode()[begin:].decode()
    try:
        call = ast.parse("".join(lines).strip(), mode="eval").body
    except SyntaxError:  # the source is missing
        return "the answer"
    return ast.unparse(call.args[0]) if isinstance(call, ast.Call) else "the answer"
