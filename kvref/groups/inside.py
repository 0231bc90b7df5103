"""Groups whose hits may end inside a block (KV-INSIDE-7 …)."""

from __future__ import annotations

from collections.abc import Sequence

from kvref.block_pool import BlockPool
from kvref.events import EventLog
from kvref.groups.base import Demand, Group, GroupContext, LookUp, cdiv
from kvref.groups.full_attention import FullAttentionGroup
from kvref.hashing import make_key
from kvref.request import ReferenceRequest


class EndsInside(Group):
    """A hit may end inside a block of this group.

    `shared`: of a request that was just given its hits, the entry that they end inside. It is empty
    between two calls.
    """

    hits_end_inside = True

    def __init__(self, context: GroupContext, pool: BlockPool, events: EventLog) -> None:
        super().__init__(context, pool, events)
        self.hash_size = context.hash_block_size_tokens
        self.shared: dict[str, int] = {}

    def find_boundary(self, asked: LookUp, num_tokens: int) -> list[int] | None:
        """Return each member's block with the key of this boundary; None if one has none."""
        number = num_tokens // self.hash_size - 1
        return self.find_hash(asked, asked.hashes[number]) if number < len(asked.hashes) else None

    def ends_of_hits(self, num_tokens: int) -> list[int]:
        """Return boundaries whose key a block may have that a hit ends inside (KV-INSIDE-18)."""
        return [num_tokens]

    def has_boundary(self, block: int, request: ReferenceRequest, num_tokens: int) -> bool:
        """Return whether the block has the key of such a boundary of this request."""
        if num_tokens % self.hash_size:
            return False
        numbers = [end // self.hash_size - 1 for end in self.ends_of_hits(num_tokens)]
        hashes = [request.block_hashes[n] for n in numbers if n < len(request.block_hashes)]
        keys = [make_key(block_hash, self.index) for block_hash in hashes]
        return any(key in self.pool.keys[block] for key in keys)

    def is_hit_inside(self, hits: Sequence[int], demand: Demand) -> bool:
        """Return whether these hits of a new request end inside a block."""
        return len(hits) > 0 and demand.num_local_tokens % self.block_size > 0

    def take_hits(self, request_id: str, hits: Sequence[int], demand: Demand) -> None:
        """Take hits; the block that the hit ends inside counts as not cached (KV-INSIDE-15)."""
        super().take_hits(request_id, hits, demand)
        if self.is_hit_inside(hits, demand):
            entry = demand.num_local_tokens // self.block_size
            self.num_cached[request_id] = entry
            self.shared[request_id] = entry

    def copy_hit(self, request_id: str) -> list[int]:
        """Replace the block that the hit ends inside, if any, by a new block (KV-INSIDE-15)."""
        if request_id not in self.shared:
            return []
        entry = self.shared.pop(request_id)
        blocks = self.block_lists[request_id]
        (fresh,) = self.pool.allocate(1)
        self.pool.ref_counts[fresh] += (
            1  # held by the copy; the source keeps the reference of the hit
        )
        self.pending_copies.append((blocks[entry], fresh))
        blocks[entry] = fresh
        if self.context.is_zeroed:  # KV-GRP-10
            self.new_block_ids.append(fresh)
        return [fresh]


class InsideFullGroup(EndsInside, FullAttentionGroup):
    """Full attention with blocks of several hashes."""

    def longest_hit_within(self, asked: LookUp) -> tuple[list[list[int]], int]:
        """Return a run of full blocks and the longest boundary inside the next one (KV-INSIDE-7).

        Example: blocks of 4, hashes of 2, at most 11 tokens; blocks 0 and 1 and the boundary 10 are
        cached: three blocks, 10 tokens.
        """
        found: list[list[int]] = [[] for _ in asked.members]
        length = 0
        while length + self.block_size <= asked.max_length_tokens:
            blocks = self.find_in_all(asked, length // self.block_size)
            if blocks is None:
                break
            for run, block in zip(found, blocks, strict=True):
                run.append(block)
            length += self.block_size
        for inside in reversed(range(self.hash_size, self.block_size, self.hash_size)):
            ends = self.find_boundary(asked, length + inside)
            if length + inside <= asked.max_length_tokens and ends is not None:
                for run, block in zip(found, ends, strict=True):
                    run.append(block)
                length += inside
                break
        if asked.drop_last_block and length > 0:
            length -= self.hash_size
        return [run[: cdiv(length, self.block_size)] for run in found], length

    def ends_of_hits(self, num_tokens: int) -> list[int]:
        """Return all boundaries in the rest of the block, since it may hold more than the hit."""
        end = cdiv(num_tokens, self.block_size) * self.block_size
        return list(range(num_tokens, end + 1, self.hash_size))

    def num_blocks_needed(self, request_id: str, hits: Sequence[int], demand: Demand) -> int:
        """Return one more for a copy (KV-INSIDE-14); its source is already held (KV-INSIDE-17)."""
        needed = super().num_blocks_needed(request_id, hits, demand)
        if not self.is_hit_inside(hits, demand):
            return needed
        if self.pool.written_from.get(hits[-1], demand.num_local_tokens) < demand.num_local_tokens:
            return self.pool.num_blocks + 1
        return needed + 1

    def allocate_new(self, request_id: str, demand: Demand) -> list[int]:
        """Copy first, then allocate and note what this step writes (KV-INSIDE-15, KV-INSIDE-17)."""
        copied = self.copy_hit(request_id)
        taken = super().allocate_new(request_id, demand)
        for block in self.blocks_of(request_id)[demand.num_local_tokens // self.block_size :]:
            self.pool.written_from[block] = demand.num_local_tokens
        for block in copied:
            self.pool.written_from[block] = 0
        return copied + taken

    def new_step_starts(self) -> None:
        """Forget what the previous step was writing."""
        self.pool.written_from.clear()
