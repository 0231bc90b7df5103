"""Several groups whose hits may end inside a block (KV-INSIDE-10, KV-INSIDE-12)."""

from __future__ import annotations

from dataclasses import replace

from kvref.allocation import Allocator
from kvref.groups.base import Demand
from kvref.groups.inside_mamba import InsideAlignedGroup
from kvref.hybrid import HybridCoordinator
from kvref.request import Allocation, ReferenceRequest
from kvspec.blocks import KVCacheBlocks


class InsideCoordinator(HybridCoordinator):
    """A coordinator that does not round when it caches, since hits may end at any hash."""

    def cache_blocks(self, request: ReferenceRequest, num_tokens: int) -> None:
        """Hand all that is computed to every group (KV-INSIDE-10), unless no hit ends inside."""
        if all(group.block_size == self.alignment for group in self.groups if group.is_cacheable):
            super().cache_blocks(request, num_tokens)
            return
        for group in self.groups:
            if group.is_cacheable:  # KV-COORD-14
                group.cache_blocks(request, num_tokens)


class InsideAllocator(Allocator):
    """An allocator that passes the ends of the prompt and of the known tokens to the groups."""

    def allocate(self, asked: Allocation) -> KVCacheBlocks | None:
        """Allocate, then drop the groups' notes on the chunk, which only its caching call uses."""
        answer = super().allocate(asked)
        for group in self.coordinator.groups:
            if isinstance(group, InsideAlignedGroup):
                group.chunk_is_planned()
        return answer

    def demand(self, asked: Allocation) -> Demand:
        """Add the known tokens and those that a prefill computes (KV-INSIDE-12)."""
        demand, request = super().demand(asked), asked.request
        return replace(
            demand,
            num_known_tokens=min(demand.num_main_tokens, request.num_tokens),
            prefill_end_tokens=request.prefill_end_tokens,
        )
