"""Broken Mamba groups (KV-MAMBA-*)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from kvref.groups.base import Demand, Group, cdiv
from kvref.groups.mamba import MambaGroup
from kvref.groups.mamba_align import AlignedMambaGroup
from kvref.request import ReferenceRequest
from kvspec.blocks import NULL_BLOCK
from tests.fixed_point.twin import BOTH, RULE_TESTS, Twin


class SkipsTheLastState(MambaGroup):
    """KV-MAMBA-1: s(c) = c, so that the state which is read goes too."""

    def num_skipped_tokens(self, num_computed_tokens: int) -> int:
        return num_computed_tokens


class NeverWaits(MambaGroup):
    """KV-MAMBA-2: a state is used in the step that computes it."""

    def is_hit_too_new(self, hits: Sequence[int]) -> bool:
        return False


class WaitsForever(MambaGroup):
    """KV-MAMBA-2: a new step does not make the states usable."""

    def new_step_starts(self) -> None:
        pass


class AnyHitTooNew(MambaGroup):
    """KV-MAMBA-2: waits for every state of the step, not for its own."""

    def is_hit_too_new(self, hits: Sequence[int]) -> bool:
        return len(hits) > 0 and len(self.step_keys) > 0


class OnlyItsOwnBlockIsNew(MambaGroup):
    """KV-MAMBA-2: remembers blocks, so that a copy registered now does not count."""

    def cache_blocks(self, request: ReferenceRequest, num_tokens: int) -> None:
        before = {key: copies[0] for key, copies in self.pool.cached.items()}
        super().cache_blocks(request, num_tokens)
        self.step_keys -= set(before)


class LeftmostState(MambaGroup):
    """KV-MAMBA-3: the first state, not the last."""

    def longest_hit(
        self,
        hashes: Sequence[bytes],
        max_length_tokens: int,
        *,
        members: Sequence[int],
        drop_last_block: bool,
        alignment_tokens: int,
    ) -> list[list[int]]:
        for length in range(self.block_size, max_length_tokens + 1, self.block_size):
            lists = super().longest_hit(
                hashes,
                length,
                members=members,
                drop_last_block=False,
                alignment_tokens=alignment_tokens,
            )
            if lists[0]:
                return lists
        return [[] for _ in members]


class UnalignedState(MambaGroup):
    """KV-MAMBA-3: any state is a hit, wherever it ends."""

    def longest_hit(
        self,
        hashes: Sequence[bytes],
        max_length_tokens: int,
        *,
        members: Sequence[int],
        drop_last_block: bool,
        alignment_tokens: int,
    ) -> list[list[int]]:
        return super().longest_hit(
            hashes,
            max_length_tokens,
            members=members,
            drop_last_block=False,
            alignment_tokens=self.block_size,
        )


class DropsTheState(MambaGroup):
    """KV-MAMBA-3: an eagle group gives up its state."""

    def longest_hit(
        self,
        hashes: Sequence[bytes],
        max_length_tokens: int,
        *,
        members: Sequence[int],
        drop_last_block: bool,
        alignment_tokens: int,
    ) -> list[list[int]]:
        lists = super().longest_hit(
            hashes,
            max_length_tokens,
            members=members,
            drop_last_block=False,
            alignment_tokens=alignment_tokens,
        )
        return [blocks[:-1] for blocks in lists] if drop_last_block else lists


class NoBlocksForDrafts(MambaGroup):
    """KV-MAMBA-4: drafted states get no blocks."""

    def with_speculative_blocks(self, demand: Demand) -> Demand:
        return demand


class DraftsAsTokens(MambaGroup):
    """KV-MAMBA-4: S tokens more, not S blocks."""

    def with_speculative_blocks(self, demand: Demand) -> Demand:
        return replace(
            demand, num_slots_tokens=demand.num_slots_tokens + self.num_speculative_blocks
        )


class DraftsAreSure(MambaGroup):
    """KV-MAMBA-5: the removal counts from c."""

    def remove_skipped_blocks(self, request_id: str, num_computed_tokens: int) -> None:
        Group.remove_skipped_blocks(self, request_id, num_computed_tokens)


class DraftsCountForHits(MambaGroup):
    """KV-MAMBA-5: hits are skipped from c' too."""

    def take_hits(self, request_id: str, hits: Sequence[int], demand: Demand) -> None:
        sure = max(0, demand.skip_at_tokens - self.num_speculative_blocks)
        super().take_hits(request_id, hits, replace(demand, skip_at_tokens=sure))


class StatesHaveACommonPrefix(MambaGroup):
    """KV-MAMBA-13: answers as full attention does."""

    def num_common_prefix_blocks(self, request_id: str) -> int:
        return sum(1 for block in self.blocks_of(request_id) if self.pool.ref_counts[block] == 1)


class LookaheadCounts(AlignedMambaGroup):
    """KV-MAMBA-6: lookahead tokens lengthen the list."""

    def num_required_blocks(self, demand: Demand) -> int:
        return cdiv(demand.num_slots_tokens, self.block_size) + self.num_speculative_blocks


class NoEntriesForDrafts(AlignedMambaGroup):
    """KV-MAMBA-6: the drafted states are not part of the list."""

    def num_required_blocks(self, demand: Demand) -> int:
        return cdiv(demand.num_main_tokens, self.block_size)


class NeedsTheWholeList(AlignedMambaGroup):
    """KV-MAMBA-7: counts the nulls as blocks."""

    def num_blocks_needed(self, request_id: str, hits: Sequence[int], demand: Demand) -> int:
        if demand.num_external_tokens > 0 and not self.has_entry(request_id):
            return super().num_blocks_needed(request_id, hits, demand)
        held = len(self.blocks_of(request_id))
        missing = max(self.num_required_blocks(demand) - len(hits) - held, 0)
        return missing + self.num_revived(hits)


class AlwaysNeedsTheDrafts(AlignedMambaGroup):
    """KV-MAMBA-7: 1 + S for every allocation, as if drafted states were not moved."""

    def num_blocks_needed(self, request_id: str, hits: Sequence[int], demand: Demand) -> int:
        need = super().num_blocks_needed(request_id, hits, demand)
        return need + (self.num_speculative_blocks if need and request_id in self.allocated else 0)


class FreeHitsCostNothing(AlignedMambaGroup):
    """KV-MAMBA-7: a hit in the free queue is not counted."""

    def num_revived(self, hits: Sequence[int]) -> int:
        return 0


class ExternalAsUsual(AlignedMambaGroup):
    """KV-MAMBA-8: external tokens need what a request without them needs: one too low."""

    def _needed_with_external(self, hits: Sequence[int], demand: Demand) -> int:
        held = len(hits)
        new = max(self.num_required_blocks(demand) - held, 0)
        return (1 + self.num_speculative_blocks if new else 0) + self.num_revived(hits)


class ExternalKeepsSkippedHits(AlignedMambaGroup):
    """KV-MAMBA-8: counts hits that will be skipped, if they are free."""

    def _needed_with_external(self, hits: Sequence[int], demand: Demand) -> int:
        skipped = self.num_skipped_tokens(demand.skip_at_tokens) // self.block_size
        return super()._needed_with_external(hits, demand) + self.num_revived(hits[:skipped])


class RestatedStates(AlignedMambaGroup):
    """The allocation of the reference, cut into what a twin gets wrong; not broken."""

    def allocate_new(self, request_id: str, demand: Demand) -> list[int]:
        required = self.num_required_blocks(demand)
        blocks = self.block_lists.setdefault(request_id, [])
        held, drafted = len(blocks), self.num_speculative_blocks
        if required <= held:
            return self.nothing_to_do(request_id)
        running = required - drafted - 1
        blocks.extend([NULL_BLOCK] * max(self.padded_to(running) - held, 0))
        if request_id in self.allocated:
            for index in self.moved(held, running):
                blocks.append(blocks[index])
                blocks[index] = NULL_BLOCK
        blocks.extend(self.pool.allocate(required - len(blocks)))
        self.allocated.add(request_id)
        return blocks[held:]

    def nothing_to_do(self, request_id: str) -> list[int]:
        """KV-MAMBA-9: not even a mark."""
        return []

    def padded_to(self, running: int) -> int:
        """KV-MAMBA-9."""
        return running

    def moved(self, held: int, running: int) -> Sequence[int]:
        """KV-MAMBA-9."""
        return range(held - self.num_speculative_blocks, min(held, running))


class MovesInDescendingOrder(RestatedStates):
    """KV-MAMBA-9: the last drafted state is moved first."""

    def moved(self, held: int, running: int) -> Sequence[int]:
        return super().moved(held, running)[::-1]


class MovesNothing(RestatedStates):
    """KV-MAMBA-9: drafted states stay, and all blocks are taken anew."""

    def moved(self, held: int, running: int) -> Sequence[int]:
        return ()


class MovesTheRunningOneToo(RestatedStates):
    """KV-MAMBA-9: a drafted state is moved although it stands where the running one belongs."""

    def moved(self, held: int, running: int) -> Sequence[int]:
        return range(held - self.num_speculative_blocks, min(held, running + 1))


class NoPadding(RestatedStates):
    """KV-MAMBA-9: every boundary gets a block."""

    def padded_to(self, running: int) -> int:
        return 0


class MarksWithoutTaking(RestatedStates):
    """KV-MAMBA-9: an allocation that takes nothing counts as one."""

    def nothing_to_do(self, request_id: str) -> list[int]:
        self.allocated.add(request_id)
        return []


class StateGoesTooEarly(AlignedMambaGroup):
    """KV-MAMBA-1: one boundary too early, while the next step still reads it."""

    def remove_skipped_blocks(self, request_id: str, num_computed_tokens: int) -> None:
        super().remove_skipped_blocks(request_id, num_computed_tokens)
        sure = max(0, num_computed_tokens - self.num_speculative_blocks)
        blocks = self.block_lists.get(request_id, [])
        index = cdiv(sure, self.block_size) - 1
        if 0 <= index < len(blocks) - 1 - self.num_speculative_blocks and blocks[index]:
            self.pool.release([blocks[index]])
            blocks[index] = NULL_BLOCK


class LastStateStays(AlignedMambaGroup):
    """KV-MAMBA-11: the removal leaves the last skipped state where it is."""

    def remove_skipped_blocks(self, request_id: str, num_computed_tokens: int) -> None:
        sure = max(0, num_computed_tokens - self.num_speculative_blocks)
        blocks = self.block_lists.get(request_id, [])
        skipped = self.num_skipped_tokens(sure) // self.block_size
        held = [index for index, block in enumerate(blocks[:skipped]) if block != NULL_BLOCK]
        kept = {index: blocks[index] for index in held[-1:]}
        for index in kept:
            blocks[index] = NULL_BLOCK
        super().remove_skipped_blocks(request_id, num_computed_tokens)
        for index, block in kept.items():
            blocks[index] = block


class StopsAtTheFirstNull(AlignedMambaGroup):
    """KV-MAMBA-11: a gap ends the removal; what stands before it is leaked."""

    has_null_gaps = False


class RemembersAfterTheEnd(AlignedMambaGroup):
    """KV-MAMBA-12: a freed request counts as one that has taken blocks."""

    def pop(self, request_id: str) -> list[int]:
        allocated = request_id in self.allocated
        blocks = super().pop(request_id)
        if allocated:
            self.allocated.add(request_id)
        return blocks


TWINS: tuple[Twin, ...] = (
    Twin("KV-MAMBA-1", SkipsTheLastState, MambaGroup, (RULE_TESTS,)),
    Twin("KV-MAMBA-2", NeverWaits, MambaGroup, (RULE_TESTS,)),
    Twin("KV-MAMBA-2", WaitsForever, MambaGroup, (RULE_TESTS,)),
    Twin("KV-MAMBA-2", AnyHitTooNew, MambaGroup, (RULE_TESTS,)),
    Twin("KV-MAMBA-2", OnlyItsOwnBlockIsNew, MambaGroup, (RULE_TESTS,)),
    Twin("KV-MAMBA-3", LeftmostState, MambaGroup, BOTH),
    Twin("KV-MAMBA-3", UnalignedState, MambaGroup, BOTH),
    Twin("KV-MAMBA-3", DropsTheState, MambaGroup, BOTH),
    Twin("KV-MAMBA-4", NoBlocksForDrafts, MambaGroup, (RULE_TESTS,)),
    Twin("KV-MAMBA-4", DraftsAsTokens, MambaGroup, (RULE_TESTS,)),
    Twin("KV-MAMBA-5", DraftsAreSure, MambaGroup, (RULE_TESTS,)),
    Twin("KV-MAMBA-5", DraftsCountForHits, MambaGroup, (RULE_TESTS,)),
    Twin("KV-MAMBA-13", StatesHaveACommonPrefix, MambaGroup, (RULE_TESTS,)),
    Twin("KV-MAMBA-6", LookaheadCounts, AlignedMambaGroup, (RULE_TESTS,)),
    Twin("KV-MAMBA-6", NoEntriesForDrafts, AlignedMambaGroup, (RULE_TESTS,)),
    Twin("KV-MAMBA-7", NeedsTheWholeList, AlignedMambaGroup, (RULE_TESTS,)),
    Twin("KV-MAMBA-7", AlwaysNeedsTheDrafts, AlignedMambaGroup, (RULE_TESTS,)),
    Twin("KV-MAMBA-7", FreeHitsCostNothing, AlignedMambaGroup, (RULE_TESTS,)),
    Twin("KV-MAMBA-8", ExternalAsUsual, AlignedMambaGroup, (RULE_TESTS,)),
    Twin("KV-MAMBA-8", ExternalKeepsSkippedHits, AlignedMambaGroup, (RULE_TESTS,)),
    Twin("KV-MAMBA-9", MovesInDescendingOrder, AlignedMambaGroup, (RULE_TESTS,)),
    Twin("KV-MAMBA-9", MovesNothing, AlignedMambaGroup, (RULE_TESTS,)),
    Twin("KV-MAMBA-9", MovesTheRunningOneToo, AlignedMambaGroup, (RULE_TESTS,)),
    Twin("KV-MAMBA-9", NoPadding, AlignedMambaGroup, (RULE_TESTS,)),
    Twin("KV-MAMBA-9", MarksWithoutTaking, AlignedMambaGroup, (RULE_TESTS,)),
    Twin("KV-MAMBA-1", StateGoesTooEarly, AlignedMambaGroup, (RULE_TESTS,)),
    Twin("KV-MAMBA-11", LastStateStays, AlignedMambaGroup, (RULE_TESTS,)),
    Twin("KV-MAMBA-11", StopsAtTheFirstNull, AlignedMambaGroup, (RULE_TESTS,)),
    Twin("KV-MAMBA-12", RemembersAfterTheEnd, AlignedMambaGroup, (RULE_TESTS,)),
)
