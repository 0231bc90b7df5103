"""Broken windows and chunks: what they hit, skip and hold (KV-SW-*, KV-CHUNK-*, KV-CROSS-*)."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from kvref.groups.base import Demand, Group, cdiv
from kvref.groups.chunked_local import ChunkedLocalGroup
from kvref.groups.cross_attention import CrossAttentionGroup, EncoderOnlyGroup
from kvref.groups.full_attention import FullAttentionGroup
from kvref.groups.sliding_window import SlidingWindowGroup
from kvspec.blocks import NULL_BLOCK
from tests.fixed_point.twin import BOTH, ENUMERATION, RULE_TESTS, Twin

Hits = Sequence["list[int] | None"]


class RestatedWindow(SlidingWindowGroup):
    """The look-up of the reference, cut into the decisions that a twin gets wrong; not broken."""

    def longest_hit(
        self,
        hashes: Sequence[bytes],
        max_length_tokens: int,
        *,
        members: Sequence[int],
        drop_last_block: bool,
        alignment_tokens: int,
    ) -> list[list[int]]:
        limit = max_length_tokens // self.block_size
        hits = [self.find_in_all(hashes, index, members) for index in range(limit)]
        dropped = 1 if drop_last_block else 0
        run = self.run_for_a_hit(dropped)
        self.aligned_blocks = alignment_tokens // self.block_size
        for end in self.ends(run, limit):
            if self.may_end(end, dropped) and None not in hits[end - run : end]:
                left = self.left_of_the_run(hits[: end - run], len(members))
                found = [hit for hit in hits[end - run : end - dropped] if hit is not None]
                return [
                    [*before, *(hit[member] for hit in found)] for member, before in enumerate(left)
                ]
        length = self.from_the_start(hits, dropped)
        found = [hit for hit in hits[:length] if hit is not None]
        return [[hit[member] for hit in found] for member in range(len(members))]

    def is_aligned(self, num_blocks: int) -> bool:
        """Whether hits may end behind so many blocks."""
        return num_blocks % self.aligned_blocks == 0

    def run_for_a_hit(self, dropped: int) -> int:
        """KV-SW-2."""
        return max(self.run_length_blocks(dropped > 0), 1)

    def ends(self, run: int, limit: int) -> Iterable[int]:
        """KV-SW-2: where a run may end, the best first."""
        return range(limit, run - 1, -1)

    def may_end(self, end: int, dropped: int) -> bool:
        """KV-SW-2."""
        return self.is_aligned(end - dropped)

    def left_of_the_run(self, hits: Hits, num_members: int) -> list[list[int]]:
        """KV-SW-3."""
        return [[NULL_BLOCK] * len(hits) for _ in range(num_members)]

    def from_the_start(self, hits: Hits, dropped: int) -> int:
        """KV-SW-4, KV-SW-5."""
        length = 0
        while length < len(hits) and hits[length] is not None:
            length += 1
        while length > 0 and not self.may_end(length, dropped):
            length -= 1
        length = self.first_cut(length)
        return self.second_cut(max(length - self.lost_from_the_start(dropped), 0))

    def first_cut(self, length: int) -> int:
        """KV-SW-4."""
        return length // self.aligned_blocks * self.aligned_blocks

    def lost_from_the_start(self, dropped: int) -> int:
        """KV-SW-5."""
        return dropped

    def second_cut(self, length: int) -> int:
        """KV-SW-5."""
        return length // self.aligned_blocks * self.aligned_blocks


class SkipsOneTokenMore(SlidingWindowGroup):
    """KV-SW-1: the token itself is not counted in its window."""

    def num_skipped_tokens(self, num_computed_tokens: int) -> int:
        return max(0, num_computed_tokens - self.window + 2)


class RunOneTooShort(RestatedWindow):
    """KV-SW-2: one block less than the window needs is a hit."""

    def run_for_a_hit(self, dropped: int) -> int:
        return max(super().run_for_a_hit(dropped) - 1, 1 + dropped)


class RunForWTokens(RestatedWindow):
    """KV-SW-2: cdiv(W, B) blocks, as if the token itself lay in the hit."""

    def run_for_a_hit(self, dropped: int) -> int:
        return cdiv(self.window, self.block_size) + dropped


class NoBlockMoreToDrop(RestatedWindow):
    """KV-SW-2: with a drop the run is as long as without."""

    def run_for_a_hit(self, dropped: int) -> int:
        return max(self.run_length_blocks(False), dropped, 1)


class LeftmostRun(RestatedWindow):
    """KV-SW-2: the first run that is long enough, not the last."""

    def ends(self, run: int, limit: int) -> Iterable[int]:
        return range(run, limit + 1)


class AlignedBeforeTheDrop(RestatedWindow):
    """KV-SW-2: the run's own end is aligned, not what is left after the drop."""

    def may_end(self, end: int, dropped: int) -> bool:
        return self.is_aligned(end)


class RunEndsAnywhere(RestatedWindow):
    """KV-SW-2: alignment is forgotten."""

    def may_end(self, end: int, dropped: int) -> bool:
        return True


class KeepsWhatIsLeftOfTheRun(RestatedWindow):
    """KV-SW-3: cached blocks to the left of the run are answered too."""

    def left_of_the_run(self, hits: Hits, num_members: int) -> list[list[int]]:
        return [
            [NULL_BLOCK if hit is None else hit[member] for hit in hits]
            for member in range(num_members)
        ]


class NothingLeftOfTheRun(RestatedWindow):
    """KV-SW-3: the list begins with the run."""

    def left_of_the_run(self, hits: Hits, num_members: int) -> list[list[int]]:
        return [[] for _ in range(num_members)]


class NoRunFromTheStart(RestatedWindow):
    """KV-SW-4: a short beginning is no hit."""

    def from_the_start(self, hits: Hits, dropped: int) -> int:
        return 0


class RunFromTheStartIsNotCut(RestatedWindow):
    """KV-SW-4: a short beginning ends at any block, if nothing is dropped."""

    def may_end(self, end: int, dropped: int) -> bool:
        return super().may_end(end, dropped) or end < self.run_for_a_hit(dropped)

    def first_cut(self, length: int) -> int:
        return length

    def second_cut(self, length: int) -> int:
        return length


class GapsFromTheStart(RestatedWindow):
    """KV-SW-4: blocks that are missing from the beginning are passed over."""

    def from_the_start(self, hits: Hits, dropped: int) -> int:
        return super().from_the_start([hit for hit in hits if hit is not None], dropped)


class NothingDroppedFromTheStart(RestatedWindow):
    """KV-SW-5: a short beginning keeps its last block."""

    def lost_from_the_start(self, dropped: int) -> int:
        return 0


class NotCutAgain(RestatedWindow):
    """KV-SW-5: what is left after the drop ends at any block."""

    def second_cut(self, length: int) -> int:
        return length


class CutOnlyAfterTheDrop(RestatedWindow):
    """KV-SW-4, KV-SW-5: the end before the drop may lie anywhere."""

    def first_cut(self, length: int) -> int:
        return length


class WindowOfOneIsCached(SlidingWindowGroup):
    """KV-SW-6: at least one block before a boundary is worth caching."""

    def run_length_blocks(self, drop_last_block: bool) -> int:
        return max(super().run_length_blocks(drop_last_block), 1)


class CapWithoutTheExtraBlock(SlidingWindowGroup):
    """KV-SW-7: as if windows started at block boundaries."""

    def max_admission_blocks(self) -> int:
        return super().max_admission_blocks() - 1


class WindowHasACommonPrefix(SlidingWindowGroup):
    """KV-SW-8: counts references as full attention does."""

    def num_common_prefix_blocks(self, request_id: str) -> int:
        return sum(1 for block in self.blocks_of(request_id) if self.pool.ref_counts[block] == 1)


class SkipsTheChunkItself(ChunkedLocalGroup):
    """KV-CHUNK-1: the last chunk goes with its last token, not with the next one's first."""

    def num_skipped_tokens(self, num_computed_tokens: int) -> int:
        return (num_computed_tokens + 1) // self.chunk * self.chunk


class EarlierChunksMustBeCached(ChunkedLocalGroup):
    """KV-CHUNK-2: hits start at block 0, as in full attention."""

    def longest_hit(
        self,
        hashes: Sequence[bytes],
        max_length_tokens: int,
        *,
        members: Sequence[int],
        drop_last_block: bool,
        alignment_tokens: int,
    ) -> list[list[int]]:
        first = max_length_tokens // self.chunk * self.chunk // self.block_size
        before = [self.find_in_all(hashes, index, members) for index in range(first)]
        if None in before:
            return [[] for _ in members]
        return super().longest_hit(
            hashes,
            max_length_tokens,
            members=members,
            drop_last_block=drop_last_block,
            alignment_tokens=alignment_tokens,
        )


class ChunkOfTheLastToken(ChunkedLocalGroup):
    """KV-CHUNK-2: the chunk of token L - 1, not of token L."""

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
            max(max_length_tokens - 1, 0),
            members=members,
            drop_last_block=drop_last_block,
            alignment_tokens=alignment_tokens,
        )
        last = max_length_tokens // self.block_size - 1
        if max_length_tokens % self.block_size == 0 and len(lists[0]) == last:
            found = self.find_in_all(hashes, last, members)
            if found is not None:
                return [[*blocks, block] for blocks, block in zip(lists, found, strict=True)]
        return lists


class ChunksWithABlockMore(ChunkedLocalGroup):
    """KV-CHUNK-5: counts one block more, as windows do."""

    def max_admission_blocks(self) -> int:
        return super().max_admission_blocks() + 1


class ChunksHaveACommonPrefix(ChunkedLocalGroup):
    """KV-CHUNK-6: answers as full attention does."""

    def num_common_prefix_blocks(self, request_id: str) -> int:
        return sum(1 for block in self.blocks_of(request_id) if self.pool.ref_counts[block] == 1)


class EncoderAgainEachTime(CrossAttentionGroup):
    """KV-CROSS-1: what is held already is not counted."""

    def num_blocks_needed(self, request_id: str, hits: Sequence[int], demand: Demand) -> int:
        return cdiv(self.num_tokens_held(demand), self.block_size)


class EncoderNeedsTheTextToo(CrossAttentionGroup):
    """KV-CROSS-1: counts the tokens of the request, as other groups do."""

    def num_blocks_needed(self, request_id: str, hits: Sequence[int], demand: Demand) -> int:
        return Group.num_blocks_needed(self, request_id, hits, demand)


class EncoderHasAnEntry(CrossAttentionGroup):
    """KV-CROSS-2: external tokens make a count."""

    def take_hits(self, request_id: str, hits: Sequence[int], demand: Demand) -> None:
        self.num_cached[request_id] = 0


class EncoderTakesExternalBlocks(CrossAttentionGroup):
    """KV-CROSS-2: external tokens get blocks."""

    def allocate_external(self, request_id: str, demand: Demand) -> None:
        Group.allocate_external(self, request_id, demand)


class EncoderCoversTheText(CrossAttentionGroup):
    """KV-CROSS-2: its slots limit the computed tokens of the request."""

    covers_sequence = True


class EncoderOnlyKeepsBlocks(EncoderOnlyGroup):
    """KV-CROSS-5: is managed as cross attention."""

    def num_tokens_held(self, demand: Demand) -> int:
        return demand.num_encoder_tokens


class FullMaskedByAlignment(FullAttentionGroup):
    """KV-FULL-6: keeps only blocks that end at a boundary of hits."""

    def is_worth_caching(self, block_index: int, request: object) -> bool:
        return (block_index + 1) * self.block_size % self.context.alignment_tokens == 0


TWINS: tuple[Twin, ...] = (
    Twin("KV-SW-1", SkipsOneTokenMore, SlidingWindowGroup, (RULE_TESTS,)),
    Twin("KV-SW-2", RunOneTooShort, SlidingWindowGroup, BOTH),
    Twin("KV-SW-2", RunForWTokens, SlidingWindowGroup, BOTH),
    Twin("KV-SW-2", NoBlockMoreToDrop, SlidingWindowGroup, BOTH),
    Twin("KV-SW-2", LeftmostRun, SlidingWindowGroup, BOTH),
    Twin("KV-SW-2", AlignedBeforeTheDrop, SlidingWindowGroup, BOTH),
    Twin("KV-SW-2", RunEndsAnywhere, SlidingWindowGroup, BOTH),
    Twin("KV-SW-3", KeepsWhatIsLeftOfTheRun, SlidingWindowGroup, BOTH),
    Twin("KV-SW-3", NothingLeftOfTheRun, SlidingWindowGroup, BOTH),
    Twin("KV-SW-4", NoRunFromTheStart, SlidingWindowGroup, BOTH),
    Twin("KV-SW-4", RunFromTheStartIsNotCut, SlidingWindowGroup, BOTH),
    Twin("KV-SW-4", GapsFromTheStart, SlidingWindowGroup, BOTH),
    Twin("KV-SW-5", NothingDroppedFromTheStart, SlidingWindowGroup, BOTH),
    Twin("KV-SW-5", NotCutAgain, SlidingWindowGroup, BOTH),
    Twin("KV-SW-5", CutOnlyAfterTheDrop, SlidingWindowGroup, BOTH),
    Twin("KV-SW-6", WindowOfOneIsCached, SlidingWindowGroup, BOTH),
    Twin("KV-SW-7", CapWithoutTheExtraBlock, SlidingWindowGroup, (RULE_TESTS,)),
    Twin("KV-SW-8", WindowHasACommonPrefix, SlidingWindowGroup, (RULE_TESTS,)),
    Twin("KV-CHUNK-1", SkipsTheChunkItself, ChunkedLocalGroup, BOTH),
    Twin("KV-CHUNK-2", EarlierChunksMustBeCached, ChunkedLocalGroup, BOTH),
    Twin("KV-CHUNK-2", ChunkOfTheLastToken, ChunkedLocalGroup, BOTH),
    Twin("KV-CHUNK-5", ChunksWithABlockMore, ChunkedLocalGroup, (RULE_TESTS,)),
    Twin("KV-CHUNK-6", ChunksHaveACommonPrefix, ChunkedLocalGroup, (RULE_TESTS,)),
    Twin("KV-CROSS-1", EncoderAgainEachTime, CrossAttentionGroup, (RULE_TESTS,)),
    Twin("KV-CROSS-1", EncoderNeedsTheTextToo, CrossAttentionGroup, (RULE_TESTS,)),
    Twin("KV-CROSS-2", EncoderHasAnEntry, CrossAttentionGroup, (RULE_TESTS,)),
    Twin("KV-CROSS-2", EncoderTakesExternalBlocks, CrossAttentionGroup, (RULE_TESTS,)),
    Twin("KV-CROSS-2", EncoderCoversTheText, CrossAttentionGroup, (RULE_TESTS,)),
    Twin("KV-CROSS-5", EncoderOnlyKeepsBlocks, EncoderOnlyGroup, (RULE_TESTS,)),
    Twin("KV-FULL-6", FullMaskedByAlignment, FullAttentionGroup, (ENUMERATION,)),
)
