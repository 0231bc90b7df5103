"""Chunked local attention: a token attends to its own chunk only (KV-CHUNK-*)."""

from __future__ import annotations

from dataclasses import replace

from kvref.block_pool import BlockPool
from kvref.events import EventLog
from kvref.groups.base import Group, GroupContext, LookUp, cdiv
from kvspec.blocks import NULL_BLOCK


class ChunkedLocalGroup(Group):
    """Blocks of earlier chunks are released; hits lie in the current chunk."""

    def __init__(self, context: GroupContext, pool: BlockPool, events: EventLog) -> None:
        super().__init__(context, pool, events)
        self.chunk = context.spec.chunk_tokens

    def num_skipped_tokens(self, num_computed_tokens: int) -> int:
        """Skip all earlier chunks (KV-CHUNK-1): 13 computed tokens and a chunk of 8 skip 8."""
        return num_computed_tokens // self.chunk * self.chunk

    def max_admission_blocks(self) -> int:
        """Return the blocks of a chunk and one step (KV-CHUNK-5)."""
        tokens = self.chunk + self.context.max_num_batched_tokens
        return cdiv(min(tokens, self.context.max_model_len_tokens), self.block_size)

    def longest_hit(self, asked: LookUp) -> list[list[int]]:
        """Return null for earlier chunks, then consecutive hits (KV-CHUNK-2, KV-CHUNK-7).

        Example: chunk 8, block size 4, at most 15 tokens: blocks 0 and 1 are null, block 2 is
        looked up.
        """
        start = self.num_skipped_tokens(asked.max_length_tokens)
        first = start // self.block_size
        found: list[list[int]] = [[] for _ in asked.members]
        for index in range(first, asked.max_length_tokens // self.block_size):
            blocks = self.find_in_all(asked, index)
            if blocks is None:
                break
            for run, block in zip(found, blocks, strict=True):
                run.append(block)
        num_null_tokens = first * self.block_size
        if not found[0] and num_null_tokens < start:  # the chunk begins inside block `first`
            return self.longest_hit(replace(asked, max_length_tokens=num_null_tokens))
        if not found[0] and not self.context.null_prefix_is_hit:
            return found  # by policy, nulls alone do not count as a hit (KV-POL-4)
        return [[NULL_BLOCK] * first + run for run in found]
