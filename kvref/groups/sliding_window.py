"""Sliding window: a token attends to the last W tokens, itself included (KV-SW-*)."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from kvref.block_pool import BlockPool
from kvref.events import EventLog
from kvref.groups.base import Group, GroupContext, LookUp, cdiv, replay_boundary
from kvref.request import ReferenceRequest
from kvspec.blocks import NULL_BLOCK


class SlidingWindowGroup(Group):
    """Blocks that fell out of the window are released; hits are runs that fill a window."""

    def __init__(self, context: GroupContext, pool: BlockPool, events: EventLog) -> None:
        super().__init__(context, pool, events)
        self.window = context.spec.window_tokens
        self.extra = context.spec.extra_retained_tokens

    def num_skipped_tokens(self, num_computed_tokens: int) -> int:
        """Skip all tokens before the window of the next one (KV-SW-1).

        With 7 computed tokens and a window of 4, token 7 sees 4 … 7, so 4 tokens are skipped.
        """
        return max(0, num_computed_tokens - self.window + 1 - self.extra)  # KV-SW-9

    def num_unread_tokens(self, num_computed_tokens: int) -> int:
        """Count tokens before the window; extra retained ones are not read (KV-SW-9)."""
        return max(0, num_computed_tokens - self.window + 1)

    def max_admission_blocks(self) -> int:
        """Return the blocks of a window and one step, plus one for an unaligned start (KV-SW-7)."""
        tokens = self.window - 1 + self.extra + self.context.max_num_batched_tokens
        return cdiv(min(tokens, self.context.max_model_len_tokens), self.block_size) + 1

    def run_length_blocks(self, drop_last_block: bool) -> int:
        """Count contiguous blocks that fill a window, and one more to drop (KV-SW-2)."""
        return cdiv(self.window - 1, self.block_size) + (1 if drop_last_block else 0)

    def longest_hit(self, asked: LookUp) -> list[list[int]]:
        """Return the rightmost run that fills a window, null before it (KV-SW-2, KV-SW-3).

        Example: window 8, block size 4, blocks 2, 3 and 5 cached: the run 2 … 3 fills a window,
        block 5 alone does not; the result is [null, null, block 2, block 3].
        """
        limit = asked.max_length_tokens // self.block_size
        hits = [self.find_in_all(asked, index) for index in range(limit)]
        # Window 1 fills itself, yet a hit is a cached block.
        need = max(self.run_length_blocks(asked.drop_last_block), 1)
        dropped = 1 if asked.drop_last_block else 0

        def is_aligned(num_blocks: int) -> bool:
            return num_blocks * self.block_size % asked.alignment_tokens == 0

        for end in range(limit, need - 1, -1):
            if is_aligned(end - dropped) and all(hit is not None for hit in hits[end - need : end]):
                length = end - dropped
                break
        else:
            length = self._run_from_the_start(hits, dropped, is_aligned)
            end = need = length
        lists: list[list[int]] = []
        for member in range(len(asked.members)):
            blocks = [NULL_BLOCK] * (end - need)
            blocks += [hit[member] for hit in hits[end - need : length] if hit is not None]
            lists.append(blocks)
        return lists

    @staticmethod
    def _run_from_the_start(
        hits: Sequence[list[int] | None], dropped: int, is_aligned: Callable[[int], bool]
    ) -> int:
        """Return the length of a run from block 0, which counts however short it is (KV-SW-4).

        Its right end must be aligned after the drop; it is cut to alignment, then the block is
        dropped, and the rest cut to alignment again (KV-SW-5).
        """
        length = 0
        while length < len(hits) and hits[length] is not None:
            length += 1
        while length > 0 and not is_aligned(length - dropped):
            length -= 1
        while not is_aligned(length):
            length -= 1
        if dropped and length > 0:
            length -= 1
        while not is_aligned(length):
            length -= 1
        return length

    def is_worth_caching(self, block_index: int, request: ReferenceRequest) -> bool:
        """Return whether the block lies in the tail before some boundary a hit may end at
        (KV-RET-*).

        `shift` is 1 with a drop: the run then ends one block beyond the boundary.
        """
        need = self.run_length_blocks(self.drops_eagle_block)
        shift = 1 if self.drops_eagle_block else 0
        retention = self.context.retention_interval_tokens
        segment_tokens = self.context.alignment_tokens if retention is None else retention
        if segment_tokens > 0:  # KV-RET-1, KV-RET-3
            per_segment = segment_tokens // self.block_size
            if need >= per_segment:
                return True
            if block_index >= shift and (block_index - shift) % per_segment >= per_segment - need:
                return True
        if retention is None:
            return False
        for place in self.retained_places(request):  # KV-RET-7
            end = place // self.block_size + shift
            if end - need <= block_index < end:
                return True
        if self.context.replays_before_drop:  # KV-POL-20
            return False
        replay_end = replay_boundary(request, self.context.alignment_tokens) // self.block_size
        return replay_end + shift - need <= block_index < replay_end + shift  # KV-RET-4


class ReplayedWindowGroup(SlidingWindowGroup):
    """A window outside prefix caching: the caller computes it again behind a hit (KV-SW-10)."""

    is_cacheable = False

    def first_read_index(self, request: ReferenceRequest) -> int:
        """Return the entry of the next token; what was before the replay's start is not read."""
        return request.num_computed_tokens // self.block_size
