"""Block hashes: the identity of a block's content and of all before it (KV-HASH-*)."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Sequence
from typing import Any, TypeAlias

import cbor2

from kvspec.config import GIVEN_HASHES, ManagerConfig
from kvspec.errors import UnsupportedError
from kvspec.events import ExtraKey, ExtraKeys
from kvspec.policy import NONE_HASH_TEXT
from kvspec.request import RequestInput

LOW_64_BITS = 2**64 - 1

TaggedKey: TypeAlias = "tuple[str | int | bytes | None, ...]"
"""The kind of an extra key, and its values."""

TaggedKeys: TypeAlias = "tuple[TaggedKey, ...] | None"


class Hasher:
    """A hash function with its seed.

    `none_hash` is the parent of every request's first block (KV-HASH-3). `tags`: the kind of an
    extra key is hashed with it (KV-POL-10). `is_fixed`: without a seed, NONE_HASH of a
    cryptographic function is not random (KV-POL-12). `lookahead_tokens`: tokens after a block that
    its hash also covers (KV-HASH-14).
    """

    def __init__(
        self,
        function: str,
        seed: str | None,
        *,
        tags: bool = True,
        is_fixed: bool = False,
        lookahead_tokens: int = 0,
    ) -> None:
        self.function = function
        self.lookahead_tokens = lookahead_tokens
        self.tags = tags
        if function in GIVEN_HASHES:  # KV-HASH-13: nothing is hashed here
            self.none_hash = bytes(GIVEN_HASHES[function])
            return
        # Hash now in either case, so that a missing package is reported before the first request.
        if seed is None and is_fixed and function != "xxhash_cbor":
            seed = NONE_HASH_TEXT
        if seed is None:
            self.none_hash = os.urandom(len(self._digest(b"")))
        else:
            self.none_hash = self._digest(encode(seed))

    def block_hash(
        self,
        parent: bytes,
        token_ids: Sequence[int],
        extra: TaggedKeys,
        tokens_behind: Sequence[int] = (),
    ) -> bytes:
        """Return H of (parent, tokens, extra keys) (KV-HASH-1)."""
        spelled: object = extra if self.tags else untagged(extra)
        if self.lookahead_tokens > 0:  # KV-HASH-14
            spelled = (spelled, *tokens_behind)
        parent_value = parent if self.function != "sha256_cbor_64bit" else _as_int(parent)
        return self._digest(encode((parent_value, token_ids, spelled)))

    def _digest(self, encoded: bytes) -> bytes:
        if self.function == "sha256_cbor":  # KV-HASH-2
            return hashlib.sha256(encoded).digest()
        if self.function == "sha256_cbor_64bit":  # KV-HASH-11
            return hashlib.sha256(encoded).digest()[-8:]
        digest: bytes = _xxhash_module().xxh3_128_digest(encoded)  # KV-HASH-12
        return digest


def encode(value: object) -> bytes:
    """Encode as deterministic CBOR (RFC 8949): shortest and definite lengths (KV-HASH-2)."""
    return cbor2.dumps(value, canonical=True)


def make_key(block_hash: bytes, group: int) -> bytes:
    """Return the key under which a block is cached: its hash, then its group (KV-HASH-6)."""
    return block_hash + group.to_bytes(4, "big")


def split_key(key: bytes) -> tuple[bytes, int]:
    """Split a key into block hash and group."""
    return key[:-4], int.from_bytes(key[-4:], "big")


def hash_of_block(hashes: Sequence[bytes], index: int, hashes_per_block: int) -> bytes:
    """Return the hash of a group's block `index`: the last one inside it (KV-HASH-5).

    With 2 hashes per block, block 0 has hash number 1, block 1 has number 3.
    """
    return hashes[(index + 1) * hashes_per_block - 1]


def extra_keys(request: RequestInput, start: int, end: int) -> TaggedKeys:
    """Return what else identifies the block of tokens `start` … `end - 1` (KV-HASH-7)."""
    keys: list[TaggedKey] = []
    if request.lora is not None:
        keys.append(("lora", request.lora.name, request.lora.path))
    for item in request.multimodal:  # KV-HASH-8: every item that overlaps, whatever made the tokens
        if item.offset < end and item.offset + item.length > start:
            keys.append(("mm", item.identifier, item.offset - start))
    if start == 0 and request.cache_salt is not None:  # KV-HASH-10
        keys.append(("cache_salt", request.cache_salt))
    if request.prompt_embeddings is not None:  # KV-HASH-9
        width = request.prompt_embeddings.bytes_per_token
        data = request.prompt_embeddings.data[start * width : end * width]
        keys.append(("prompt_embeds", hashlib.sha256(data).digest()))
    return tuple(keys) if keys else None


def untagged(keys: TaggedKeys) -> ExtraKeys:
    """Return the keys without their kinds, as in events and under the policy `plain`."""
    if keys is None:
        return None
    return tuple(_untagged(key) for key in keys)


def _untagged(key: TaggedKey) -> ExtraKey:
    kind, value, *rest = key
    if kind == "mm":
        return value, rest[0]  # type: ignore[return-value]  # its identifier and its offset
    return value  # type: ignore[return-value]  # a name (no path), a salt, or a digest


def hasher_of(config: ManagerConfig) -> Hasher:
    """Return the hasher that a configuration asks for."""
    tags = config.policy.extra_keys == "tagged"  # KV-POL-10
    is_fixed = config.policy.none_hash_without_seed == "fixed"
    return Hasher(
        config.hash_function,
        config.hash_seed,
        tags=tags,
        is_fixed=is_fixed,
        lookahead_tokens=config.hash_lookahead_tokens,
    )


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
