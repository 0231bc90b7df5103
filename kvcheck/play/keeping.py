"""An engine that keeps tokens and block hashes for a manager that is given them (KV-HASH-13)."""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from hashlib import sha256

from kvspec.config import ManagerConfig
from kvspec.following import FollowedInput
from kvspec.request import RequestInput


class Kept:
    """The tokens that an engine keeps of a request, and the hash of each full block.

    A hash identifies all tokens up to its block and the request's extra keys. `config` is that of a
    manager, with its sizes filled in.
    """

    def __init__(self, config: ManagerConfig, given: RequestInput) -> None:
        self.num_bytes = config.given_hash_bytes
        self.ahead = config.hash_lookahead_tokens
        self.block_size = (config.hash_block_size_tokens or 0) if config.enable_caching else 0
        others = (given.cache_salt, given.lora, given.multimodal, given.prompt_embeddings)
        self.parent = repr(others).encode()
        self.tokens = array("q")
        self.hashes: list[bytes] = []
        self.extend(given.prompt_token_ids)
        self.first = FollowedInput(
            given.request_id,
            len(self.tokens),
            len(self.tokens),
            tuple(self.hashes),
            given.skip_reading_cache,
            given.reports_hits,
            given.priority,
        )
        """The input of `make_followed`."""

    def extend(self, token_ids: Sequence[int]) -> list[bytes]:
        self.tokens.extend(token_ids)
        size, before = self.block_size, len(self.hashes)
        hashed = len(self.tokens) - self.ahead
        for block in range(before, hashed // size if size else 0):
            content = self.tokens[block * size : (block + 1) * size + self.ahead].tobytes()
            parent = self.hashes[-1] if self.hashes else self.parent
            self.hashes.append(sha256(parent + content).digest()[: self.num_bytes])
        return self.hashes[before:]

    def cut(self, num_tokens: int) -> None:
        """Keep only the first `num_tokens`."""
        del self.tokens[num_tokens:]
        if self.block_size:
            del self.hashes[max(num_tokens - self.ahead, 0) // self.block_size :]
