"""A lower tier on a disk (`kvspec.offload.LowerTier`), which survives the death of its process.

A chunk is a file of its own: a header, the key and the content. It is written under a temporary
name, synchronised, and renamed. So what is found after a crash, at whatever moment, is whole:

- every chunk whose `store` was followed by a `flush`, but for those evicted or replaced since;
- others that were stored, or the content that a chunk had before;
- never a part of one. A file whose size is wrong is dropped when the tier is opened, and one whose
  digest is wrong when it is loaded.
"""

from __future__ import annotations

import hashlib
import os
import struct
from pathlib import Path

from kvspec.domains import int_at_least
from kvspec.errors import InvalidArgumentError
from kvspec.offload import Found

_HEADER = struct.Struct("<8sHQ16s")
"""Mark, bytes of the key and of the content, digest of both."""
_MARK = b"kvchunk1"
_MOST_KEY_BYTES = 100
"""A name has twice as many letters; file systems take 255."""


class DiskTier:
    """At most `num_chunks` chunks in a folder; the least recently stored or loaded is evicted."""

    def __init__(self, folder: str | os.PathLike[str], num_chunks: int) -> None:
        int_at_least("num_chunks", num_chunks, 1, error=InvalidArgumentError)
        self._folder, self._num_chunks = Path(folder), num_chunks
        self._folder.mkdir(parents=True, exist_ok=True)
        found: list[tuple[int, bytes]] = []
        for path in self._folder.iterdir():
            key = _key_of(path)
            if key is None:
                os.unlink(path)
            else:
                found.append((path.stat().st_mtime_ns, key))
        self._keys: dict[bytes, None] = dict.fromkeys(key for _, key in sorted(found))
        while len(self._keys) > num_chunks:
            self.remove(next(iter(self._keys)))

    def lookup(self, key: bytes) -> Found:
        return Found.HIT if key in self._keys else Found.MISS

    def store(self, key: bytes, content: bytes) -> None:
        """Store a chunk, in place of an older one with this key or of the next to be evicted."""
        if type(key) is not bytes or not 0 < len(key) <= _MOST_KEY_BYTES:
            raise InvalidArgumentError("key", key, f"1 … {_MOST_KEY_BYTES} bytes")
        if key not in self._keys and len(self._keys) >= self._num_chunks:
            self.remove(next(iter(self._keys)))
        temporary = self._folder / f"{key.hex()}.new"
        digest = hashlib.blake2b(key + content, digest_size=16).digest()
        data = memoryview(_HEADER.pack(_MARK, len(key), len(content), digest) + key + content)
        handle = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o644)
        try:
            while data:
                data = data[os.write(handle, data) :]
            os.fsync(handle)
        finally:
            os.close(handle)
        os.replace(temporary, self._path(key))
        self._used(key)

    def load(self, key: bytes) -> bytes | None:
        """Return a chunk's content; None if there is none, or it is damaged."""
        if key not in self._keys:
            return None
        try:
            data = self._path(key).read_bytes()
        except FileNotFoundError:
            data = b""
        mark, num_key, num_content, digest = _HEADER.unpack(
            data[: _HEADER.size].ljust(_HEADER.size)
        )
        content = data[_HEADER.size + num_key :]
        expected = hashlib.blake2b(key + content, digest_size=16).digest()
        if mark != _MARK or len(content) != num_content or digest != expected:
            self.remove(key)
            return None
        os.utime(self._path(key))
        self._used(key)
        return content

    def remove(self, key: bytes) -> None:
        self._path(key).unlink(missing_ok=True)
        self._keys.pop(key, None)

    def flush(self) -> None:
        """Make all that was stored until now last."""
        handle = os.open(self._folder, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)

    def _used(self, key: bytes) -> None:
        self._keys.pop(key, None)
        self._keys[key] = None

    def _path(self, key: bytes) -> Path:
        return self._folder / key.hex()


def _key_of(path: Path) -> bytes | None:
    """Return the key of a file that is a whole chunk by its size, else None."""
    try:
        key, size = bytes.fromhex(path.name), path.stat().st_size
        with path.open("rb") as file:
            mark, num_key, num_content, _ = _HEADER.unpack(file.read(_HEADER.size))
            named = file.read(num_key)
    except (ValueError, OSError, struct.error):
        return None
    is_whole = size == _HEADER.size + num_key + num_content
    return key if mark == _MARK and named == key and is_whole else None
