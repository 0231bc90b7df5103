"""Several groups with caching on: the longest hit they all agree on (KV-COORD-3 …)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from kvref.coordinator import Coordinator
from kvref.groups.base import Group, LookUp, cdiv
from kvref.request import ReferenceRequest
from kvspec.blocks import GroupHits, KVCacheBlocks, PrefixHit


@dataclass
class AttentionGroup:
    """Groups with equal specs, looked up together (KV-COORD-4).

    `drops_block`: some member is an eagle group, so hits give up their last block.
    """

    members: list[Group]

    @property
    def block_size(self) -> int:
        """Tokens per block, the same for all members."""
        return self.members[0].block_size

    @property
    def hash_size(self) -> int:
        """Tokens covered by each hash."""
        return self.block_size // self.members[0].hashes_per_block

    @property
    def looks_beyond(self) -> bool:
        """Whether the block to drop may lie beyond the limit of the search (KV-POL-19)."""
        return self.members[0].context.eagle_looks_beyond

    @property
    def is_full(self) -> bool:
        """Whether every shorter prefix of a hit is also one."""
        return self.members[0].is_full

    @property
    def is_mamba(self) -> bool:
        """Whether its look-ups neither extend the search nor drop a block (KV-COORD-8)."""
        return self.members[0].is_mamba

    @property
    def drops_block(self) -> bool:
        """Whether its look-ups drop the last block."""
        return self.members[0].drops_eagle_block

    @property
    def step(self) -> int:
        """Tokens by which a hit may be shorter: a block, or a hash (KV-INSIDE-9)."""
        return self.hash_size if self.members[0].hits_end_inside else self.block_size

    def cut(self, length: int) -> int:
        """Return the longest hit of at most `length` tokens, if every shorter prefix is one."""
        return length // self.step * self.step

    def look_up(
        self, hashes: Sequence[bytes], length: int, *, drop: bool, alignment: int
    ) -> tuple[list[list[int]], int]:
        """Return the longest joint hit up to `length` tokens: a list per member, its length."""
        members = [group.index for group in self.members]
        asked = LookUp(hashes, length, members, drop, alignment)
        return self.members[0].longest_hit_within(asked)


@dataclass
class Search:
    """The state of one fixed-point search (KV-COORD-5).

    `length`: agreed on so far. `found`: lists and length of the last result, per attention group.
    `verified`: attention groups whose drop holds for this length. `longest`: the longest result.
    """

    hashes: Sequence[bytes]
    max_length: int
    length: int
    found: dict[int, tuple[list[list[int]], int]] = field(default_factory=dict)
    verified: set[int] = field(default_factory=set)
    longest: int = 0


class HybridCoordinator(Coordinator):
    """Several groups over one pool, of which one or more take part in caching."""

    def __init__(self, groups: Sequence[Group], alignment_tokens: int) -> None:
        super().__init__(groups)
        self.alignment = alignment_tokens
        self.attention_groups = attention_groups_of(groups)

    def longest_hit(self, request: ReferenceRequest, max_length_tokens: int) -> PrefixHit:
        """Look up round after round until no group shortens the length (KV-COORD-5).

        Each round asks every attention group for its longest hit within the current length. With
        two attention groups, the first of them full, a single round is enough (KV-COORD-10).
        """
        search = Search(request.block_hashes, max_length_tokens, max_length_tokens)
        one_round = len(self.attention_groups) == 2 and self.attention_groups[0].is_full
        while True:
            before = search.length
            for number in range(len(self.attention_groups)):
                self._ask(search, number)
            if search.length >= before or one_round:
                break
        lists = {number: found for number, (found, _) in search.found.items()}
        for number, attention in enumerate(self.attention_groups):
            if attention.is_full:  # KV-COORD-11
                num_blocks = cdiv(attention.cut(search.length), attention.block_size)
                lists[number] = [blocks[:num_blocks] for blocks in lists[number]]
        return PrefixHit(
            self._by_group(lists),
            search.length,
            uncached_common_prefix_tokens=search.longest - search.length,  # KV-COORD-12
        )

    def _ask(self, search: Search, number: int) -> None:
        """Look up one attention group within the current length (KV-INSIDE-9: its own)."""
        attention = self.attention_groups[number]
        if attention.is_full and number in search.found:  # KV-COORD-6: a cut, not a look-up
            search.length = attention.cut(min(search.length, search.found[number][1]))
            return
        unverified = attention.drops_block and number not in search.verified
        drop = unverified and not attention.is_mamba
        # The block to drop may lie beyond the current length (KV-COORD-7).
        farthest = search.max_length
        if attention.looks_beyond:  # KV-POL-19
            farthest = len(search.hashes) * attention.hash_size
        within = min(search.length + attention.step, farthest) if drop else search.length
        lists, answer = attention.look_up(
            search.hashes, within, drop=drop, alignment=self.alignment
        )
        if unverified:
            search.verified.add(number)
        elif answer < search.length:
            search.verified.clear()
        search.found[number] = lists, answer
        search.length = answer
        search.longest = max(search.longest, answer)

    def longest_hit_per_group(self, request: ReferenceRequest, max_length_tokens: int) -> GroupHits:
        """Return every attention group's own longest hit, not reconciled (KV-COORD-9)."""
        lists: dict[int, list[list[int]]] = {}
        lengths = [0] * len(self.groups)
        for number, attention in enumerate(self.attention_groups):
            lists[number], length = attention.look_up(
                request.block_hashes,
                max_length_tokens,
                drop=attention.drops_block,
                alignment=self.alignment,
            )
            for group in attention.members:
                lengths[group.index] = length
        return GroupHits(self._by_group(lists), tuple(lengths))

    def _by_group(self, lists: dict[int, list[list[int]]]) -> KVCacheBlocks:
        """Put lists per attention group and member into the order of the groups (KV-COORD-14)."""
        found: dict[int, list[int]] = {g.index: [] for g in self.groups if not g.is_cacheable}
        for number, attention in enumerate(self.attention_groups):
            for group, blocks in zip(attention.members, lists[number], strict=True):
                found[group.index] = blocks
        return KVCacheBlocks(tuple(found[group.index] for group in self.groups))

    def cache_blocks(self, request: ReferenceRequest, num_tokens: int) -> None:
        """Cache only what an aligned hit can use (KV-COORD-13).

        Eagle groups need one block beyond the boundary, which their hits drop.
        """
        aligned = num_tokens // self.alignment * self.alignment
        for group in self.groups:
            if not group.is_cacheable:  # KV-COORD-14
                continue
            if group.drops_eagle_block and aligned > 0:
                group.cache_blocks(request, min(num_tokens, aligned + group.block_size))
            else:
                group.cache_blocks(request, aligned)

    def num_common_prefix_blocks(self, request_id: str) -> tuple[int, ...]:
        return tuple(group.num_common_prefix_blocks(request_id) for group in self.groups)


def attention_groups_of(groups: Sequence[Group]) -> list[AttentionGroup]:
    """Join groups with equal specs, full attention first (KV-COORD-4)."""
    found: list[AttentionGroup] = []
    for group in groups:
        if not group.is_cacheable:
            continue
        for attention in found:
            if attention.members[0].spec == group.spec:
                attention.members.append(group)
                break
        else:
            found.append(AttentionGroup([group]))
    full = [attention for attention in found if attention.is_full]
    return full + [attention for attention in found if not attention.is_full]
