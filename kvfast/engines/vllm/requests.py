"""kvfast's requests beside vLLM's, which keep tokens and hashes (`kvspec.following`)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from vllm.v1.request import RequestStatus

from kvfast._implementation import FastImplementation
from kvfast.engines.vllm.versions import is_since
from kvspec.following import FollowedInput
from kvspec.interface import KVCacheManager
from kvspec.request import RequestStatus as Status

NAME = "_kvfast_request"
"""The member of vLLM's request under which kvfast's is kept, with the manager that it is of."""


class Requests:
    """The requests of one manager; `held`: those that may hold blocks, by their ids.

    From 0.26 on (`is_later`) they say what is in flight, and up to where others share their prefix.
    `told`: vLLM's requests whose tokens an event may need, if there are events.
    """

    def __init__(
        self, implementation: FastImplementation, manager: KVCacheManager, hash_block_size: int
    ) -> None:
        self.ahead: int = manager.config.hash_lookahead_tokens
        self.is_later = is_since(26)
        self.implementation = implementation
        self.manager = manager
        self.hash_block_size = hash_block_size  # 0 with caching off
        self.held: dict[str, Any] = {}
        self.told: dict[str, Any] = {}

    def current(self, request: Any) -> Any:
        """kvfast's request, which knows what vLLM's knows now."""
        kept = request.__dict__.get(NAME)
        if kept is None or kept[0] is not self:
            mine: Any = self._made(request)
            request.__dict__[NAME] = (self, mine)
        else:
            mine = kept[1]
            num_tokens = len(request._all_token_ids)
            # A continued session may have as many tokens as before, with more of them in its
            # prompt.
            if num_tokens != mine.num_tokens or _prompt_of(request) != mine.num_prompt_tokens:
                self._follow(mine, request, num_tokens)
        mine.num_computed_tokens = request.num_computed_tokens
        mine.num_preemptions = request.num_preemptions
        mine.status = _status_of(request.status)
        if self.is_later:
            self._note(mine, request)
        return mine

    def _note(self, mine: Any, request: Any) -> None:
        mine.num_in_flight_tokens = request.num_in_flight_tokens
        mine.junction_tokens = request.shared_prefix_boundary

    def of_hashes(self, hashes: Sequence[bytes], num_tokens: int) -> Any:
        """Make a request with these hashes, to look up a hit of `num_tokens` tokens."""
        return self._followed("look-up", num_tokens, num_tokens, hashes)

    def _made(self, request: Any) -> Any:
        return self._followed(
            request.request_id,
            len(request._all_token_ids),
            _prompt_of(request),
            request.block_hashes,
            skip_reading_cache=bool(request.skip_reading_prefix_cache),
            reports_hits=getattr(request, "kv_cache_report_mode", "") == "full",
        )

    def _followed(
        self, name: str, num_tokens: int, num_prompt: int, hashes: Sequence[bytes], **flags: bool
    ) -> Any:
        given = hashes[: self.num_hashes(num_tokens)] if self.hash_block_size else ()
        counts = {"num_tokens": num_tokens, "num_prompt_tokens": num_prompt}
        # Its checks, of what vLLM has counted, would take longer than all else.
        followed = object.__new__(FollowedInput)
        vars(followed).update(request_id=name, hashes=given, **counts, **flags)
        return self.implementation.make_followed(self.manager, followed)

    def num_hashes(self, num_tokens: int) -> int:
        return max(num_tokens - self.ahead, 0) // self.hash_block_size

    def _follow(self, mine: Any, request: Any, num_tokens: int) -> None:
        """Other numbers of tokens, and the hashes of blocks that are newly full.

        From 0.26 on a session that continues has lost its last token, and the hashes over it.
        """
        prompt = _prompt_of(request)
        if self.is_later and prompt != mine.num_prompt_tokens:
            self._cut(mine)
        size, new = self.hash_block_size, ()
        if size and self.num_hashes(num_tokens) > mine.num_hashes:
            new = request.block_hashes[mine.num_hashes : self.num_hashes(num_tokens)]
        self.implementation.follow(self.manager, mine, num_tokens, new, num_prompt_tokens=prompt)

    def _cut(self, mine: Any) -> None:
        if mine.num_tokens > 1:
            kept = mine.num_tokens - 1
            prompt = min(mine.num_prompt_tokens, kept)
            self.implementation.follow(self.manager, mine, kept, num_prompt_tokens=prompt)


def _prompt_of(request: Any) -> int:
    """Count its prompt: no more than its tokens.

    Before 0.33, of a session that ended while it was preempted vLLM keeps the next input alone, and
    counts all that it has said before.
    """
    return min(int(request.num_prompt_tokens), len(request._all_token_ids))


def _status_of(status: Any) -> Status:
    """Map the status: WAITING and PREEMPTED meet the watermark; all others count as RUNNING."""
    if status == RequestStatus.WAITING:
        return Status.WAITING
    return Status.PREEMPTED if status == RequestStatus.PREEMPTED else Status.RUNNING
