"""Find where two results or states differ: the one comparison behind every report."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import fields, is_dataclass
from itertools import takewhile, zip_longest
from typing import Any

from kvcheck.play.text import shown
from kvspec.errors import InvariantViolation

KEPT_BEFORE, KEPT = 8, 24
"""Characters shown of long texts: before the first difference, and in all."""

ABSENT = "(absent)"
"""Shown in a difference for a missing list element or object member."""


class WrongAnswer(InvariantViolation):
    """A wrong result or state: `what` it is, `expected` and `observed`.

    `first_at`: where inside of them they first differ, and both values there; empty for plain
    values. `place`: the same without what varies between programs: numbers, arguments, ids.
    """

    def __init__(self, name: str, rule: str, what: str, expected: object, observed: object) -> None:
        where, theirs, ours = narrowed(expected, observed)
        there, here = shown_apart(theirs, ours)
        self.expected, self.observed = f"{what}{where}: {there}", here
        place, *both = first_difference(theirs, ours, where) or ("", None, None)
        self.first_at, self.place = "", _without_numbers(what, place)
        if place not in ("", where):
            self.first_at = "{}: expected {}, got {}".format(place, *shown_apart(*both))
        super().__init__(name, rule, f"expected {self.expected}, got {self.observed}")


def _without_numbers(what: str, path: str) -> str:
    """Say what differs and in which member, in words that are the same for every program.

    >>> _without_numbers("event 3", ".block_hashes[1]")
    'event .block_hashes'
    """
    member = re.match(r"[.][A-Za-z_]+(?![\w…])", path)
    plain = re.sub(r"\d+", "", what.partition("(")[0]).strip()
    return f"{plain} {member.group()}" if member else plain


def shown_apart(expected: object, observed: object) -> tuple[str, str]:
    """Return both values as shown, plain ones so that the difference can be seen."""
    both = _shown(expected), _shown(observed)
    if both[0] != both[1] or not isinstance(expected, (str, bytes)):
        return both
    theirs, ours = (
        value.hex() if isinstance(value, bytes) else str(value) for value in (expected, observed)
    )
    alike = takewhile(lambda pair: pair[0] == pair[1], zip(theirs, ours, strict=False))
    start = max(0, sum(1 for _ in alike) - KEPT_BEFORE)
    return f"…{theirs[start : start + KEPT]}", f"…{ours[start : start + KEPT]}"


def _shown(value: object) -> str:
    return ABSENT if value is ABSENT else shown(value)


def first_difference(expected: Any, got: Any, place: str = "") -> tuple[str, Any, Any] | None:
    """Return where two values first differ, as `.r0[1][0]`, and both values there, or None.

    Types count: `true` is not 1, and a count of 1.0 is not 1. But an int equals a double of the
    same value where a double is due: many languages write 0 for 0.0.
    """
    if type(expected) is float and type(got) is int and got == expected:
        return None
    if type(expected) is not type(got):
        return place, expected, got
    pairs = _members(expected, got, _named)
    if pairs is None:
        return None if expected == got else (place, expected, got)
    for where, left, right in pairs:
        found = first_difference(left, right, place + where)
        if found is not None:
            return found
    return None


def narrowed(expected: object, observed: object) -> tuple[str, object, object]:
    """Return where two values differ and both values there, as deep as the difference is single.

    A list of plain values is shown whole, since the order of its blocks matters.

    >>> narrowed({"blocks": [[1, 2]], "n": 4}, {"blocks": [[1, 2]], "n": 6})
    ('.n', 4, 6)
    """
    pairs = _members(expected, observed, _named) or ()
    different = [(where, left, right) for where, left, right in pairs if left != right]
    if len(different) != 1 or ABSENT in different[0][1:]:
        return "", expected, observed
    if isinstance(expected, (list, tuple)) and not all(
        isinstance(item, (list, tuple, Mapping)) for pair in pairs for item in pair[1:]
    ):
        return "", expected, observed
    where, left, right = different[0]
    deeper, left, right = narrowed(left, right)
    return where + deeper, left, right


def _named(key: object) -> str:
    return shown(key).replace("'", "")


def _members(
    expected: Any, got: Any, named: Callable[[Any], str]
) -> list[tuple[str, Any, Any]] | None:
    """Return the members of two values of one shape, side by side, or None for plain values."""
    if isinstance(expected, Mapping) and isinstance(got, Mapping):
        keys = dict.fromkeys((*expected, *got))
        return [(f".{named(k)}", expected.get(k, ABSENT), got.get(k, ABSENT)) for k in keys]
    if is_dataclass(expected) and type(expected) is type(got):
        names = [member.name for member in fields(expected)]
        return [(f".{name}", getattr(expected, name), getattr(got, name)) for name in names]
    if isinstance(expected, (list, tuple)) and isinstance(got, (list, tuple)):
        pairs = enumerate(zip_longest(expected, got, fillvalue=ABSENT))
        return [(f"[{index}]", left, right) for index, (left, right) in pairs]
    return None
