"""Expected hashes of requests, by hashlib and an encoder that no implementation shares."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import Any, TypeAlias

from kvcheck.rules.bench import Bench

Value: TypeAlias = "int | str | bytes | Sequence[Value] | None"


def encode(value: Value) -> bytes:
    """Return the one deterministic CBOR encoding of `value` (RFC 8949, section 4.2.1)."""
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
    """Encode major type and argument in the fewest bytes."""
    if n < 24:
        return bytes([major << 5 | n])
    size = next(size for size in (1, 2, 4, 8) if n < 256**size)
    return bytes([major << 5 | 23 + size.bit_length()]) + n.to_bytes(size, "big")


def sha256(parent: bytes, tokens: Sequence[int], extra: Sequence[Value] | None = None) -> bytes:
    """Return the `sha256_cbor` of one block."""
    argument = [parent, list(tokens), None if extra is None else list(extra)]
    return hashlib.sha256(encode(argument)).digest()


def hashes_of(bench: Bench, tokens: Sequence[int], **content: Any) -> list[str]:
    """Return the block hashes of a request with block size 4 and seed "0", in hex."""
    request = bench.manager(6).request("r", tokens, **content)
    return [block_hash.hex() for block_hash in request.block_hashes]
