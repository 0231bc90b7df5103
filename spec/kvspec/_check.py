"""Domain checks for the frozen values of the contract."""

from __future__ import annotations

from kvspec.errors import ConfigError, InvalidArgumentError

INT64_MAX = 2**63 - 1
COUNT_MAX = 2**53 - 1
"""Largest count: exact as a double, and sums of some such counts fit in 64 bits (KV-ERR-6)."""


def is_int(value: object) -> bool:
    """True for a real int; `True` and `1.0` are not block counts."""
    return isinstance(value, int) and not isinstance(value, bool)


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
    if not isinstance(value, int) or isinstance(value, bool) or not minimum <= value <= COUNT_MAX:
        allowed = f"an int in {minimum} … 2^53 - 1" + (" or None" if optional else "")
        raise error(field, value, allowed)


def boolean(field: str, value: object, *, error: type[InvalidArgumentError] = ConfigError) -> None:
    """Raise `error` unless `value` is a bool."""
    if not isinstance(value, bool):
        raise error(field, value, "True or False")


def text(field: str, value: object, *, error: type[InvalidArgumentError] = ConfigError) -> None:
    """Raise `error` unless `value` is a text that has a UTF-8 form, and so a hash."""
    if not isinstance(value, str):
        raise error(field, value, "a text")
    try:
        value.encode()
    except UnicodeEncodeError:  # half a surrogate pair
        raise error(field, value, "a text that UTF-8 can encode") from None


def one_of(field: str, value: object, allowed: tuple[str, ...]) -> None:
    """Raise ConfigError unless `value` is one of `allowed`."""
    if value not in allowed:
        raise ConfigError(field, value, "one of " + ", ".join(allowed))
