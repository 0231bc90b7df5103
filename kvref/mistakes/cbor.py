"""A CBOR encoder whose details can be made wrong; by default it is canonical."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class CborDialect:
    """The rules of an encoding; the defaults are those of RFC 8949, section 4.2.1.

    `largest_tiny`, `largest_byte`, `largest_short`: the largest number that fits into a head of 1,
    2, 3 bytes; `short_byte` False: heads of 2 bytes are never used.
    """

    largest_tiny: int = 23
    largest_byte: int = 255
    largest_short: int = 65_535
    short_byte: bool = True
    int_bits: int = 64
    definite_lists: bool = True
    text_major: int = 3
    text_encoding: str = "utf-8"

    def head(self, major: int, number: int) -> bytes:
        """Encode the type in three bits, then the number in as few bytes as the dialect allows."""
        kind = major << 5
        if number <= self.largest_tiny:
            return bytes([kind | number])
        if self.short_byte and number <= self.largest_byte:
            return bytes([kind | 24, number])
        if number <= self.largest_short:
            return bytes([kind | 25]) + number.to_bytes(2, "big")
        if number < 2**32:
            return bytes([kind | 26]) + number.to_bytes(4, "big")
        return bytes([kind | 27]) + number.to_bytes(8, "big")


def encoded(value: object, dialect: CborDialect | None = None) -> bytes:
    """Encode None, ints, texts, byte strings and lists of them."""
    how = dialect or CborDialect()
    if value is None:
        return b"\xf6"
    if isinstance(value, int):
        if value < 0:
            return how.head(1, -1 - value)
        return how.head(0, value % 2**how.int_bits)
    if isinstance(value, bytes):
        return how.head(2, len(value)) + value
    if isinstance(value, str):
        text = value.encode(how.text_encoding, "replace")
        return how.head(how.text_major, len(text)) + text
    if isinstance(value, Sequence):
        items = b"".join(encoded(item, how) for item in value)
        if how.definite_lists:
            return how.head(4, len(value)) + items
        return b"\x9f" + items + b"\xff"
    raise TypeError(f"{type(value).__name__} is not encoded here")
