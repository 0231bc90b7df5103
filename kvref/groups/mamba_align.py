"""Mamba in mode align: one running state, and checkpoints at block boundaries (KV-MAMBA-6 …)."""

from __future__ import annotations

from collections.abc import Sequence

from kvref.block_pool import BlockPool
from kvref.events import EventLog
from kvref.groups.base import Demand, GroupContext, cdiv
from kvref.groups.mamba import MambaGroup
from kvref.hashing import make_key
from kvref.request import ReferenceRequest
from kvspec.blocks import NULL_BLOCK
from kvspec.snapshot import MambaState, RequestState


class AlignedMambaGroup(MambaGroup):
    """A group whose lists end with the running state and D drafted states.

    `allocated`: requests that have taken new blocks before.
    """

    has_null_gaps = True  # nulls are padding: a removal continues past them (KV-MAMBA-11)

    def __init__(self, context: GroupContext, pool: BlockPool, events: EventLog) -> None:
        super().__init__(context, pool, events)
        self.allocated: set[str] = set()

    def num_required_blocks(self, demand: Demand) -> int:
        """Return the length of the list after the allocation, without lookahead (KV-MAMBA-6)."""
        return cdiv(demand.num_main_tokens, self.block_size) + self.num_speculative_blocks

    def num_blocks_needed(self, request_id: str, hits: Sequence[int], demand: Demand) -> int:
        """Count the running state and the drafted ones, all that is ever taken at once
        (KV-MAMBA-7).

        A request that took blocks before moves its drafted ones along and takes one.
        """
        if self.is_hit_too_new(hits):
            return self.pool.num_blocks + 1
        if demand.num_external_tokens > 0 and not self.has_entry(request_id):
            return self._needed_with_external(hits, demand)
        held = len(self.blocks_of(request_id))
        new = max(self.num_required_blocks(demand) - len(hits) - held, 0)
        if new > 0:
            new = 1 if request_id in self.allocated else 1 + self.num_speculative_blocks
        return new + self.num_revived(hits)

    def _needed_with_external(self, hits: Sequence[int], demand: Demand) -> int:
        """Count exactly the blocks that hits, external and new ones will take (KV-MAMBA-8)."""
        skipped = self.num_skipped_tokens(demand.skip_at_tokens) // self.block_size
        taken_hits = hits[skipped:]
        length = skipped + len(taken_hits)
        external = max(0, cdiv(demand.num_computed_tokens, self.block_size) - length)
        length += external
        required = self.num_required_blocks(demand)
        new = 0
        if required > length:
            new = required - max(length, required - self.num_speculative_blocks - 1)
        return external + new + self.num_revived(taken_hits)

    def allocate_new(self, request_id: str, demand: Demand) -> list[int]:
        """Pad with null, move drafted states along, take what is missing (KV-MAMBA-9).

        Example, D = 1, the list [7, 8] grows to 4: running state at index 2, drafted at 3. Block 8
        moves to index 2 and one new block is taken: [7, null, 8, 9].
        """
        required = self.num_required_blocks(demand)
        return self.lengthen(request_id, required, required - self.num_speculative_blocks - 1)

    def lengthen(self, request_id: str, required: int, first_kept: int) -> list[int]:
        """Lengthen the list to `required`, null before `first_kept`; return the new blocks."""
        held = len(self.blocks_of(request_id))
        if required <= held:
            return []
        blocks = self.block_lists.setdefault(request_id, [])
        while len(blocks) < first_kept:
            blocks.append(NULL_BLOCK)
        if request_id in self.allocated:
            for index in range(held - self.num_speculative_blocks, min(held, first_kept)):
                blocks.append(blocks[index])
                blocks[index] = NULL_BLOCK
        blocks.extend(self.pool.allocate(required - len(blocks)))
        self.allocated.add(request_id)
        return blocks[held:]

    def cache_blocks(self, request: ReferenceRequest, num_tokens: int) -> None:
        """Register states; by choice a lost one at the checkpoint again (KV-POL-23)."""
        super().cache_blocks(request, num_tokens)
        if not self.checkpoint_returns(request, num_tokens):
            return
        blocks = self.blocks_of(request.request_id)
        number = num_tokens // self.block_size
        if num_tokens % self.block_size or not 0 < number <= len(blocks):
            return
        block = blocks[number - 1]
        if self.pool.keys[block] and self.pool.primary_num_tokens[block] == num_tokens:
            return
        if self.cache_partial_block(request, num_tokens):
            hash_size = self.context.hash_block_size_tokens
            block_hash = request.block_hashes[num_tokens // hash_size - 1]
            self.step_keys.add(make_key(block_hash, self.index))

    def checkpoint_returns(self, request: ReferenceRequest, num_tokens: int) -> bool:
        """Return whether a replay would start there, so that a lost state regains its key."""
        return self.context.checkpoints_return and num_tokens == self.prompt_boundary(request)

    def mamba_state(self, request_id: str) -> MambaState | None:
        """Return whether the request has taken new blocks before."""
        return MambaState(request_id in self.allocated)

    def restore_request(self, request_id: str, state: RequestState) -> None:
        """Restore the request with its mark."""
        super().restore_request(request_id, state)
        mamba = state.mamba[self.index] if state.mamba else None
        if mamba is not None and mamba.has_allocated:
            self.allocated.add(request_id)

    def pop(self, request_id: str) -> list[int]:
        """Forget the mark with the request (KV-MAMBA-12)."""
        self.allocated.discard(request_id)
        return super().pop(request_id)
