"""The hashes that requests must have, by hashlib and the tests' own CBOR."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

from tests.rules import cbor
from tests.rules.builders import MakeManager, MakeRequest

NONE_HASH = "4e1195df020de59e0d65a33a4279f1183e7ae4e5d980e309f8b55adff2e61c3e"
HASH_0 = "c9d58ba695280d69b243e1e0df813136ca9196b286fb1a021e0b2e028ef071cb"
HASH_1 = "24125b23e68883b5c2141db2959d48433fe6bde2f26bd914efad121d154ab2d6"

Extra = Sequence[cbor.Value] | None


def sha256(parent: bytes, tokens: Sequence[int], extra: Extra = None) -> bytes:
    """The `sha256_cbor` of one block."""
    argument = [parent, list(tokens), None if extra is None else list(extra)]
    return hashlib.sha256(cbor.encode(argument)).digest()


def hashes_of(
    make_manager: MakeManager,
    make_request: MakeRequest,
    tokens: Sequence[int],
    **content: object,
) -> list[str]:
    """The block hashes of a request with block size 4 and seed "0", in hex."""
    manager = make_manager(6, 4)
    request = make_request(manager, "r", tokens, **content)
    return [block_hash.hex() for block_hash in request.block_hashes]
