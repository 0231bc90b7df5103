"""Deterministic CBOR (RFC 8949, section 4.2.1) in a few lines, apart from any implementation."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeAlias

Value: TypeAlias = "int | str | bytes | Sequence[Value] | None"


def encode(value: Value) -> bytes:
    """The one deterministic encoding of `value`."""
    if value is None:
        return b"\xf6"
    if isinstance(value, int):
        return _head(0, value) if value >= 0 else _head(1, -1 - value)
    if isinstance(value, bytes):
        return _head(2, len(value)) + value
    if isinstance(value, str):
        text = value.encode()
        return _head(3, len(text)) + text
    return _head(4, len(value)) + b"".join(encode(item) for item in value)


def _head(major: int, n: int) -> bytes:
    """Major type and argument, in the fewest bytes."""
    if n < 24:
        return bytes([major << 5 | n])
    size = next(size for size in (1, 2, 4, 8) if n < 256**size)
    return bytes([major << 5 | 23 + size.bit_length()]) + n.to_bytes(size, "big")
