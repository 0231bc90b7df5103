"""Checked access to JSON values: every error names the file, the line and the field.

A *check* is a function `(value, where) -> value` that raises FormatError unless the value has the
shape that the check is named after. JSON's `true` does not count as a number here, nor `1.0` as an
int.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias, TypeVar

from kvspec.errors import FormatError, cut

T = TypeVar("T")


@dataclass(frozen=True)
class Where:
    """A place in a file: `config.groups[0].spec` in line 1 of `full.jsonl`."""

    file: str
    line: int | None = None
    field: str = ""

    def member(self, name: str) -> Where:
        """Return the place of a member of this object."""
        return Where(self.file, self.line, f"{self.field}.{name}" if self.field else name)

    def item(self, index: int) -> Where:
        """Return the place of an element of this list."""
        return Where(self.file, self.line, f"{self.field}[{index}]")

    def error(self, problem: str) -> FormatError:
        """Return an error that names this place, ready to raise."""
        return FormatError(self.file, self.line, self.field or None, problem)


Check: TypeAlias = Callable[[Any, Where], T]


def shown(value: object, limit: int = 60) -> str:
    """Return the value's repr, cut so that an error stays one line."""
    return cut(value, limit)


MOST_NESTED = 64
"""Lists and objects in one another; no format here needs a dozen."""

INT_MIN, INT_MAX = -(2**63), 2**64 - 1
_PLAIN_TYPES = frozenset({type(None), bool, int, float, str, list, dict})


def check_plain(value: object, where: Where, *, most_values: int) -> None:
    """Refuse values that no file or message may hold, so that later code need not.

    That is: types that JSON does not have, ints beyond 64 bits, numbers that are not finite,
    nesting without end, and, with more than `most_values` values, one that holds itself.
    """
    seen = 0
    level: list[Any] = [[value]]
    for _ in range(MOST_NESTED):
        inner = []
        for container in level:
            items: Collection[Any] = container
            if isinstance(container, dict):
                items = container.values()
                if not set(map(type, container)) <= {str}:
                    raise where.error("an object with a name that is no text")
            seen += len(items)
            if seen > most_values + 1:
                raise where.error("values that hold one another")
            types = set(map(type, items))
            if not types <= _PLAIN_TYPES:
                raise where.error("a value of a type that JSON does not have")
            if int in types or float in types:
                _check_numbers(items, where, types)
            if list in types or dict in types:
                inner += [item for item in items if type(item) is list or type(item) is dict]
        if not inner:
            return
        level = inner
    raise where.error("nested too deeply")


def _check_numbers(items: Collection[Any], where: Where, types: set[type]) -> None:
    if types == {int} and min(items) >= INT_MIN and max(items) <= INT_MAX:
        return  # nearly all lists
    for item in items:
        if type(item) is int and not INT_MIN <= item <= INT_MAX:
            raise where.error(f"{shown(item)}: an int beyond 64 bits")
        if type(item) is float and not math.isfinite(item):
            raise where.error(f"{item} is no finite number")


def members(
    value: object, where: Where, required: Mapping[str, Any], optional: Mapping[str, Any]
) -> dict[str, Any]:
    """Check an object that has all `required` members and otherwise only `optional` ones."""
    if not isinstance(value, dict):
        raise where.error(f"{shown(value)} is not an object")
    for name in required:
        if name not in value:
            raise where.member(name).error("missing")
    for name in value:
        if name not in required and name not in optional:
            known = ", ".join([*required, *optional]) or "none"
            raise where.member(str(name)).error(f"unknown; known members: {known}")
    return value


def checked_members(
    value: object,
    where: Where,
    required: Mapping[str, Check[Any]],
    optional: Mapping[str, Check[Any]],
) -> dict[str, Any]:
    """Return `members`, after each passed its own check."""
    found = members(value, where, required, optional)
    checks = {**optional, **required}
    return {name: checks[name](item, where.member(name)) for name, item in found.items()}


def integer(value: object, where: Where) -> int:
    if type(value) is not int:
        raise where.error(f"{shown(value)} is not an int")
    return value


def count(value: object, where: Where) -> int:
    """Check an int that is not negative."""
    number = integer(value, where)
    if number < 0:
        raise where.error(f"{shown(number)} is negative")
    return number


def real(value: object, where: Where) -> float:
    """Check a number, and return it as a double."""
    if type(value) is not float and type(value) is not int:
        raise where.error(f"{shown(value)} is not a number")
    try:
        number = float(value)
    except OverflowError:
        number = math.inf
    if not math.isfinite(number):
        raise where.error(f"{shown(value)} is not a finite number, as a double has them")
    return number


def boolean(value: object, where: Where) -> bool:
    if type(value) is not bool:
        raise where.error(f"{shown(value)} is not true or false")
    return value


def text(value: object, where: Where) -> str:
    if type(value) is not str:
        raise where.error(f"{shown(value)} is not a string")
    return value


def null(value: object, where: Where) -> None:
    if value is not None:
        raise where.error(f"{shown(value)} is not null")


def anything(value: object, where: Where) -> Any:
    """Accept any JSON value."""
    return value


def hex_bytes(value: object, where: Where) -> bytes:
    """Decode bytes written as lower-case hexadecimal digits."""
    digits = text(value, where)
    try:
        data = bytes.fromhex(digits)
    except ValueError:
        raise where.error(f"{shown(digits)} is not a string of hexadecimal digits") from None
    if data.hex() != digits:  # fromhex also takes capitals and spaces
        raise where.error(f"{shown(digits)} is not lower-case hexadecimal without spaces")
    return data


def hex_text(value: object, where: Where) -> str:
    """Return hexadecimal digits, kept as text."""
    return hex_bytes(value, where).hex()


def optional(check: Check[T]) -> Check[T | None]:
    """Return a check that also accepts null."""

    def inner(value: Any, where: Where) -> T | None:
        return None if value is None else check(value, where)

    return inner


def list_of(check: Check[T]) -> Check[list[T]]:
    """Return a check of lists whose elements all pass `check`."""

    def inner(value: Any, where: Where) -> list[T]:
        if not isinstance(value, list):
            raise where.error(f"{shown(value)} is not a list")
        if check is integer and set(map(type, value)) <= {int}:
            return list(value)  # nearly all lists: no place is made for each element
        return [check(item, where.item(index)) for index, item in enumerate(value)]

    return inner


def object_of(check: Check[T]) -> Check[dict[str, T]]:
    """Return a check of objects with any names, whose values all pass `check`."""

    def inner(value: Any, where: Where) -> dict[str, T]:
        if not isinstance(value, dict):
            raise where.error(f"{shown(value)} is not an object")
        return {name: check(item, where.member(name)) for name, item in value.items()}

    return inner


def structure(
    required: Mapping[str, Check[Any]], optional_members: Mapping[str, Check[Any]] | None = None
) -> Check[dict[str, Any]]:
    """Return a check of objects with these members."""

    def inner(value: Any, where: Where) -> dict[str, Any]:
        return checked_members(value, where, required, optional_members or {})

    return inner
