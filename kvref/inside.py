"""Several groups whose hits may end inside a block (KV-INSIDE-9, KV-INSIDE-10)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from kvref.allocation import Allocator
from kvref.groups.base import Demand, cdiv
from kvref.groups.inside import EndsInside
from kvref.groups.inside_mamba import InsideAlignedGroup
from kvref.hybrid import AttentionGroup, HybridCoordinator
from kvref.request import Allocation, ReferenceRequest
from kvspec.blocks import GroupHits, KVCacheBlocks, PrefixHit


@dataclass
class InsideSearch:
    """One search: what is agreed on, and the last answer of each attention group.

    `found`: lists and length. `verified`: attention groups whose drop holds for this length.
    `longest`: the longest answer.
    """

    hashes: Sequence[bytes]
    max_length: int
    length: int
    found: dict[int, tuple[list[list[int]], int]] = field(default_factory=dict)
    verified: set[int] = field(default_factory=set)
    longest: int = 0


class InsideCoordinator(HybridCoordinator):
    """Lengths are those of the answers, and nothing is rounded to blocks."""

    def longest_hit(self, request: ReferenceRequest, max_length_tokens: int) -> PrefixHit:
        """Look up round after round until nobody shortens the length (KV-COORD-5)."""
        search = InsideSearch(request.block_hashes, max_length_tokens, max_length_tokens)
        one_round = len(self.attention_groups) == 2 and self.attention_groups[0].is_full
        while True:
            before = search.length
            for number, attention in enumerate(self.attention_groups):
                self._shorten(search, number, attention)
            if search.length >= before or one_round:
                break
        lists: dict[int, list[list[int]]] = {}
        for number, attention in enumerate(self.attention_groups):
            lists[number], _ = search.found[number]
            if attention.is_full:
                num_blocks = cdiv(search.length, attention.block_size)
                lists[number] = [blocks[:num_blocks] for blocks in lists[number]]
        return PrefixHit(
            self._by_group(lists),
            search.length,
            uncached_common_prefix_tokens=search.longest - search.length,
        )

    def _shorten(self, search: InsideSearch, number: int, attention: AttentionGroup) -> None:
        """One attention group's answer within the current length."""
        if attention.is_full and number in search.found:  # KV-INSIDE-9: nothing is looked up
            search.length = min(search.length, search.found[number][1])
            return
        unverified = attention.drops_block and number not in search.verified
        drop = unverified and not attention.is_mamba
        within = search.length
        if drop:
            farthest = search.max_length
            if attention.looks_beyond:  # KV-POL-19
                farthest = len(search.hashes) * attention.hash_size
            within = min(search.length + self._dropped_tokens(attention), farthest)
        lists, answer = self._look_up(attention, search.hashes, within, drop=drop)
        if unverified:
            search.verified.add(number)
        elif answer < search.length:
            search.verified.clear()
        search.found[number] = lists, answer
        search.length = answer
        search.longest = max(search.longest, answer)

    def _dropped_tokens(self, attention: AttentionGroup) -> int:
        """A hash's tokens, or a block's where hits do not end inside one (KV-INSIDE-9)."""
        return attention.hash_size if attention.is_full else attention.block_size

    def _look_up(
        self, attention: AttentionGroup, hashes: Sequence[bytes], length: int, *, drop: bool
    ) -> tuple[list[list[int]], int]:
        """Lists per member, and their length in tokens."""
        first = attention.members[0]
        members = [group.index for group in attention.members]
        if isinstance(first, EndsInside):
            return first.longest_hit_within(hashes, length, members=members, drop=drop)
        lists = attention.look_up(hashes, length, drop=drop, alignment=self.alignment)
        return lists, len(lists[0]) * attention.block_size

    def longest_hit_per_group(self, request: ReferenceRequest, max_length_tokens: int) -> GroupHits:
        """Every attention group's own longest hit, not reconciled (KV-COORD-9)."""
        lists: dict[int, list[list[int]]] = {}
        lengths = dict.fromkeys(range(len(self.groups)), 0)
        for number, attention in enumerate(self.attention_groups):
            lists[number], length = self._look_up(
                attention, request.block_hashes, max_length_tokens, drop=attention.drops_block
            )
            lengths.update((group.index, length) for group in attention.members)
        in_order = tuple(lengths[group.index] for group in self.groups)
        return GroupHits(self._by_group(lists), in_order)

    def cache_blocks(self, request: ReferenceRequest, num_tokens: int) -> None:
        """All that is computed is handed to every group (KV-INSIDE-10)."""
        for group in self.groups:
            if group.is_cacheable:  # KV-COORD-14
                group.cache_blocks(request, num_tokens)


class InsideAllocator(Allocator):
    """Groups are told where the prompt and what is known of the request end."""

    def allocate(self, asked: Allocation) -> KVCacheBlocks | None:
        """What groups noted of the chunk is of use in its own caching call alone."""
        answer = super().allocate(asked)
        for group in self.coordinator.groups:
            if isinstance(group, InsideAlignedGroup):
                group.chunk_is_planned()
        return answer

    def demand(self, asked: Allocation) -> Demand:
        """With the tokens that are known, and those that a prefill computes (KV-INSIDE-12)."""
        demand, request = super().demand(asked), asked.request
        return replace(
            demand,
            num_known_tokens=min(demand.num_main_tokens, request.num_tokens),
            prefill_end_tokens=request.prefill_end_tokens,
        )
