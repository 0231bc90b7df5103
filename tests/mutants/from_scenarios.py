"""Mutants that directed checks were written for, which nothing else would show to be needed."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from kvref import request as kvref_request
from kvref.block_pool import BlockPool
from kvref.events import EventLog
from kvref.groups.base import replay_boundary
from kvref.groups.mamba import MambaGroup
from kvref.groups.sliding_window import SlidingWindowGroup
from kvref.hashing import TaggedKeys, extra_keys
from kvref.implementation import ReferenceImplementation
from kvref.manager import ReferenceManager
from kvref.request import ReferenceRequest
from kvspec.blocks import KVCacheBlocks
from kvspec.errors import InvalidArgumentError
from kvspec.interface import KVCacheManager
from kvspec.request import Request, RequestInput
from tests.mutants.make import classes_in, patched


class KeepsWhatFailed(ReferenceManager):
    """KV-POOL-10: eviction by id is forgotten, so that a load that failed is still a hit."""

    def evict_blocks(self, block_ids: Sequence[int]) -> None:
        """Nothing."""


class RegistersLoadsEarly(ReferenceManager):
    """KV-MGR-10, KV-MGR-11: a load is registered before it arrived."""

    def allocate_slots(
        self, request: Request, num_new_tokens: int, **how: Any
    ) -> KVCacheBlocks | None:
        """Without the delay."""
        how["delay_cache_blocks"] = False
        return super().allocate_slots(request, num_new_tokens, **how)


class CachesWhatHasSlots(ReferenceManager):
    """KV-MGR-10, KV-GRP-11: what has slots is taken for computed."""

    def allocate_slots(
        self, request: Request, num_new_tokens: int, **how: Any
    ) -> KVCacheBlocks | None:
        """All blocks of the list that have a hash are registered."""
        granted = super().allocate_slots(request, num_new_tokens, **how)
        if granted is not None and self.config.enable_caching:
            size = self.config.scheduler_block_size_tokens or 1
            slots = size * min(len(blocks) for blocks in self.get_blocks(request).groups)
            self.cache_blocks(request, min(slots, request.num_tokens))
        return granted


class RefusesResetWithoutCaching(ReferenceManager):
    """KV-COORD-1: with caching off nothing can be reset."""

    def reset_prefix_cache(self) -> bool:
        """False."""
        return self.config.enable_caching and super().reset_prefix_cache()


class CrashesOnHitIds(ReferenceManager):
    """KV-ERR-3, KV-ERR-2: the id of a hit is used as an index, unchecked."""

    def allocate_slots(
        self, request: Request, num_new_tokens: int, **how: Any
    ) -> KVCacheBlocks | None:
        """Each hit is looked at first."""
        hits = how.get("new_computed_blocks")
        for blocks in hits.groups if hits is not None else ():
            for block in blocks:
                self.pool.ref_counts[block]
        return super().allocate_slots(request, num_new_tokens, **how)


class SkipsFromZero(ReferenceManager):
    """KV-ERR-2, KV-MGR-14: a negative number of computed tokens counts as none."""

    def remove_skipped_blocks(self, request: Request, total_computed_tokens: int) -> None:
        """Cut, not refused."""
        super().remove_skipped_blocks(request, max(total_computed_tokens, 0))


class NeverAllOfASegment(SlidingWindowGroup):
    """KV-RET-1: of each segment the first block is passed over, however long the tail."""

    def is_worth_caching(self, block_index: int, request: ReferenceRequest) -> bool:
        """As if a tail were shorter than a segment."""
        per_segment = self.context.alignment_tokens // self.block_size
        first = per_segment > 1 and block_index % per_segment == 0
        return not first and super().is_worth_caching(block_index, request)


class StatesOnTheAlignmentOnly(MambaGroup):
    """KV-RET-5: without retention only states at the alignment are kept."""

    def is_worth_caching(self, block_index: int, request: ReferenceRequest) -> bool:
        """Fewer than everything."""
        end = (block_index + 1) * self.block_size
        return end % self.context.alignment_tokens == 0


class StatesBeyondTheInterval(MambaGroup):
    """KV-RET-5: an interval as long as a block keeps the replay boundary alone."""

    def is_worth_caching(self, block_index: int, request: ReferenceRequest) -> bool:
        """As with interval 0."""
        if self.context.retention_interval_tokens != self.block_size:
            return super().is_worth_caching(block_index, request)
        end = (block_index + 1) * self.block_size
        return end == replay_boundary(request, self.context.alignment_tokens)


class PartialEntriesAreNew(MambaGroup):
    """KV-MAMBA-2: every key of a block that is passed or registered counts, partial ones too."""

    def cache_blocks(self, request: ReferenceRequest, num_tokens: int) -> None:
        """Not only the keys of states."""
        first = self.num_cached.get(request.request_id, 0)
        super().cache_blocks(request, num_tokens)
        end = self.num_cached.get(request.request_id, 0)
        for block in self.blocks_of(request.request_id)[first:end]:
            self.step_keys.update(self.pool.keys[block])


class TellsAlways(EventLog):
    """KV-EVT-1: events are queued although they are off."""

    def __init__(self, enabled: bool, int_hashes: bool) -> None:
        super().__init__(True, int_hashes)


class NeverFillsThePool(BlockPool):
    """KV-LIVE-1: the last free block is never given away."""

    @property
    def num_free_blocks(self) -> int:
        """One fewer."""
        return max(0, len(self.free_queue) - 1)


class ForgetsThePreempted(ReferenceManager):
    """KV-LIVE-2: who was preempted twice is never served again."""

    def allocate_slots(
        self, request: Request, num_new_tokens: int, **how: Any
    ) -> KVCacheBlocks | None:
        """None for them."""
        if request.num_preemptions > 1:
            return None
        return super().allocate_slots(request, num_new_tokens, **how)


class ItemsEndWithThePrompt(ReferenceImplementation):
    """KV-REQ-4: an item that goes on beyond the prompt is refused."""

    def make_request(self, manager: KVCacheManager, request: RequestInput) -> Request:
        """With one more demand."""
        for item in request.multimodal:
            if item.offset + item.length > len(request.prompt_token_ids):
                raise InvalidArgumentError("multimodal", item, "within the prompt")
        return super().make_request(manager, request)


def takes_any_token(token_ids: Sequence[int], *, field: str = "token_ids") -> None:
    """KV-REQ-1: tokens are not checked."""


def reads_without_order(token_ids: Sequence[int], *, field: str = "token_ids") -> list[int]:
    """KV-REQ-5: whatever can be iterated is read as tokens."""
    return list(token_ids)


def forgets_embeddings(request: RequestInput, start: int, end: int) -> TaggedKeys:
    """KV-HASH-9: embeddings enter no hash."""
    plain = RequestInput(
        request.request_id,
        request.prompt_token_ids,
        request.cache_salt,
        request.lora,
        request.multimodal,
    )
    return extra_keys(plain, start, end)


def forgets_items(request: RequestInput, start: int, end: int) -> TaggedKeys:
    """KV-HASH-8: items enter no hash."""
    plain = RequestInput(
        request.request_id,
        request.prompt_token_ids,
        request.cache_salt,
        request.lora,
        prompt_embeddings=request.prompt_embeddings,
    )
    return extra_keys(plain, start, end)


MUTANTS = (
    *classes_in(__name__),
    patched(forgets_embeddings, (kvref_request, "extra_keys")),
    patched(forgets_items, (kvref_request, "extra_keys")),
    patched(takes_any_token, (kvref_request, "check_token_ids")),
    patched(reads_without_order, (kvref_request, "token_list")),
)
