"""Bytes of a file or a pipe, plain or compressed, as lines; never more than a piece in memory.

The first bytes decide how it is read, not the name. zstd needs the extra `zst`.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterable, Iterator
from typing import BinaryIO, Protocol

from kvspec.errors import KVSpecError

MAX_LINE_BYTES = 2**24
"""Longest line that is put together; a longer one is returned as far as it was read.

As long as the longest message of the protocol, which also bounds the values made from it.
"""

_GZIP_MAGIC = b"\x1f\x8b"
_ZSTD_MAGIC = b"\x28\xb5\x2f\xfd"
_GZIP_WINDOW_BITS = 31  # zlib: a gzip header and its check sum are expected
_CHUNK_BYTES = 2**10  # small, so that the position in the file shows progress


class DamagedStreamError(KVSpecError):
    """Compressed data that is damaged or cut off."""


class MissingLibraryError(KVSpecError):
    """The data needs a library that is not installed; the message installs it."""


def uncompressed(raw: BinaryIO) -> Iterator[bytes]:
    """Yield the content piece by piece.

    Raises MissingLibraryError, and while iterating DamagedStreamError and OSError.
    """
    start = raw.read(len(_ZSTD_MAGIC))
    pieces = _pieces(start, raw)
    if start.startswith(_GZIP_MAGIC):
        return _decompressed(
            pieces, lambda: zlib.decompressobj(wbits=_GZIP_WINDOW_BITS), damage=zlib.error
        )
    if start.startswith(_ZSTD_MAGIC):
        return _unzstd(pieces)
    return pieces


def _unzstd(pieces: Iterator[bytes]) -> Iterator[bytes]:
    """Decompress zstd frames."""
    try:
        import zstandard
    except ImportError as error:
        problem = "is compressed with zstd; install: pip install 'kvspec[zst]'"
        raise MissingLibraryError(problem) from error
    return _decompressed(
        pieces,
        lambda: zstandard.ZstdDecompressor().decompressobj(),
        damage=zstandard.ZstdError,
    )


class _Decompressor(Protocol):
    """One gzip member or zstd frame, as the decompression libraries offer it."""

    @property
    def eof(self) -> bool:
        """True when the member is complete."""

    @property
    def unused_data(self) -> bytes:
        """Bytes after the end of the compressed data."""

    def decompress(self, data: bytes, /) -> bytes:
        """Return the next bytes of content."""


def _pieces(start: bytes, stream: BinaryIO) -> Iterator[bytes]:
    """Yield `start`, then the stream's bytes, in pieces of bounded size."""
    yield start
    while piece := stream.read(_CHUNK_BYTES):
        yield piece


def _decompressed(
    pieces: Iterator[bytes],
    new_member: Callable[[], _Decompressor],
    *,
    damage: type[Exception],
) -> Iterator[bytes]:
    """Yield the content of all members in turn; DamagedStreamError if one is incomplete.

    `damage`: the library's exception for damaged data.
    """
    member: _Decompressor | None = None
    for piece in pieces:
        rest = piece
        while rest:
            if member is None:
                rest = rest.lstrip(b"\0")  # padding between members, as tape archives have it
                if not rest:
                    break
                member = new_member()
            try:
                content = member.decompress(rest)
            except damage as error:
                raise DamagedStreamError(f"the compressed data is damaged ({error})") from error
            rest = b""
            if member.eof:
                rest = member.unused_data
                member = None
            yield content
    if member is not None:
        raise DamagedStreamError("the compressed data is cut off")


def split_lines(chunks: Iterable[bytes]) -> Iterator[bytes]:
    """Yield lines without line feed; one longer than MAX_LINE_BYTES as far as read."""
    pending = bytearray()
    for chunk in chunks:
        first, *others = chunk.split(b"\n")
        pending += first
        for part in others:
            yield bytes(pending)
            pending = bytearray(part)
        if len(pending) > MAX_LINE_BYTES:
            yield bytes(pending)
            pending = bytearray()
    if pending:
        yield bytes(pending)
