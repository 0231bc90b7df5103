"""kvfast's arrays as lists: they hold the unknown ints of CrossHair, a memoryview doesn't.

And errors without a text: it would have to name one value of many.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any, cast
from unittest.mock import patch

from kvfast._core import allocator, key_map, lookup, pool, record, shape, tables, upcoming
from kvfast._core.key_map import KeyMap
from kvspec.errors import InvalidArgumentError, UnknownBlockError

USERS = (allocator, key_map, lookup, pool, shape, tables, upcoming)
"""The modules that make arrays."""

WORD_BYTES = 8


def zeros(_code: str, length: int) -> memoryview[int]:
    """Return `arrays.zeroed` as a list."""
    return cast("memoryview[int]", [0] * length)


def grown_list(_code: str, old: memoryview[int], length: int) -> memoryview[int]:
    """Return `arrays.grown` as a list."""
    return cast("memoryview[int]", [*old, *([0] * (length - len(old)))])


class Shown:
    """A list with the members of a `memoryview`."""

    def __init__(self, values: list[int]) -> None:
        self.values = values

    def tolist(self) -> list[int]:
        return self.values


def lay_out(self: KeyMap, facts: memoryview[int]) -> None:
    """Lay out the map with separate words: a list can't be read as one of longer ints."""
    old = list(getattr(self, "words", ()))
    size = len(facts) // record.INTS * record.WORDS
    self.facts = facts
    self.words = cast("memoryview[int]", [*old, *([0] * (size - len(old)))])


def hash_of(self: KeyMap, entry: int) -> bytes:
    """Return `KeyMap.hash_of` from a list of words."""
    at = record.WORDS * entry
    words = self.words[at : at + self.width]
    return b"".join([word.to_bytes(WORD_BYTES, "little") for word in words])


def without_text(self: Exception, *values: object) -> None:
    """Drop the values of an error, so that no text is built."""


@contextmanager
def lists() -> Iterator[None]:
    """Make lists of all arrays of the uncompiled kvfast, while the context lasts."""
    with ExitStack() as stack:
        for module in USERS:
            changed: dict[str, Any] = {"zeroed": zeros}
            if hasattr(module, "grown"):
                changed["grown"] = grown_list
            stack.enter_context(patch.multiple(module, **changed))
        stack.enter_context(patch.multiple(KeyMap, lay_out=lay_out, hash_of=hash_of))
        stack.enter_context(patch.object(key_map, "memoryview", Shown, create=True))
        for error in (InvalidArgumentError, UnknownBlockError):
            stack.enter_context(patch.object(error, "__init__", without_text))
        yield
