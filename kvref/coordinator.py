"""Several groups over one pool, and the hit they agree on (KV-COORD-*)."""

from __future__ import annotations

from collections.abc import Sequence

from kvref.groups.base import Demand, Group, LookUp
from kvref.hashing import hash_of_block, make_key
from kvref.request import ReferenceRequest
from kvspec.blocks import NULL_BLOCK, GroupHits, KVCacheBlocks, PrefixHit
from kvspec.errors import UnsupportedError


class Coordinator:
    """The coordinator without caching, and the base of the others (KV-COORD-1).

    Every operation on a request is applied to the groups one after another, in group order.

    Invariants: a_block_has_one_place.
    """

    def __init__(self, groups: Sequence[Group]) -> None:
        self.groups = tuple(groups)

    def longest_hit(self, request: ReferenceRequest, max_length_tokens: int) -> PrefixHit:
        """Return no hit, because nothing is cached."""
        return PrefixHit(KVCacheBlocks.empty(len(self.groups)), 0)

    def longest_hit_per_group(self, request: ReferenceRequest, max_length_tokens: int) -> GroupHits:
        """Raise UnsupportedError: only several groups can disagree (KV-COORD-9)."""
        raise UnsupportedError("per-group look-ups with fewer than two cached groups", "kvref")

    def num_common_prefix_blocks(self, request_id: str) -> tuple[int, ...]:
        """Zero for every group: without caching nothing is shared."""
        return tuple(0 for _ in self.groups)

    def is_running(self, request_id: str) -> bool:
        """Return whether some group has an entry for the request (KV-GRP-9)."""
        return any(group.has_entry(request_id) for group in self.groups)

    def holds_blocks(self, request_id: str) -> bool:
        """Return whether some group has a block (or null) for the request."""
        return any(group.blocks_of(request_id) for group in self.groups)

    def num_blocks_needed(self, request_id: str, hits: KVCacheBlocks, demand: Demand) -> int:
        """Free blocks that all groups together would take."""
        return sum(
            group.num_blocks_needed(request_id, group_hits, demand)
            for group, group_hits in zip(self.groups, hits.groups, strict=True)
        )

    def take_hits(self, request_id: str, hits: KVCacheBlocks, demand: Demand) -> None:
        """Start the lists of a request that is not running (KV-GRP-8, KV-GRP-9).

        First every group touches its hits, then every group takes blocks for external tokens:
        otherwise the blocks one group takes could evict the hits of the next.
        """
        if self.is_running(request_id):
            return
        for group, group_hits in zip(self.groups, hits.groups, strict=True):
            group.take_hits(request_id, group_hits, demand)
        if demand.num_external_tokens > 0:
            for group in self.groups:
                group.allocate_external(request_id, demand)

    def report_hit(self, request: ReferenceRequest, hits: KVCacheBlocks, num_tokens: int) -> None:
        """Report the hit again in each group, if the request wants that (KV-EVT-11)."""
        if not request.input.reports_hits:
            return
        for group, blocks in zip(self.groups, hits.groups, strict=True):
            size, hash_size = group.block_size, group.block_size // group.hashes_per_block
            num_whole = min(len(blocks), num_tokens // size)
            found = [i for i in range(num_whole) if blocks[i] != NULL_BLOCK]
            if found:
                self._report(request, group, size, 0, num_whole, found)
            if len(blocks) > num_whole:  # the hit ends inside this one
                number = num_tokens // hash_size - 1
                key = make_key(request.block_hashes[number], group.index)
                if key not in group.pool.keys[blocks[num_whole]]:
                    continue  # it ends at a longer text
                self._report(request, group, hash_size, number, number + 1, [number])

    def _report(
        self,
        request: ReferenceRequest,
        group: Group,
        size: int,
        first: int,
        end: int,
        found: list[int],
    ) -> None:
        """Report those of blocks `first` … `end - 1`, of `size` tokens, that were found."""
        per = size * group.hashes_per_block // group.block_size
        hashes = request.block_hashes
        group.events.stored(
            request,
            group=group.index,
            spec=group.spec,
            block_size_tokens=size,
            first_block=first,
            end_block=end,
            stored_blocks=found,
            hashes=[hash_of_block(hashes, index, per) for index in found],
            parent_hash=hash_of_block(hashes, first - 1, per) if first > 0 else None,
            is_report=True,
        )

    def allocate_new(self, request_id: str, demand: Demand) -> KVCacheBlocks:
        """Allocate new blocks for the slots asked for, per group."""
        return KVCacheBlocks(tuple(group.allocate_new(request_id, demand) for group in self.groups))

    def cache_blocks(self, request: ReferenceRequest, num_tokens: int) -> None:
        """Register the full blocks among the first tokens, in every group."""
        for group in self.groups:
            group.cache_blocks(request, num_tokens)

    def withdraw(self, request_id: str, num_computed_tokens: int) -> tuple[str, ...]:
        """Drop the keys of blocks that are not computed to their end; return the other holders."""
        planned: set[int] = set()
        for group in self.groups:
            whole = num_computed_tokens // group.block_size
            if request_id in group.num_cached:
                group.num_cached[request_id] = min(group.num_cached[request_id], whole)
            for block in group.blocks_of(request_id)[whole:]:
                if group.pool.keys[block]:
                    group.pool.forget(block)
                if block != NULL_BLOCK:
                    planned.add(block)
        holders = {
            other
            for group in self.groups
            for other, blocks in group.block_lists.items()
            if other != request_id and planned.intersection(blocks)
        }
        return tuple(sorted(holders))

    def remove_skipped_blocks(
        self, request_id: str, num_computed_tokens: int, num_prompt_tokens: int | None = None
    ) -> None:
        """Release what fell out of the window: one release call per group (KV-POOL-7)."""
        for group in self.groups:
            group.remove_skipped_blocks(request_id, num_computed_tokens)
            if num_prompt_tokens is not None:
                group.remove_gap(request_id, num_computed_tokens, num_prompt_tokens)

    def free(self, request_id: str) -> None:
        """Release all blocks of the request, per group, last block first (KV-POOL-8)."""
        for group in self.groups:
            group.pool.release(reversed(group.pop(request_id)))

    def pop(self, request_id: str) -> list[int]:
        """Forget the request; its blocks, groups concatenated, keep their references."""
        popped: list[int] = []
        for group in self.groups:
            blocks = group.pop(request_id)
            while blocks and blocks[0] == NULL_BLOCK and not group.context.keeps_leading_nulls:
                del blocks[0]  # KV-POL-14
            popped += blocks
        return popped


class UnitaryCoordinator(Coordinator):
    """One group with caching on (KV-COORD-2): nothing to reconcile, no rounding when it caches."""

    def longest_hit(self, request: ReferenceRequest, max_length_tokens: int) -> PrefixHit:
        """Return the group's own longest hit, aligned to its block size."""
        (group,) = self.groups
        drops, alignment = group.drops_eagle_block, group.block_size
        asked = LookUp(request.block_hashes, max_length_tokens, [0], drops, alignment)
        blocks, length = group.longest_hit_within(asked)
        return PrefixHit(KVCacheBlocks(tuple(blocks)), length)

    def num_common_prefix_blocks(self, request_id: str) -> tuple[int, ...]:
        (group,) = self.groups
        return (group.num_common_prefix_blocks(request_id),)
