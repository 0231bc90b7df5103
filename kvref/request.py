"""A request: its tokens and the hashes of its full blocks (KV-REQ-*)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NoReturn

from kvref.hashing import Hasher, extra_keys
from kvspec.errors import BusyError, InvalidArgumentError, UnsupportedError
from kvspec.request import RequestInput, RequestStatus, check_token_ids, token_list


@dataclass(eq=False)
class ReferenceRequest:
    """What a scheduler and a manager know of one request.

    `hash_block_size_tokens` is 0 when caching is off: then there are no hashes. `is_busy`: a call
    uses it, or tokens are being appended.
    """

    input: RequestInput
    hasher: Hasher
    hash_block_size_tokens: int
    token_ids: list[int]
    num_prompt_tokens: int
    block_hashes: list[bytes] = field(default_factory=list)
    num_computed_tokens: int = 0
    num_preemptions: int = 0
    status: RequestStatus = RequestStatus.WAITING
    is_busy: bool = False

    def __reduce_ex__(self, protocol: object) -> NoReturn:
        """A copy could share the tokens and not their number (KV-MGR-20)."""
        raise UnsupportedError("copying or pickling a request", "kvref")

    @property
    def request_id(self) -> str:
        """The name under which a manager keeps the request's blocks."""
        return self.input.request_id

    @property
    def num_tokens(self) -> int:
        """Prompt and generated tokens."""
        return len(self.token_ids)

    def append(self, token_ids: Sequence[int]) -> None:
        """Append tokens and hash the blocks they complete (KV-REQ-2, KV-REQ-5)."""
        if self.is_busy:  # a call uses it, or appends to it (KV-ERR-7)
            raise BusyError("request", self.request_id)
        self.is_busy = True
        try:
            self.extend(token_ids)
        finally:
            self.is_busy = False

    def extend(self, token_ids: Sequence[int]) -> None:
        """`append` in a call that uses the request already."""
        new_tokens = token_list(token_ids)
        check_token_ids(new_tokens)
        num_tokens, num_hashes = self.num_tokens, len(self.block_hashes)
        try:
            self.token_ids.extend(new_tokens)
            self.hash_full_blocks()
        except BaseException:  # tokens and hashes must not part (KV-ERR-8)
            del self.token_ids[num_tokens:], self.block_hashes[num_hashes:]
            raise

    def hash_full_blocks(self) -> None:
        """Hash every full block that has no hash yet (KV-HASH-4)."""
        size = self.hash_block_size_tokens
        if size == 0:
            return
        parent = self.block_hashes[-1] if self.block_hashes else self.hasher.none_hash
        for index in range(len(self.block_hashes), self.num_tokens // size):
            start, end = index * size, (index + 1) * size
            extra = extra_keys(self.input, start, end)
            parent = self.hasher.block_hash(parent, self.token_ids[start:end], extra)
            self.block_hashes.append(parent)


def make_request(
    request_input: RequestInput, hasher: Hasher, hash_block_size_tokens: int
) -> ReferenceRequest:
    """A request with the hashes of its prompt's full blocks (KV-REQ-5: from any array)."""
    if not isinstance(request_input, RequestInput):
        raise InvalidArgumentError("request", request_input, "a RequestInput")
    tokens = token_list(request_input.prompt_token_ids, field="prompt_token_ids")
    check_token_ids(tokens, field="prompt_token_ids")
    request = ReferenceRequest(
        request_input, hasher, hash_block_size_tokens, tokens, num_prompt_tokens=len(tokens)
    )
    request.hash_full_blocks()
    return request
