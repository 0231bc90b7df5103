"""Broken searches for the hit of a hybrid (KV-COORD-4 … KV-COORD-12)."""

from __future__ import annotations

from collections.abc import Sequence

from kvref.groups.base import Group
from kvref.hybrid import AttentionGroup, HybridCoordinator, Search
from kvref.request import ReferenceRequest
from kvspec.blocks import GroupHits, KVCacheBlocks, PrefixHit
from tests.fixed_point.twin import BOTH, Twin


class Restated(HybridCoordinator):
    """The search of the reference, cut into the decisions that a twin gets wrong; not broken."""

    def longest_hit(self, request: ReferenceRequest, max_length_tokens: int) -> PrefixHit:
        search = Search(request.block_hashes, max_length_tokens, max_length_tokens)
        num_rounds = 0
        while True:
            before = search.length
            for number in range(len(self.attention_groups)):
                self._ask(search, number)
            num_rounds += 1
            if self.is_over(search, before, num_rounds):
                break
        for number in self.cut_groups():
            num_blocks = search.length // self.attention_groups[number].block_size
            search.lists[number] = [blocks[:num_blocks] for blocks in search.lists[number]]
        return PrefixHit(
            self._by_group(search.lists),
            search.length,
            uncached_common_prefix_tokens=search.longest - search.length,
        )

    def _ask(self, search: Search, number: int) -> None:
        attention = self.attention_groups[number]
        if self.is_only_cut(search, number):
            search.length = search.length // attention.block_size * attention.block_size
            return
        unverified = attention.drops_block and number not in search.verified
        drop = unverified and not attention.is_mamba
        lists = attention.look_up(
            search.hashes,
            self.within(search, attention, drop=drop),
            drop=drop,
            alignment=self.alignment,
        )
        answer = len(lists[0]) * attention.block_size
        self.mark(search, number, unverified=unverified, shortens=answer < search.length)
        search.lists[number] = lists
        search.length = answer
        self.note(search, answer)

    def longest_hit_per_group(self, request: ReferenceRequest, max_length_tokens: int) -> GroupHits:
        lists = {
            number: attention.look_up(
                request.block_hashes,
                self.own_limit(attention, max_length_tokens),
                drop=self.own_drop(attention),
                alignment=self.own_alignment(attention),
            )
            for number, attention in enumerate(self.attention_groups)
        }
        blocks = self._by_group(lists)
        lengths = [
            len(found) * group.block_size
            for group, found in zip(self.groups, blocks.groups, strict=True)
        ]
        return GroupHits(blocks, tuple(lengths))

    def own_limit(self, attention: AttentionGroup, limit: int) -> int:
        """KV-COORD-9."""
        return limit

    def own_drop(self, attention: AttentionGroup) -> bool:
        """KV-COORD-9."""
        return attention.drops_block

    def own_alignment(self, attention: AttentionGroup) -> int:
        """KV-COORD-9."""
        return self.alignment

    def is_over(self, search: Search, before: int, num_rounds: int) -> bool:
        """KV-COORD-10."""
        one_round = len(self.attention_groups) == 2 and self.attention_groups[0].is_full
        return search.length >= before or one_round

    def cut_groups(self) -> list[int]:
        """KV-COORD-11."""
        return [n for n, attention in enumerate(self.attention_groups) if attention.is_full]

    def is_only_cut(self, search: Search, number: int) -> bool:
        """KV-COORD-6."""
        return self.attention_groups[number].is_full and number in search.lists

    def within(self, search: Search, attention: AttentionGroup, *, drop: bool) -> int:
        """KV-COORD-7."""
        if drop:
            return min(search.length + attention.block_size, search.max_length)
        return search.length

    def mark(self, search: Search, number: int, *, unverified: bool, shortens: bool) -> None:
        """KV-COORD-7, KV-COORD-8."""
        if unverified:
            search.verified.add(number)
        elif shortens:
            search.verified.clear()

    def note(self, search: Search, answer: int) -> None:
        """KV-COORD-12."""
        search.longest = max(search.longest, answer)


class EveryGroupAlone(Restated):
    """KV-COORD-4: groups with equal specs are looked up one by one."""

    def __init__(self, groups: Sequence[Group], alignment_tokens: int) -> None:
        super().__init__(groups, alignment_tokens)
        alone = [
            AttentionGroup([group])
            for attention in self.attention_groups
            for group in attention.members
        ]
        self.attention_groups = alone


class ConfiguredOrder(Restated):
    """KV-COORD-4: full attention is not put first."""

    def __init__(self, groups: Sequence[Group], alignment_tokens: int) -> None:
        super().__init__(groups, alignment_tokens)
        self.attention_groups.sort(key=lambda attention: attention.members[0].index)


class LastMembersOrder(Restated):
    """KV-COORD-4: the other groups are asked in the reverse order."""

    def __init__(self, groups: Sequence[Group], alignment_tokens: int) -> None:
        super().__init__(groups, alignment_tokens)
        full = [attention for attention in self.attention_groups if attention.is_full]
        self.attention_groups = full + self.attention_groups[: len(full) - 1 : -1]


class FirstMemberAnswersForAll(Restated):
    """KV-COORD-4: only the first member of an attention group is looked up."""

    def _by_group(self, lists: dict[int, list[list[int]]]) -> KVCacheBlocks:
        for number, attention in enumerate(self.attention_groups):
            lists[number] = lists[number][:1] * len(attention.members)
        return super()._by_group(lists)


class OneRound(Restated):
    """KV-COORD-5: every group is asked once."""

    def is_over(self, search: Search, before: int, num_rounds: int) -> bool:
        return True


class FullDropsEveryRound(Restated):
    """KV-COORD-6: full attention is looked up anew in each round, and drops each time."""

    def _ask(self, search: Search, number: int) -> None:
        attention = self.attention_groups[number]
        if not attention.is_full or number not in search.lists:
            super()._ask(search, number)
            return
        lists = attention.look_up(
            search.hashes, search.length, drop=attention.drops_block, alignment=self.alignment
        )
        search.lists[number] = lists
        search.length = len(lists[0]) * attention.block_size


class LooksNoFurther(Restated):
    """KV-COORD-7: the block to drop is sought within the current length."""

    def within(self, search: Search, attention: AttentionGroup, *, drop: bool) -> int:
        return search.length


class LooksBeyondTheLimit(Restated):
    """KV-COORD-7: the block to drop is sought beyond L."""

    def within(self, search: Search, attention: AttentionGroup, *, drop: bool) -> int:
        return search.length + (attention.block_size if drop else 0)


class DropsEveryRound(Restated):
    """KV-COORD-7: an eagle group is never marked verified."""

    def mark(self, search: Search, number: int, *, unverified: bool, shortens: bool) -> None:
        if not unverified and shortens:
            search.verified.clear()


class DroppingClears(Restated):
    """KV-COORD-7: a look-up with a drop that shortens the length clears the other marks."""

    def mark(self, search: Search, number: int, *, unverified: bool, shortens: bool) -> None:
        if shortens:
            search.verified.clear()
        if unverified:
            search.verified.add(number)


class MarksAreNeverCleared(Restated):
    """KV-COORD-8: once verified, always verified."""

    def mark(self, search: Search, number: int, *, unverified: bool, shortens: bool) -> None:
        if unverified:
            search.verified.add(number)


class ClearsOnlyItsOwnMark(Restated):
    """KV-COORD-8: the other groups stay marked when one shortens the length."""

    def mark(self, search: Search, number: int, *, unverified: bool, shortens: bool) -> None:
        if unverified:
            search.verified.add(number)
        elif shortens:
            search.verified.discard(number)


class MambaLooksFurther(Restated):
    """KV-COORD-8: an unverified eagle Mamba group looks one block further, as others do."""

    def within(self, search: Search, attention: AttentionGroup, *, drop: bool) -> int:
        return super().within(search, attention, drop=drop or self._is_new(search, attention))

    def _is_new(self, search: Search, attention: AttentionGroup) -> bool:
        number = self.attention_groups.index(attention)
        return attention.is_mamba and attention.drops_block and number not in search.verified


class MambaClearsAtFirst(Restated):
    """KV-COORD-8: the unverified look-up of an eagle Mamba group clears when it shortens."""

    def mark(self, search: Search, number: int, *, unverified: bool, shortens: bool) -> None:
        if shortens and self.attention_groups[number].is_mamba:
            search.verified.clear()
        super().mark(search, number, unverified=unverified, shortens=shortens)


class MambaNeverClears(Restated):
    """KV-COORD-8: an eagle Mamba group clears nothing, in later rounds neither."""

    def mark(self, search: Search, number: int, *, unverified: bool, shortens: bool) -> None:
        attention = self.attention_groups[number]
        if not (attention.is_mamba and attention.drops_block):
            super().mark(search, number, unverified=unverified, shortens=shortens)


class OwnHitsDropNothing(Restated):
    """KV-COORD-9: per group, eagle groups keep their last block."""

    def own_drop(self, attention: AttentionGroup) -> bool:
        return False


class OwnHitsLookFurther(Restated):
    """KV-COORD-9: per group, eagle groups look one block further."""

    def own_limit(self, attention: AttentionGroup, limit: int) -> int:
        return limit + (attention.block_size if attention.drops_block else 0)


class OwnHitsOwnAlignment(Restated):
    """KV-COORD-9: per group, hits end at any block of the group."""

    def own_alignment(self, attention: AttentionGroup) -> int:
        return attention.block_size


class OneRoundForAnyTwo(Restated):
    """KV-COORD-10: two attention groups get one round, whichever they are."""

    def is_over(self, search: Search, before: int, num_rounds: int) -> bool:
        return search.length >= before or len(self.attention_groups) == 2


class OneRoundBehindFullAttention(Restated):
    """KV-COORD-10: one round if the first is full, however many groups follow."""

    def is_over(self, search: Search, before: int, num_rounds: int) -> bool:
        return search.length >= before or self.attention_groups[0].is_full


class TwoRoundsAtMost(Restated):
    """KV-COORD-10: stops after the second round although it shortened the length."""

    def is_over(self, search: Search, before: int, num_rounds: int) -> bool:
        return super().is_over(search, before, num_rounds) or num_rounds == 2


class NoFullListIsCut(Restated):
    """KV-COORD-11: full attention keeps the blocks beyond the hit."""

    def cut_groups(self) -> list[int]:
        return []


class OnlyTheFirstFullListIsCut(Restated):
    """KV-COORD-11: the second full-attention spec keeps the blocks beyond the hit."""

    def cut_groups(self) -> list[int]:
        return super().cut_groups()[:1]


class OnlyTheLastAnswerCounts(Restated):
    """KV-COORD-12: what an earlier look-up found is forgotten."""

    def note(self, search: Search, answer: int) -> None:
        search.longest = answer


TWINS: tuple[Twin, ...] = (
    Twin("KV-COORD-4", EveryGroupAlone, None, BOTH),
    Twin("KV-COORD-4", ConfiguredOrder, None, BOTH),
    Twin("KV-COORD-4", LastMembersOrder, None, BOTH),
    Twin("KV-COORD-4", FirstMemberAnswersForAll, None, BOTH),
    Twin("KV-COORD-5", OneRound, None, BOTH),
    Twin("KV-COORD-6", FullDropsEveryRound, None, BOTH),
    Twin("KV-COORD-7", LooksNoFurther, None, BOTH),
    Twin("KV-COORD-7", LooksBeyondTheLimit, None, BOTH),
    Twin("KV-COORD-7", DropsEveryRound, None, BOTH),
    Twin("KV-COORD-7", DroppingClears, None, BOTH),
    Twin("KV-COORD-8", MarksAreNeverCleared, None, BOTH),
    Twin("KV-COORD-8", ClearsOnlyItsOwnMark, None, BOTH),
    Twin("KV-COORD-8", MambaLooksFurther, None, BOTH),
    Twin("KV-COORD-8", MambaClearsAtFirst, None, BOTH),
    Twin("KV-COORD-8", MambaNeverClears, None, BOTH),
    Twin("KV-COORD-9", OwnHitsDropNothing, None, BOTH),
    Twin("KV-COORD-9", OwnHitsLookFurther, None, BOTH),
    Twin("KV-COORD-9", OwnHitsOwnAlignment, None, BOTH),
    Twin("KV-COORD-10", OneRoundForAnyTwo, None, BOTH),
    Twin("KV-COORD-10", OneRoundBehindFullAttention, None, BOTH),
    Twin("KV-COORD-10", TwoRoundsAtMost, None, BOTH),
    Twin("KV-COORD-11", NoFullListIsCut, None, BOTH),
    Twin("KV-COORD-11", OnlyTheFirstFullListIsCut, None, BOTH),
    Twin("KV-COORD-12", OnlyTheLastAnswerCounts, None, BOTH),
)
