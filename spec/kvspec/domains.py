"""Domain checks for the frozen values of the contract."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache, partial
from types import NoneType
from typing import Annotated, Any, TypeAlias, get_args, get_origin, get_type_hints

from kvspec.errors import ConfigError, InvalidArgumentError

INT64_MAX = 2**63 - 1
COUNT_MAX = 2**53 - 1
"""Largest count: exact as a double, and sums of some such counts fit in 64 bits (KV-ERR-6)."""
HELD_MAX = 2**16
"""Most references to one block that are held or popped at the same time (KV-POOL-21)."""


Natural: TypeAlias = Annotated[int, 0]
Positive: TypeAlias = Annotated[int, 1]
"""Ints of values of the contract, with the least that is legal."""


def check_members(value: object, *, error: type[InvalidArgumentError] = ConfigError) -> None:
    """Check the members of a frozen value by their types; first let it keep `exact_members`.

    A bool is one, an `Annotated[int, n]` is at least n, and an `Annotated[str, (…)]` one of these.
    """
    exact_members(value)
    cls: Any = type(value)
    for name, check in _checks(cls):
        check(name, getattr(value, name), error=error)


@cache
def _checks(cls: Any) -> list[tuple[str, Callable[..., None]]]:
    """Return the check of each member that has one; a subclass elsewhere checks its own."""
    own = next(base for base in cls.__mro__ if base.__module__.startswith("kvspec."))
    found: list[tuple[str, Callable[..., None]]] = []
    for name, hint in get_type_hints(own, include_extras=True).items():
        is_optional = NoneType in get_args(hint)
        inner = get_args(hint)[0] if is_optional else hint
        if hint is bool:
            found.append((name, boolean))
        elif get_origin(inner) is Annotated:
            kind, allowed = get_args(inner)
            if kind is int:
                check = partial(int_at_least, minimum=allowed, optional=is_optional)
                found.append((name, check))
            else:
                found.append((name, partial(one_of, allowed=allowed)))
    return found


def is_int(value: object) -> bool:
    """Return True for a real int, whatever `__class__` says; `True` and `1.0` are no counts."""
    return issubclass(type(value), int) and type(value) is not bool


def exact(value: Any) -> int:
    """Return the number stored in an int; one of a subclass may compare and convert differently."""
    number: int = value if type(value) is int else int.__index__(value)
    return number


def exact_members(value: object) -> None:
    """Let a frozen value keep what members of a subclass of int, float or str store, before it
    checks them."""
    for name, member in list(vars(value).items()):
        kind = type(member)
        if kind is not int and is_int(member):
            object.__setattr__(value, name, exact(member))
        elif kind is not str and issubclass(kind, str):
            object.__setattr__(value, name, str.__str__(member))
        elif kind is not float and issubclass(kind, float):
            object.__setattr__(value, name, float.__pos__(member))


def count(
    field: str,
    value: object,
    minimum: int = 0,
    *,
    error: type[InvalidArgumentError] = InvalidArgumentError,
) -> int:
    """Return the number stored in `value`; raises `error` unless it is in minimum … 2^53 - 1."""
    number = exact(value) if is_int(value) else -1
    if not minimum <= number <= COUNT_MAX:
        raise error(field, value, f"an int in {minimum} … 2^53 - 1")
    return number


def int_at_least(
    field: str,
    value: object,
    minimum: int,
    *,
    optional: bool = False,
    error: type[InvalidArgumentError] = ConfigError,
) -> None:
    """Raise `error` unless `value` is an int in minimum … 2^53 - 1 (or None, where optional)."""
    if optional and value is None:
        return
    if not is_int(value) or not minimum <= exact(value) <= COUNT_MAX:
        allowed = f"an int in {minimum} … 2^53 - 1" + (" or None" if optional else "")
        raise error(field, value, allowed)


def boolean(field: str, value: object, *, error: type[InvalidArgumentError] = ConfigError) -> None:
    """Raise `error` unless `value` is a bool."""
    if type(value) is not bool:
        raise error(field, value, "True or False")


def text(field: str, value: object, *, error: type[InvalidArgumentError] = ConfigError) -> None:
    """Raise `error` unless `value` is a text that has a UTF-8 form, and so a hash."""
    if not issubclass(type(value), str):
        raise error(field, value, "a text")
    try:
        str.encode(value)  # type: ignore[arg-type]  # a text
    except UnicodeEncodeError:  # half a surrogate pair
        raise error(field, value, "a text that UTF-8 can encode") from None


def one_of(
    field: str,
    value: object,
    allowed: tuple[str, ...],
    *,
    error: type[InvalidArgumentError] = ConfigError,
) -> None:
    """Raise `error` unless `value` is one of `allowed`."""
    if value not in allowed:
        raise error(field, value, "one of " + ", ".join(allowed))


def numbered(
    field: str,
    value: object,
    forms: tuple[str, ...],
    *,
    error: type[InvalidArgumentError] = ConfigError,
) -> tuple[str, int]:
    """Return the form of a value among `NAME` and `NAME:WHAT`, and the number in place of WHAT."""
    name, colon, number = value.partition(":") if type(value) is str else ("", "", "")
    is_number = number.isascii() and number.isdecimal() and number[0] != "0" and len(number) < 10
    for form in forms:
        if form.partition(":")[:2] == (name, colon) and is_number == bool(colon):
            return form, int(number or 0)
    raise error(field, value, f"one of {', '.join(forms)}")
