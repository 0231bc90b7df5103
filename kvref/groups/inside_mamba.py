"""States at boundaries inside blocks: found, registered, copied (KV-INSIDE-8, KV-INSIDE-11 …)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from kvref.block_pool import BlockPool
from kvref.events import EventLog
from kvref.groups.base import Demand, GroupContext, LookUp, cdiv
from kvref.groups.inside import EndsInside
from kvref.groups.mamba import MambaGroup
from kvref.groups.mamba_align import AlignedMambaGroup
from kvref.hashing import make_key
from kvref.request import ReferenceRequest
from kvspec.blocks import NULL_BLOCK
from kvspec.domains import exact


@dataclass(frozen=True)
class PlannedChunk:
    """A chunk up to token `end`; the state that it leaves inside, after `position` tokens.

    `num_cached`: how many entries had been handed over before any was passed over.
    """

    end: int
    position: int
    entry: int
    num_cached: int


NO_CHUNK = PlannedChunk(-1, 0, 0, 0)


class InsideMambaGroup(EndsInside, MambaGroup):
    """Every mode. States that modes none and all register end at block ends."""

    def longest_hit_within(self, asked: LookUp) -> tuple[list[list[int]], int]:
        """Return the rightmost boundary with a state, null before it, no drop (KV-INSIDE-8)."""
        last = asked.max_length_tokens // self.hash_size * self.hash_size
        for length in range(last, 0, -self.hash_size):
            blocks = self.find_boundary(asked, length)
            if blocks is not None:
                nulls = [NULL_BLOCK] * ((length - 1) // self.block_size)
                return [[*nulls, block] for block in blocks], length
        return [[] for _ in asked.members], 0

    def kept_ends(self, request: ReferenceRequest) -> list[int]:
        """Return the last whole block up to each place, and u if it ends a block (KV-INSIDE-11)."""
        ends = super().kept_ends(request)
        whole = [end // self.block_size * self.block_size for end in ends]
        return [*whole, self.prompt_boundary(request)]


class InsideAlignedGroup(InsideMambaGroup, AlignedMambaGroup):
    """Mode align.

    `planned`: the chunk of the request that blocks were just allocated for. It is empty between two
    calls.
    """

    def __init__(self, context: GroupContext, pool: BlockPool, events: EventLog) -> None:
        super().__init__(context, pool, events)
        self.planned: dict[str, PlannedChunk] = {}

    # Needs and allocation.

    def state_inside(self, request_id: str, num_hits: int, demand: Demand) -> tuple[int, int]:
        """Return the tokens of the state that the chunk leaves inside, and its entry; 0 if none."""
        start, end = demand.num_computed_tokens, demand.num_main_tokens
        position, entry = self.last_boundary(end), cdiv(end, self.block_size) - 2
        step, none = self.context.spec.checkpoint_step_tokens, (0, 0)
        if step == 0 or demand.num_external_tokens > 0 or start % self.hash_size:
            return none
        if position < start + self.hash_size or (position - start) % step:
            return none
        if entry <= (start - 1) // self.block_size:
            return none
        if self.context.retention_interval_tokens == 0 and end < demand.prefill_end_tokens:
            return none
        length = len(self.blocks_of(request_id)) + num_hits
        num_drafted = self.num_speculative_blocks if request_id in self.allocated else 0
        return (position, entry) if entry >= length - num_drafted else none

    def own_block_with_key(self, request_id: str, demand: Demand) -> int | None:
        """Return the block that a running request continues in, if it has a key (KV-INSIDE-16)."""
        entry, inside = divmod(demand.num_local_tokens, self.block_size)
        blocks = self.blocks_of(request_id)
        if inside == 0 or entry >= len(blocks) or not self.pool.keys[blocks[entry]]:
            return None
        return blocks[entry]

    def num_blocks_needed(self, request_id: str, hits: Sequence[int], demand: Demand) -> int:
        """Count blocks, with those of a copy and of a state inside the chunk (KV-INSIDE-14)."""
        if self.is_hit_too_new(hits):
            return self.pool.num_blocks + 1
        if demand.num_external_tokens > 0 and not self.has_entry(request_id):
            return self._needed_with_external(hits, demand)
        length = len(self.blocks_of(request_id)) + len(hits)
        most = 1
        if self.state_inside(request_id, len(hits), demand)[0] > 0:
            most += 1
        if request_id not in self.allocated:
            most += self.num_speculative_blocks
        needed = min(max(self.num_required_blocks(demand) - length, 0), most)
        if self.is_hit_inside(hits, demand):
            needed += 1
        if self.own_block_with_key(request_id, demand) is not None:
            needed += 1
        return needed + self.num_revived(hits)

    def allocate_new(self, request_id: str, demand: Demand) -> list[int]:
        """Allocate as KV-MAMBA-9 says, copies first, with a block for the state inside
        (KV-INSIDE-12).

        Example: the list [7] grows to 4 entries, with a state inside: [7, null, 8, 9], where block
        8 holds that state.
        """
        required = self.num_required_blocks(demand)
        position, entry = self.state_inside(request_id, 0, demand)
        copied = self.copy_hit(request_id)
        self.move_keys(request_id, demand)
        running_index = required - self.num_speculative_blocks - 1
        added = self.lengthen(request_id, required, entry if position else running_index)
        if copied:
            self.allocated.add(request_id)
        count = self.num_cached.get(request_id, 0)
        self.planned[request_id] = PlannedChunk(demand.num_main_tokens, position, entry, count)
        self.pass_over(request_id, demand, position, entry)
        return copied + added

    def move_keys(self, request_id: str, demand: Demand) -> None:
        """Move the keys of the block that the request writes to a copy of it (KV-INSIDE-16)."""
        own = self.own_block_with_key(request_id, demand)
        if own is None:
            return
        (fresh,) = self.pool.allocate(1)  # its reference belongs to the copy
        self.pool.ref_counts[own] += 1
        self.pool.move_keys(own, fresh)
        self.pending_copies.append((own, fresh))
        self.step_keys.update(self.pool.keys[fresh])

    def pass_over(self, request_id: str, demand: Demand, position: int, entry: int) -> None:
        """Skip entries with another state than that of their end (KV-INSIDE-12, KV-INSIDE-13)."""
        count = self.num_cached.get(request_id, 0)
        begun, inside = divmod(demand.num_computed_tokens, self.block_size)
        if inside and demand.num_known_tokens > (begun + 1) * self.block_size:
            self.num_cached[request_id] = count = max(count, begun + 1)
        if position and position != (entry + 1) * self.block_size:
            self.num_cached[request_id] = max(count, entry + 1)

    def first_told(self, request_id: str, num_cached: int) -> int:
        """Include blocks that this call skips in the event's range."""
        chunk = self.planned.get(request_id)
        return num_cached if chunk is None else chunk.num_cached

    # Registration.

    def is_worth_caching(self, block_index: int, request: ReferenceRequest) -> bool:
        """Check it; a wanted state inside a chunk counts as well (KV-INSIDE-12)."""
        chunk = self.planned.get(request.request_id, NO_CHUNK)
        if chunk.position > 0 and block_index == chunk.entry and self.is_wanted(chunk, request):
            return True
        return super().is_worth_caching(block_index, request)

    def is_wanted(self, chunk: PlannedChunk, request: ReferenceRequest) -> bool:
        """Return whether a request is expected to continue there, whatever retention says."""
        return chunk.position in (self.prompt_boundary(request), exact(request.junction_tokens))

    def cache_blocks(self, request: ReferenceRequest, num_tokens: int) -> None:
        """Cache full blocks, then the one boundary inside a block (KV-INSIDE-11, KV-INSIDE-12)."""
        super().cache_blocks(request, num_tokens)
        chunk = self.planned.get(request.request_id, NO_CHUNK)
        if chunk.position > 0:
            is_inside = chunk.position % self.block_size > 0
            if is_inside and chunk.position <= num_tokens and self.is_wanted(chunk, request):
                self.register_state(request, chunk.position, chunk.entry)
        elif num_tokens == chunk.end == self.prompt_boundary(request):
            self.cache_end_of_prompt(request, num_tokens)

    def checkpoint_returns(self, request: ReferenceRequest, num_tokens: int) -> bool:
        """Return whether a lost state gets its key again, which no hit may end inside
        (KV-INSIDE-19).

        Elsewhere no later call knows which state there is.
        """
        if self.block_size > self.hash_size:
            return False
        chunk = self.planned.get(request.request_id, NO_CHUNK)
        return chunk.position == 0 and super().checkpoint_returns(request, num_tokens)

    def cache_end_of_prompt(self, request: ReferenceRequest, num_tokens: int) -> None:
        """Register the running state, if it lies inside a block and has no such key yet."""
        entry, inside = divmod(num_tokens, self.block_size)
        blocks = self.blocks_of(request.request_id)
        if inside == 0 or entry >= len(blocks) or blocks[entry] == NULL_BLOCK:
            return
        has_keys = len(self.pool.keys[blocks[entry]]) > 0
        if has_keys and self.pool.primary_num_tokens[blocks[entry]] == num_tokens:
            return
        self.register_state(request, num_tokens, entry)
        self.num_cached[request.request_id] = entry

    def register_state(self, request: ReferenceRequest, num_tokens: int, entry: int) -> None:
        """Register a partial entry that may be used from the next step on."""
        self.cache_partial_block(request, num_tokens, entry)
        block_hash = request.block_hashes[num_tokens // self.hash_size - 1]
        self.step_keys.add(make_key(block_hash, self.index))

    def chunk_is_planned(self) -> None:
        """Forget the planned chunks once the allocation and its caching call are over."""
        self.planned = {}
