"""The base of adapters for small managers: one group, no snapshot, few options.

A small manager allocates, looks up, extends and frees. It is judged from outside, by its block
lists and its number of free blocks (docs/decisions/0022-what-a-small-manager-must-show.md).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, TypeVar

from kvspec.base import MEANINGLESS, BaseImplementation, BaseManager
from kvspec.blocks import KVCacheBlocks
from kvspec.domains import is_int
from kvspec.editions import NEWEST
from kvspec.errors import InvalidArgumentError, StaleHitError, UnsupportedError
from kvspec.interface import Capabilities
from kvspec.request import Request, RequestInput, RequestStatus

T = TypeVar("T")


class SmallRequest:
    """The scheduler's side of a request; `inner` is the other project's own request.

    `num_prefill_tokens`: tokens that it had when it was admitted. `last_hit`: of its last look-up.
    """

    def __init__(self, given: RequestInput, inner: Any) -> None:
        self.request_id = given.request_id
        self.num_prompt_tokens = len(given.prompt_token_ids)
        self.inner = inner
        self.num_prefill_tokens = 0
        self.last_hit: list[int] = []
        self.num_computed_tokens = 0
        self.num_preemptions = 0
        self.status = RequestStatus.WAITING
        self.block_hashes: tuple[bytes, ...] = ()

    @property
    def token_ids(self) -> Sequence[int]:
        raise NotImplementedError

    @property
    def num_tokens(self) -> int:
        return len(self.token_ids)


class SmallManager(BaseManager):
    """A manager of another project, of which a request keeps the last hit.

    A subclass has `num_free_blocks`, `get_computed_blocks`, `free`, `held` and `grant`. All other
    calls raise UnsupportedError. `request_class`: of its requests.
    """

    name = "small"
    request_class: type[Any] = SmallRequest

    def held(self, own: Any) -> Sequence[int]:
        """Return the blocks of a request; none of one that waits."""
        raise NotImplementedError

    def grant(self, own: Any, hit_tokens: int, end: int) -> bool:
        """Allocate slots up to `end`, for one that waits behind its hit; False if too few."""
        raise NotImplementedError

    def get_blocks(self, request: Request) -> KVCacheBlocks:
        return KVCacheBlocks((tuple(self.held(owned(request, self.request_class))),))

    def allocate_slots(
        self,
        request: Request,
        num_new_tokens: int,
        *,
        num_new_computed_tokens: int = 0,
        new_computed_blocks: KVCacheBlocks | None = None,
        **options: Any,
    ) -> KVCacheBlocks | None:
        """Allocate slots for tokens about to be computed; None if there are too few."""
        own = owned(request, self.request_class)
        refuse_what_is_lacking(options, self.name)
        hit = self.kept_hit(new_computed_blocks, num_new_computed_tokens, own.last_hit)
        end = self.checked_tokens(own, num_new_tokens, hit)
        before = len(self.held(own))
        if before and hit:
            raise InvalidArgumentError("num_new_computed_tokens", hit, "0 for a running request")
        if not self.grant(own, hit, end):
            return None
        return KVCacheBlocks((tuple(self.held(own)[before or hit // self.block_size :]),))

    def checked_tokens(self, request: SmallRequest, num_new_tokens: int, hit_tokens: int) -> int:
        """Return the end of the tokens to be computed, if the request has them."""
        start = request.num_computed_tokens + hit_tokens
        left = request.num_tokens - start
        if not is_int(num_new_tokens) or not 1 <= num_new_tokens <= left:
            raise InvalidArgumentError("num_new_tokens", num_new_tokens, f"an int in 1 … {left}")
        return start + num_new_tokens

    def kept_hit(
        self, given: KVCacheBlocks | None, hit_tokens: int, last_answer: Sequence[int]
    ) -> int:
        """Return the number of hit tokens, if the hit is the result of the look-up just before.

        These managers keep a hit on the request and do not take it as blocks, so any other hit is
        refused.
        """
        blocks = [] if given is None else list(given.groups[0])
        for index, block in enumerate(blocks):
            if index >= len(last_answer) or block != last_answer[index]:
                raise StaleHitError(0, index, block)
        if hit_tokens != len(blocks) * self.block_size or len(blocks) not in (0, len(last_answer)):
            raise InvalidArgumentError(
                "num_new_computed_tokens", hit_tokens, "the length of the last look-up's hit"
            )
        return hit_tokens


def owned(request: object, of: type[T]) -> T:
    """Return the request if this adapter made it, else raise InvalidArgumentError."""
    if not isinstance(request, of):
        raise InvalidArgumentError("request", request, "made by this implementation's make_request")
    return request


def refuse_what_is_lacking(options: Mapping[str, Any], name: str) -> None:
    """Raise UnsupportedError for options of `allocate_slots` that ask for more than the base."""
    for option, value in options.items():
        if value and option not in MEANINGLESS:
            raise UnsupportedError(option, name)


class SmallImplementation(BaseImplementation):
    """`Implementation` for one full-attention group, seen from outside."""

    edition = NEWEST
    min_block_size_tokens = 1

    def __init__(self, version: str) -> None:
        self.found_version = version

    @property
    def capabilities(self) -> Capabilities:
        """Capabilities without a hash function: only safety can be checked."""
        return replace(
            super().capabilities,
            version=self.found_version,
            min_block_size_tokens=self.min_block_size_tokens,
        )
