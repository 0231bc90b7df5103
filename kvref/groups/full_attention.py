"""Full attention: every token attends to all before it (KV-FULL-*)."""

from __future__ import annotations

from kvref.block_pool import BlockPool
from kvref.events import EventLog
from kvref.groups.base import Group, GroupContext, LookUp, cdiv
from kvref.request import ReferenceRequest
from kvspec.blocks import NULL_BLOCK


class FullAttentionGroup(Group):
    """Blocks are kept until the request ends; hits are runs from the first block."""

    is_full = True

    def longest_hit(self, asked: LookUp) -> list[list[int]]:
        """Return the longest run of cached blocks from block 0 (KV-FULL-2).

        Example: block size 4, alignment 8, at most 19 tokens, blocks 0 … 2 cached: 3 blocks are
        found, and cut to 2, since 12 is no multiple of 8 (KV-FULL-4).
        """
        num_blocks = 0
        found: list[list[int]] = [[] for _ in asked.members]
        while num_blocks < asked.max_length_tokens // self.block_size:
            blocks = self.find_in_all(asked, num_blocks)
            if blocks is None:
                break
            for run, block in zip(found, blocks, strict=True):
                run.append(block)
            num_blocks += 1
        if asked.drop_last_block and num_blocks > 0:  # KV-FULL-3
            num_blocks -= 1
        while num_blocks * self.block_size % asked.alignment_tokens:  # KV-FULL-4
            num_blocks -= 1
        return [run[:num_blocks] for run in found]

    def cache_blocks(self, request: ReferenceRequest, num_tokens: int) -> None:
        """Register full blocks; by choice also where the prompt ends inside one (KV-POL-17)."""
        super().cache_blocks(request, num_tokens)
        hash_size = self.block_size // self.hashes_per_block
        if not self.context.has_partial_tails or self.hashes_per_block == 1:
            return
        limit = request.num_prompt_tokens - (0 if self.drops_eagle_block else 1)
        tail = min(limit // hash_size, len(request.block_hashes)) * hash_size
        if tail == 0 or tail > num_tokens or tail % self.block_size == 0:
            return
        if tail // self.block_size < len(self.blocks_of(request.request_id)):
            self.cache_partial_block(request, tail)

    def num_common_prefix_blocks(self, request_id: str) -> int:
        """Count leading blocks referenced once by every request of the group (KV-FULL-7)."""
        if not self.context.counts_common_prefix:  # KV-POL-15
            return 0
        num_requests = sum(1 for blocks in self.block_lists.values() if blocks)
        count = 0
        for block in self.blocks_of(request_id):
            if block == NULL_BLOCK or self.pool.ref_counts[block] != num_requests:
                break
            count += 1
        return count


class RSWAGroup(FullAttentionGroup):
    """Keeps the prompt, and a window after it (KV-RSWA-*)."""

    def __init__(self, context: GroupContext, pool: BlockPool, events: EventLog) -> None:
        super().__init__(context, pool, events)
        self.window = context.spec.rswa_window

    def first_read_index(self, request: ReferenceRequest) -> int:
        """Return the entry of the window's first token after the prompt (KV-REQ-9)."""
        start = request.num_computed_tokens - self.window
        return max(request.num_prompt_tokens, start) // self.block_size

    def remove_gap(self, request_id: str, num_computed_tokens: int, num_prompt_tokens: int) -> None:
        """Release blocks wholly between the prompt and the window, last first (KV-RSWA-1).

        Example: block size 4, window 5, a prompt of 6 tokens, 18 computed: block 2, with tokens 8 …
        11, is released; block 1 has the prompt's end, block 3 has token 13, the first that is kept.
        """
        first = cdiv(num_prompt_tokens, self.block_size)
        end = max(num_prompt_tokens, num_computed_tokens - self.window) // self.block_size
        self.remove_blocks(request_id, first, end)
