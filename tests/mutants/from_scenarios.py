"""Mutants that directed programs were written for: loads, drafts, extra keys."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from kvref import request as kvref_request
from kvref.hashing import extra_keys
from kvref.manager import ReferenceManager
from kvspec.blocks import KVCacheBlocks
from kvspec.events import ExtraKeys
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


def forgets_embeddings(request: RequestInput, start: int, end: int) -> ExtraKeys:
    """KV-HASH-9: embeddings enter no hash."""
    plain = RequestInput(
        request.request_id,
        request.prompt_token_ids,
        request.cache_salt,
        request.lora,
        request.multimodal,
    )
    return extra_keys(plain, start, end)


def forgets_items(request: RequestInput, start: int, end: int) -> ExtraKeys:
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
)
