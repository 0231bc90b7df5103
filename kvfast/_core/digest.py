"""Digests of bytes in a buffer, written to another place of the same buffer.

The compiled twin of this file is `kvfast/_compiled/digest.pyx`, which calls C functions where it
finds them and this class where it doesn't.
"""

from __future__ import annotations

import hashlib
from typing import Any

from kvspec.errors import InvalidArgumentError, UnsupportedError

CONTEXT_BYTES = 128
"""Words that a digest uses at the head of a buffer of messages.

OpenSSL's takes 112 bytes for SHA-256. They are 0 in a buffer that is new.
"""
PADDING_BYTES = 72
"""Room that a digest needs after its message."""
SIZES_BYTES = (("sha256_cbor", 32), ("sha256_cbor_64bit", 8), ("xxhash_cbor", 16))


class Digest:
    """The digest of one hash function, before any encoding (KV-HASH-2, KV-HASH-11, KV-HASH-12).

    `size` is its length in bytes, `origin` says whose code computes it. UnsupportedError when that
    code is not installed.
    """

    def __init__(self, function: str) -> None:
        sizes = dict(SIZES_BYTES)
        if function not in sizes:
            allowed = "one of " + ", ".join(sizes)
            raise InvalidArgumentError("hash_function", function, allowed)
        self.size = sizes[function]
        self.is_xxh3 = function == "xxhash_cbor"
        self.origin = "the package xxhash" if self.is_xxh3 else "hashlib"
        if self.is_xxh3:
            _xxhash_module()  # say now, not at the first request, that it is missing

    def of(self, data: bytes) -> bytes:
        """Return the digest of `data`."""
        if self.is_xxh3:
            digest: bytes = _xxhash_module().xxh3_128_digest(data)
            return digest
        return hashlib.sha256(data).digest()[-self.size :]

    def put(
        self,
        message: memoryview[int],
        own: int,
        start: int,
        end: int,
        at: int,
        digests: memoryview[int],
        to: int,
    ) -> None:
        """Write the digest of message[start:end] to `at` in it, and to `to` in `digests`.

        CONTEXT_BYTES from `own` on are the digest's own, and `put_padding` was called.
        """
        digest = self.of(bytes(message[start:end]))
        message[at : at + self.size] = digests[to : to + self.size] = memoryview(digest)


class Unlocked:
    """Work that needs no Python object: `call` does it without holding the GIL, if compiled."""

    def run(self) -> None:
        """Do the work; subclasses implement it."""

    def call(self) -> None:
        """Do the work while other threads run."""
        self.run()


def _xxhash_module() -> Any:
    try:
        import xxhash
    except ImportError:
        raise UnsupportedError(
            "xxhash_cbor without the package xxhash (pip install 'kvspec[xxhash]')", "kvfast"
        ) from None
    return xxhash
