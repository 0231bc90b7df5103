"""Requests whose tokens and hashes the engine keeps (KV-REQ-6 … KV-REQ-8)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from kvref.hashing import Hasher
from kvref.request import ReferenceRequest
from kvspec.errors import InvalidArgumentError
from kvspec.following import FollowedInput, checked_counts, checked_hashes


@dataclass(eq=False)
class FollowedRequest(ReferenceRequest):
    """A request without tokens: the engine gives their number and the hashes."""

    input: FollowedInput  # type: ignore[assignment]  # no content beside the hashes
    num_followed_tokens: int = 0

    @property
    def num_tokens(self) -> int:
        return self.num_followed_tokens

    def extend(self, token_ids: Sequence[int]) -> None:
        """Raise an error: there are no tokens to append to (KV-REQ-6)."""
        raise InvalidArgumentError(
            "request", self.request_id, "one with tokens of its own; the engine keeps those of this"
        )

    def follow(
        self, num_tokens: int, hashes: Sequence[bytes], num_prompt_tokens: int | None
    ) -> None:
        """Set the number of tokens, and append the hashes of newly full blocks (KV-REQ-7)."""
        tokens, prompt = checked_counts(num_tokens, num_prompt_tokens, self.num_prompt_tokens)
        size = self.hash_block_size_tokens
        ahead = self.hasher.lookahead_tokens
        num_full = max(tokens - ahead, 0) // size if size else 0
        kept = self.block_hashes[:num_full]  # KV-REQ-8
        new = checked_hashes(hashes, num_full - len(kept), len(self.hasher.none_hash))
        self.block_hashes = (*kept, *new)
        self.num_followed_tokens = tokens
        self.num_prompt_tokens = prompt


def make_followed(
    given: FollowedInput, hasher: Hasher, hash_block_size_tokens: int
) -> FollowedRequest:
    """Make a request whose tokens and hashes the engine keeps (KV-REQ-6)."""
    if not isinstance(given, FollowedInput):
        raise InvalidArgumentError("request", given, "a FollowedInput")
    request = FollowedRequest(given, hasher, hash_block_size_tokens, (), num_prompt_tokens=0)
    request.follow(given.num_tokens, given.hashes, given.num_prompt_tokens)
    return request


def followed(request: ReferenceRequest) -> FollowedRequest:
    """Return the request if it was made by `make_followed`, else raise InvalidArgumentError."""
    if not isinstance(request, FollowedRequest):
        raise InvalidArgumentError("request", request.request_id, "made by make_followed")
    return request
