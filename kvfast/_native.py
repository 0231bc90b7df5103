"""Addresses of this machine's own hash functions: C functions of libraries, found on demand.

Nothing is linked and no header is needed; see docs/decisions/0030-hash-functions-by-address.md.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Iterator
from dataclasses import dataclass

# By version: before 1.1 another layout, and on macOS the name without one ends the process.
LIBCRYPTO = ("libcrypto.so.3", "libcrypto.so.1.1", "libcrypto.3.dylib", "libcrypto-3-x64.dll")
LIBXXHASH = ("libxxhash.so.0", "libxxhash.0.dylib")


@dataclass(frozen=True)
class NativeFunctions:
    """Addresses of C functions, in the order asked for, and the library they were found through."""

    origin: str
    addresses: tuple[int, ...]


def sha256() -> NativeFunctions | None:
    """Find `SHA256_Init` and `SHA256_Update` of libcrypto; None if there is none.

    First the libcrypto that hashlib has loaded, then one of the system.
    """
    names = ("SHA256_Init", "SHA256_Update")
    return _find(names, [*_extension("_hashlib"), *LIBCRYPTO])


def xxh3_128() -> NativeFunctions | None:
    """Find `XXH3_128bits` of the package xxhash, or of the system's libxxhash; None without."""
    return _find(("XXH3_128bits",), [*_extension("xxhash._xxhash"), *LIBXXHASH])


def _find(functions: tuple[str, ...], libraries: list[str]) -> NativeFunctions | None:
    try:
        import ctypes
    except ImportError:  # a Python that was built without libffi
        return None
    for library in libraries:
        try:
            # An extension module also exports symbols of the libraries it is linked to. Never
            # unloaded.
            loaded = ctypes.CDLL(library)
            found = [ctypes.cast(getattr(loaded, name), ctypes.c_void_p) for name in functions]
        except (OSError, AttributeError):
            continue
        return NativeFunctions(library, tuple(address.value or 0 for address in found))
    return None


def _extension(name: str) -> Iterator[str]:
    """Yield the file of an extension module; nothing if it is missing or built into Python."""
    try:
        spec = importlib.util.find_spec(name)
    except ImportError:  # not even the package it lies in
        return
    if spec is not None and spec.has_location and spec.origin is not None:
        yield spec.origin
