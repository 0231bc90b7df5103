"""Mamba: a block holds the state after its last token, not the tokens (KV-MAMBA-*)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from kvref.block_pool import BlockPool
from kvref.events import EventLog
from kvref.groups.base import Demand, Group, GroupContext, LookUp, replay_boundary
from kvref.hashing import hash_of_block, make_key
from kvref.request import ReferenceRequest
from kvspec.blocks import NULL_BLOCK


class MambaGroup(Group):
    """Modes none and all. `step_keys`: keys registered since the step began (KV-MAMBA-2)."""

    is_mamba = True

    def __init__(self, context: GroupContext, pool: BlockPool, events: EventLog) -> None:
        super().__init__(context, pool, events)
        self.num_speculative_blocks = context.spec.num_speculative_blocks
        self.step_keys: set[bytes] = set()

    def num_skipped_tokens(self, num_computed_tokens: int) -> int:
        """Skip all but the last computed token: only the state after it is read (KV-MAMBA-1)."""
        return max(0, num_computed_tokens - 1)

    def longest_hit(self, asked: LookUp) -> list[list[int]]:
        """Return the rightmost aligned state, null before it, without a drop (KV-MAMBA-3)."""
        for index in reversed(range(asked.max_length_tokens // self.block_size)):
            if (index + 1) * self.block_size % asked.alignment_tokens == 0:
                blocks = self.find_in_all(asked, index)
                if blocks is not None:
                    return [[NULL_BLOCK] * index + [block] for block in blocks]
        return [[] for _ in asked.members]

    def is_worth_caching(self, block_index: int, request: ReferenceRequest) -> bool:
        """Return True, or with retention whether the state is at a boundary (KV-RET-5)."""
        retention = self.context.retention_interval_tokens
        if retention is None:
            return True
        end = (block_index + 1) * self.block_size
        if retention > 0 and (retention <= self.block_size or end % retention == 0):
            return True
        return end in self.kept_ends(request)

    def kept_ends(self, request: ReferenceRequest) -> list[int]:
        """Return the ends of the states that are kept besides those of the interval (KV-RET-7)."""
        ends = self.retained_places(request)
        if not self.context.replays_before_drop:  # KV-POL-20
            ends.append(replay_boundary(request, self.context.alignment_tokens))
        return ends

    def prompt_boundary(self, request: ReferenceRequest) -> int:
        """Return u, where a replay of the prompt continues (KV-INSIDE-11, KV-POL-23)."""
        return self.last_boundary(request.num_prompt_tokens)

    def last_boundary(self, num_tokens: int) -> int:
        """Return the last boundary that a request with these tokens can start from."""
        hash_size = self.context.hash_block_size_tokens
        if self.context.some_group_drops:
            return max(num_tokens // hash_size * hash_size - hash_size, 0)
        last = max(num_tokens - self.context.num_last_tokens, 0)  # KV-HASH-15
        return last // hash_size * hash_size

    def cache_blocks(self, request: ReferenceRequest, num_tokens: int) -> None:
        """Register states, and remember which are new in this step (KV-MAMBA-2)."""
        first = self.num_cached.get(request.request_id, 0)
        super().cache_blocks(request, num_tokens)
        end = self.num_cached.get(request.request_id, 0)
        blocks = self.blocks_of(request.request_id)
        for index in range(first, end):
            block_hash = hash_of_block(request.block_hashes, index, self.hashes_per_block)
            key = make_key(block_hash, self.index)
            if key in self.pool.keys[blocks[index]]:  # not if it was passed over
                self.step_keys.add(key)

    def new_step_starts(self) -> None:
        """Let states registered before be used (KV-MAMBA-2)."""
        self.step_keys = set()

    def keys_of_step(self) -> frozenset[bytes]:
        """Return the keys of states that were registered in this step."""
        return frozenset(self.step_keys)

    def restore_step(self, keys: frozenset[bytes]) -> None:
        self.step_keys = set(keys)

    def is_hit_too_new(self, hits: Sequence[int]) -> bool:
        """Return whether the state to start from was registered in this very step."""
        return len(hits) > 0 and any(key in self.step_keys for key in self.pool.keys[hits[-1]])

    def with_speculative_blocks(self, demand: Demand) -> Demand:
        """Return the demand with room for the states of drafted tokens (KV-MAMBA-4)."""
        extra = self.num_speculative_blocks * self.block_size
        return replace(demand, num_slots_tokens=demand.num_slots_tokens + extra)

    def num_blocks_needed(self, request_id: str, hits: Sequence[int], demand: Demand) -> int:
        """Return more than the pool has, if the hit must wait for the next step (KV-MAMBA-2)."""
        if self.is_hit_too_new(hits):
            return self.pool.num_blocks + 1
        return super().num_blocks_needed(request_id, hits, self.with_speculative_blocks(demand))

    def allocate_new(self, request_id: str, demand: Demand) -> list[int]:
        """Allocate blocks for the slots and for drafted states (KV-MAMBA-4)."""
        return super().allocate_new(request_id, self.with_speculative_blocks(demand))

    def remove_skipped_blocks(self, request_id: str, num_computed_tokens: int) -> None:
        """Count states of drafts, which may be rejected, as not computed (KV-MAMBA-5)."""
        verified = num_computed_tokens
        if self.context.drafts_hold_states:  # KV-POL-21
            verified = max(0, num_computed_tokens - self.num_speculative_blocks)
        super().remove_skipped_blocks(request_id, verified)
