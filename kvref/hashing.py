"""Block hashes: what identifies the content of a block and of all before it (KV-HASH-*)."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Sequence
from typing import Any

import cbor2

from kvspec.config import ManagerConfig
from kvspec.errors import UnsupportedError
from kvspec.events import ExtraKey, ExtraKeys
from kvspec.request import RequestInput

LOW_64_BITS = 2**64 - 1


class Hasher:
    """One hash function with its seed.

    `none_hash` is the parent of every request's first block (KV-HASH-3).
    """

    def __init__(self, function: str, seed: str | None) -> None:
        self.function = function
        # Either way something is hashed: a package that is missing is told now, not at a request.
        if seed is None:
            self.none_hash = os.urandom(len(self._digest(b"")))
        else:
            self.none_hash = self._digest(encode(seed))

    def block_hash(self, parent: bytes, token_ids: Sequence[int], extra: ExtraKeys) -> bytes:
        """H of (parent, tokens, extra keys) (KV-HASH-1)."""
        parent_value = parent if self.function != "sha256_cbor_64bit" else _as_int(parent)
        return self._digest(encode((parent_value, token_ids, extra)))

    def _digest(self, encoded: bytes) -> bytes:
        if self.function == "sha256_cbor":  # KV-HASH-2
            return hashlib.sha256(encoded).digest()
        if self.function == "sha256_cbor_64bit":  # KV-HASH-11
            return hashlib.sha256(encoded).digest()[-8:]
        digest: bytes = _xxhash_module().xxh3_128_digest(encoded)  # KV-HASH-12
        return digest


def encode(value: object) -> bytes:
    """Deterministic CBOR (RFC 8949): shortest lengths and ints, definite lengths (KV-HASH-2)."""
    return cbor2.dumps(value, canonical=True)


def make_key(block_hash: bytes, group: int) -> bytes:
    """The key under which a block is cached: its hash, then its group (KV-HASH-6)."""
    return block_hash + group.to_bytes(4, "big")


def split_key(key: bytes) -> tuple[bytes, int]:
    """The block hash and the group of a key."""
    return key[:-4], int.from_bytes(key[-4:], "big")


def hash_of_block(hashes: Sequence[bytes], index: int, hashes_per_block: int) -> bytes:
    """The hash of a group's block `index`: the last one inside it (KV-HASH-5).

    With 2 hashes per block, block 0 has hash number 1, block 1 has number 3.
    """
    return hashes[(index + 1) * hashes_per_block - 1]


def extra_keys(request: RequestInput, start: int, end: int) -> ExtraKeys:
    """What besides its tokens tells the block of tokens `start` … `end - 1` apart (KV-HASH-7)."""
    keys: list[ExtraKey] = []
    if request.lora is not None:
        keys.append(request.lora.name)
    for item in request.multimodal:  # KV-HASH-8: every item that overlaps, whoever wrote the tokens
        if item.offset < end and item.offset + item.length > start:
            keys.append((item.identifier, item.offset - start))
    if start == 0 and request.cache_salt:  # KV-HASH-10
        keys.append(request.cache_salt)
    if request.prompt_embeddings is not None:  # KV-HASH-9
        width = request.prompt_embeddings.bytes_per_token
        data = request.prompt_embeddings.data[start * width : end * width]
        keys.append(hashlib.sha256(data).digest())
    return tuple(keys) if keys else None


def hasher_of(config: ManagerConfig) -> Hasher:
    """The hasher that a configuration asks for."""
    return Hasher(config.hash_function, config.hash_seed)


def _as_int(block_hash: bytes) -> int:
    return int.from_bytes(block_hash, "big") & LOW_64_BITS


def _xxhash_module() -> Any:
    try:
        import xxhash
    except ImportError:
        raise UnsupportedError(
            "xxhash_cbor without the package xxhash (pip install 'kvspec[xxhash]')", "kvref"
        ) from None
    return xxhash
