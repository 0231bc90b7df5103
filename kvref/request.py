"""A request: its tokens, the hashes of its full blocks, and its options (KV-REQ-*)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NoReturn

from kvref.hashing import Hasher, extra_keys
from kvspec.blocks import KVCacheBlocks
from kvspec.domains import exact
from kvspec.errors import InvalidArgumentError, UnsupportedError
from kvspec.request import RequestInput, RequestStatus, check_token_ids, token_list
from kvspec.turn import Turn


@dataclass(eq=False)
class ReferenceRequest:
    """The data that a scheduler and a manager share about one request.

    Tokens and hashes are values, replaced as a whole: a caller that received them cannot change the
    request. `hash_block_size_tokens` is 0 when caching is off: then there are no hashes. `is_busy`:
    a call uses it, or tokens are being appended.
    """

    input: RequestInput
    hasher: Hasher
    hash_block_size_tokens: int
    token_ids: Sequence[int]
    num_prompt_tokens: int
    block_hashes: Sequence[bytes] = ()
    num_computed_tokens: int = 0
    num_preemptions: int = 0
    status: RequestStatus = RequestStatus.WAITING
    junction_tokens: int = 0
    num_in_flight_tokens: int = 0
    is_busy: bool = False

    def __reduce_ex__(self, protocol: object) -> NoReturn:
        """Refuse: a copy could share the tokens but not their number (KV-MGR-20)."""
        raise UnsupportedError("copying or pickling a request", "kvref")

    @property
    def request_id(self) -> str:
        """The name under which a manager keeps the request's blocks."""
        return self.input.request_id

    @property
    def num_tokens(self) -> int:
        return len(self.token_ids)

    @property
    def prefill_end_tokens(self) -> int:
        """The end of the prompt, or of all tokens but the last if that is more (KV-INSIDE-12)."""
        return max(self.num_prompt_tokens, self.num_tokens - 1)

    @property
    def num_hashed_tokens(self) -> int:
        """Tokens in blocks that have a hash."""
        return len(self.block_hashes) * self.hash_block_size_tokens

    @property
    def num_last_tokens(self) -> int:
        """Tokens at the end that no hit may include (KV-MGR-1, KV-HASH-15)."""
        return max(1, self.hasher.lookahead_tokens)

    def append(self, token_ids: Sequence[int]) -> None:
        """Append tokens and hash the blocks they complete (KV-REQ-2, KV-REQ-5)."""
        turn = Turn()

        def extend() -> None:
            turn.uses(self)  # KV-ERR-7
            self.extend(token_ids)

        turn.run(extend)

    def extend(self, token_ids: Sequence[int]) -> None:
        """Append tokens in a call that already uses the request."""
        new_tokens = token_list(token_ids)
        check_token_ids(new_tokens)
        before = self.token_ids, self.block_hashes
        try:
            self.token_ids = (*self.token_ids, *new_tokens)
            self.hash_full_blocks()
        except BaseException:  # tokens and hashes must not part (KV-ERR-8)
            self.token_ids, self.block_hashes = before
            raise

    def hash_full_blocks(self) -> None:
        """Hash every block that has no hash yet and can have one (KV-HASH-4, KV-HASH-14)."""
        size = self.hash_block_size_tokens
        if size == 0:
            return
        hashes = list(self.block_hashes)
        parent = hashes[-1] if hashes else self.hasher.none_hash
        ahead = self.hasher.lookahead_tokens
        for index in range(len(hashes), (self.num_tokens - ahead) // size):
            start, end = index * size, (index + 1) * size
            extra = extra_keys(self.input, start, end + ahead)
            behind = self.token_ids[end : end + ahead]
            parent = self.hasher.block_hash(parent, self.token_ids[start:end], extra, behind)
            hashes.append(parent)
        self.block_hashes = tuple(hashes)


@dataclass(frozen=True)
class Allocation:
    """The arguments of one call of `allocate_slots`; the chapter on the manager has a figure."""

    request: ReferenceRequest
    hits: KVCacheBlocks
    num_hit_tokens: int
    num_external_tokens: int
    num_new_tokens: int
    num_lookahead_tokens: int
    num_encoder_tokens: int
    reserved_blocks: int
    delay_cache_blocks: bool
    full_sequence_must_fit: bool
    has_scheduled_reqs: bool

    @property
    def name(self) -> str:
        return self.request.request_id

    @property
    def num_local_tokens(self) -> int:
        """Computed before, and hit now."""
        return exact(self.request.num_computed_tokens) + self.num_hit_tokens

    @property
    def has_load(self) -> bool:
        """Whether a connector loads tokens."""
        return self.num_external_tokens > 0


def make_request(
    request_input: RequestInput, hasher: Hasher, hash_block_size_tokens: int
) -> ReferenceRequest:
    """Make a request with the hashes of its prompt's full blocks (KV-REQ-5: from any array)."""
    if not isinstance(request_input, RequestInput):
        raise InvalidArgumentError("request", request_input, "a RequestInput")
    tokens = token_list(request_input.prompt_token_ids, field="prompt_token_ids")
    check_token_ids(tokens, field="prompt_token_ids")
    request = ReferenceRequest(
        request_input, hasher, hash_block_size_tokens, tuple(tokens), num_prompt_tokens=len(tokens)
    )
    request.hash_full_blocks()
    return request
