"""Groups whose hits may end inside a block: need, allocation, copies, registration (KV-INSIDE-*).

A manager without the feature has none of this. The allocator implements the other chapters; this
module only the differences. A *copy* is a pair (source, destination) that the caller makes before
the step. A *move* is the copy of a running request, which keeps its block while the keys are moved
to the copy.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence

from kvspec.inside import BlockCopies

from . import moving
from .allocator import Allocator
from .arrays import zeroed
from .demand import Demand
from .lookup import Lookup
from .pool import BlockPool
from .request import FastRequest
from .shape import Shape
from .tables import Tables


class Inside:
    """The groups of one manager. The methods trust their arguments.

    - `pairs[g]`: copies not yet taken; each end has a reference for it.
    - `written[block]`: for blocks of full attention that this step writes or copies to, the tokens
      there before.
    - `entry_of[g]`: the entry that the hit of this call ends inside, -1 for none. `copied[g]`: the
      block that the call put there instead, 0 for none.
    - `inner[g]`: after how many tokens this call's chunk leaves a state inside, 0 for none;
      `column[g]`: in which entry. `handed[g]`: the entries cached before any was skipped.
    - `export_step[g]`: a state inside lies a multiple of this many tokens after the chunk's start;
      0: there is none. `end`: where this call's chunk ends.
    - `is_whole`: every block is as large as the unit of hashing, so that no hit ends inside one.
    """

    def __init__(self, allocator: Allocator, export_steps: Sequence[int], unit: int) -> None:
        self.allocator = allocator
        self.shape: Shape = self.allocator.shape
        self.pool: BlockPool = self.allocator.pool
        self.tables: Tables = self.allocator.tables
        self.lookup: Lookup = self.allocator.lookup
        self.unit = unit
        self.is_whole = True
        n = self.shape.num_groups
        self.num_groups = n
        self.end = 0
        self.export_step = zeroed("q", n)
        for g in range(n):
            self.export_step[g] = export_steps[g]
            if self.shape.is_cached(g) and self.shape.block_size[g] != unit:
                self.is_whole = False
        self.entry_of = zeroed("q", n)
        self.copied = zeroed("i", n)
        self.inner = zeroed("q", n)
        self.column = zeroed("q", n)
        self.handed = zeroed("q", n)
        self.pairs: list[list[tuple[int, int]]] = [[] for _ in range(n)]
        self.written: dict[int, int] = {}

    # Needs.

    def num_needed(self, row: int, request: FastRequest, demand: Demand, capped: bool) -> int:
        """Free blocks that all groups together would take, or more than there are; pure."""
        total = 0
        for g in range(self.num_groups):
            total += self.need_of(g, row, request, demand, capped)
            if total > self.pool.num_blocks:
                break
        return total

    def need_of(self, g: int, row: int, request: FastRequest, demand: Demand, capped: bool) -> int:
        """Free blocks that one group would take."""
        ends_inside = self.entry_hit(g, demand) >= 0
        if ends_inside and self.is_unwritten(g, demand):
            return self.pool.num_blocks + 1
        if self.shape.is_aligned(g) and not (demand.external > 0 and not self.has_entry(g, row)):
            return self.need_of_aligned(g, row, request, demand, ends_inside)
        need = self.allocator.need_of(g, row, demand, capped)
        return need + (1 if ends_inside else 0)

    def has_entry(self, g: int, row: int) -> bool:
        """Return whether the group has an entry for the row."""
        return row >= 0 and self.tables.cached[row * self.num_groups + g] != 0

    def is_unwritten(self, g: int, demand: Demand) -> bool:
        """Return whether the end of the hit is written into its block in this very step."""
        place = g * self.lookup.stride + self.lookup.hit_blocks[g] - 1
        before: int = self.written.get(self.lookup.hits[place], demand.local)
        return before < demand.local

    def need_of_aligned(
        self, g: int, row: int, request: FastRequest, demand: Demand, ends_inside: bool
    ) -> int:
        """Count the running state, the drafted ones, a copy, and a state inside the chunk."""
        if self.allocator.is_too_new(g):
            return self.pool.num_blocks + 1
        held = 0
        was_allocated = False
        if row >= 0:
            held = self.tables.length[row * self.num_groups + g]
            was_allocated = self.tables.allocated[row * self.num_groups + g] != 0
        missing = self.allocator.length_for(g, demand) - self.lookup.hit_blocks[g] - held
        need = self.allocator.num_revived(g, 0)
        if ends_inside or self.moved_entry(g, row, demand) >= 0:
            need += 1
        if missing > 0:
            most = 1 if was_allocated else 1 + self.shape.drafted[g]
            if self.inner_state(g, row, request, demand) > 0:
                most += 1
            need += min(missing, most)
        return need

    def entry_hit(self, g: int, demand: Demand) -> int:
        """Return the entry that the hit ends inside; -1 for none."""
        size = self.shape.block_size[g]
        if self.lookup.hit_blocks[g] == 0 or demand.local % size == 0:
            return -1
        return demand.local // size

    def moved_entry(self, g: int, row: int, demand: Demand) -> int:
        """Return the entry that a running request continues in, if it has a key; else -1."""
        size = self.shape.block_size[g]
        if row < 0 or demand.local % size == 0:
            return -1
        index = demand.local // size
        at = row * self.num_groups + g
        if index >= self.tables.length[at]:
            return -1
        block = self.tables.arena[self.tables.start[at] + index]
        return index if block and self.pool.is_cached(block) else -1

    # A state inside the chunk.

    def last_inner(self, tokens: int) -> int:
        """Return the last boundary at which a request with the same tokens may resume."""
        if self.shape.some_group_drops:
            return max(tokens // self.unit * self.unit - self.unit, 0)
        return max(tokens - self.shape.num_last, 0) // self.unit * self.unit

    def inner_state(self, g: int, row: int, request: FastRequest, demand: Demand) -> int:
        """Return after how many tokens the chunk leaves a state in a separate block; else 0."""
        step = self.export_step[g]
        start = demand.local
        end = demand.main
        if step == 0 or demand.external > 0 or start % self.unit:
            return 0
        if self.shape.retention == 0 and end < max(
            request.num_prompt_tokens, request.num_tokens - 1
        ):
            return 0
        tokens = self.last_inner(end)
        if tokens < start + self.unit or (tokens - start) % step:
            return 0
        size = self.shape.block_size[g]
        column = self.shape.cdiv(end, size) - 2
        if column < self.shape.cdiv(start, size):  # not right of where the chunk starts
            return 0
        held = self.lookup.hit_blocks[g]
        if row >= 0:
            at = row * self.num_groups + g
            held += self.tables.length[at]
            if self.tables.allocated[at]:
                held -= self.shape.drafted[g]
        return tokens if column >= held else 0

    # Taking.

    def take(self, row: int, request: FastRequest, demand: Demand, takes_hits: bool) -> None:
        """Take the hit blocks, then the missing ones, in every group."""
        self.end = demand.main
        for g in range(self.num_groups):
            self.copied[g] = 0
            self.inner[g] = 0
            self.entry_of[g] = -1
            if takes_hits:
                self.entry_of[g] = self.entry_hit(g, demand)
            if self.shape.is_aligned(g):
                self.inner[g] = self.inner_state(g, row, request, demand)
        if takes_hits:
            self.allocator.take_hits(row, demand, request.priority)
        for g in range(self.num_groups):
            at = row * self.num_groups + g
            self.allocator.new_from[g] = self.tables.length[at]
            if self.entry_of[g] >= 0:
                self.tables.cached[at] = 1 + self.entry_of[g]
                self.copy_shared(g, at)
            if self.shape.is_aligned(g):
                self.take_aligned(g, row, request, demand)
            else:
                self.allocator.extend(g, row, self.allocator.length_for(g, demand))
            self.note_written(g, at, demand.local, 0 if takes_hits else self.allocator.new_from[g])

    def take_aligned(self, g: int, row: int, request: FastRequest, demand: Demand) -> None:
        """Allocate as KV-MAMBA-9 says, with one more entry for a state inside the chunk."""
        at = row * self.num_groups + g
        if self.entry_of[g] < 0:
            entry = self.moved_entry(g, row, demand)
            if entry >= 0:
                self.move_keys(g, at, entry)
        required = self.allocator.length_for(g, demand)
        held = self.tables.length[at]
        if required > held:
            self.tables.make_room(at, g, required)
            self.grow(at, required, held, self.shape.drafted[g], 1 if self.inner[g] else 0)
        if self.copied[g]:
            self.tables.allocated[at] = 1
        self.pass_over(g, at, request, demand)

    def grow(self, at: int, required: int, held: int, drafted: int, inner: int) -> None:
        """Let an align-mode list grow; there is room. See `Allocator.grow_aligned`."""
        running = required - drafted - 1 - inner
        for _ in range(held, running):
            self.tables.append(at, 0)
        if self.tables.allocated[at]:
            start = self.tables.start[at]
            for i in range(held - drafted, min(held, running)):
                self.tables.append(at, self.tables.arena[start + i])
                self.tables.arena[start + i] = 0
        self.pool.allocate(self.tables, at, required - self.tables.length[at])
        self.tables.allocated[at] = 1

    def pass_over(self, g: int, at: int, request: FastRequest, demand: Demand) -> None:
        """Hand over, without a key, what holds no state after its whole block."""
        size = self.shape.block_size[g]
        start = demand.local + demand.external
        verified = min(demand.main, request.num_tokens)
        self.handed[g] = max(self.tables.cached[at] - 1, 0)
        if start % size and verified > (start // size + 1) * size:
            self.tables.cached[at] = max(self.tables.cached[at], 2 + start // size)
        if self.inner[g]:
            self.column[g] = self.shape.cdiv(demand.main, size) - 2
            if self.inner[g] != (self.column[g] + 1) * size:
                self.tables.cached[at] = max(self.tables.cached[at], 2 + self.column[g])

    def note_written(self, g: int, at: int, local: int, first: int) -> None:
        """Note what this step writes after `local` tokens; entries from `first` on may be new."""
        start = self.tables.start[at]
        length = self.tables.length[at]
        if self.shape.is_full(g):
            for i in range(local // self.shape.block_size[g], length):
                self.written[self.tables.arena[start + i]] = local
            if self.copied[g]:
                self.written[self.copied[g]] = 0
        else:
            for i in range(first, length):
                self.written.pop(self.tables.arena[start + i], None)

    # Copies.

    def fresh(self, g: int, at: int) -> int:
        """Take a block from the front of the queue, in no list yet."""
        self.tables.make_room(at, g, self.tables.length[at] + 1)
        self.pool.allocate(self.tables, at, 1)
        self.tables.length[at] -= 1
        block: int = self.tables.arena[self.tables.start[at] + self.tables.length[at]]
        self.written.pop(block, None)
        return block

    def copy_shared(self, g: int, at: int) -> None:
        """Replace the block that the hit ends inside by a copy.

        The reference of the hit becomes that of the copy.
        """
        block = self.fresh(g, at)
        place = self.tables.start[at] + self.entry_of[g]
        self.pairs[g].append((self.tables.arena[place], block))
        self.tables.arena[place] = block
        self.pool.set_refs(block, 2)
        self.copied[g] = block
        if self.shape.is_zeroed[g]:
            self.allocator.to_zero.add(g, block)

    def move_keys(self, g: int, at: int, index: int) -> None:
        """Move the keys of a request's block to a copy, which others may start from."""
        block = self.fresh(g, at)
        source = self.tables.arena[self.tables.start[at] + index]
        self.pool.set_refs(source, self.pool.refs(source) + 1)
        moving.move_all(self.pool, source, block)
        for entry in self.pool.entries_of(block):
            self.allocator.step_hashes[g].add(self.pool.keys.hash_of(entry))
        self.pairs[g].append((source, block))

    def put_first(self, taken: list[Sequence[int]]) -> None:
        """Put the block that replaces a shared one first in what each group took."""
        for g in range(self.num_groups):
            if self.copied[g]:
                taken[g] = array("i", [self.copied[g], *taken[g]])

    def take_copies(self, popped: dict[int, int]) -> BlockCopies:
        """Return the copies not yet taken, group by group; their ends are then popped."""
        taken: list[tuple[int, int]] = []
        for pairs in self.pairs:
            taken.extend(pairs)
            pairs.clear()
        ends = [block for pair in taken for block in pair]
        for block in ends:
            popped[block] = popped.get(block, 0) + 1
        return BlockCopies(tuple(taken), tuple(ends))

    # Caching.

    def cache(self, row: int, request: FastRequest, tokens: int, allocates: bool) -> None:
        """Register the full blocks among the first tokens, and what ends inside a block.

        `allocates`: it is the call of the allocation that took the blocks of the chunk.
        """
        for g in range(self.num_groups):
            if not self.shape.is_cached(g):  # KV-COORD-14
                continue
            at = row * self.num_groups + g
            given = tokens
            if self.is_whole and not self.shape.drops[g]:  # KV-COORD-13
                given -= tokens % self.unit
            end = self.shape.full_blocks(g, given, request.num_hashes)
            first = max(self.tables.cached[at] - 1, 0)
            if self.shape.is_mamba(g):
                inner = self.inner[g] if allocates else 0
                told = self.handed[g] if allocates and self.shape.is_aligned(g) else first
                if told < end:
                    self.cache_states(g, at, request, told, end, inner)
                last = self.last_inner(request.num_prompt_tokens)
                if self.is_whole and self.shape.returns[g] and not inner and given == last:
                    self.allocator.cache_checkpoint(g, row, request, given)
                if inner:
                    self.cache_inner(g, at, request, inner)
                elif allocates and tokens == self.end and self.shape.is_aligned(g):
                    self.cache_tail(g, at, request, tokens)
                continue
            if first < end:
                self.allocator.cache_range(g, at, request, first, end)
            if self.shape.is_full(g) and self.shape.hashes_per_block[g] > 1:
                self.allocator.cache_tail(g, row, request, tokens)

    def cache_states(
        self, g: int, at: int, request: FastRequest, told: int, end: int, inner: int
    ) -> None:
        """Register entries up to end - 1, but null and masked ones; report from `told` on."""
        per = self.shape.hashes_per_block[g]
        size = self.shape.block_size[g]
        start = self.tables.start[at]
        tail = self.last_inner(request.num_prompt_tokens)
        stored: list[int] = []
        first = max(self.tables.cached[at] - 1, 0)
        self.tables.cached[at] = 1 + max(first, end)
        for i in range(first, end):
            block = self.tables.arena[start + i]
            if block == 0:
                continue
            tokens = (i + 1) * size
            if not (
                self.allocator.caches_all[g]
                or tokens == tail
                or (tokens == inner and tokens == request.junction)
                or self.shape.is_worth_caching(g, i, request.num_prompt_tokens, request.junction)
            ):
                continue
            self.pool.register(block, request, (i + 1) * per - 1, g, (i + 1) * per)
            self.allocator.step_hashes[g].add(self.pool.keys.hash_of(block))
            stored.append(i)
        if self.allocator.events is not None:
            self.allocator.events.stored(request, g, per, told, end, stored)

    def cache_inner(self, g: int, at: int, request: FastRequest, tokens: int) -> None:
        """Register the state inside the chunk, if a request may resume there."""
        is_kept = tokens == self.last_inner(request.num_prompt_tokens)
        if (is_kept or tokens == request.junction) and tokens % self.shape.block_size[g]:
            block = self.tables.arena[self.tables.start[at] + self.column[g]]
            if self.pool.is_cached(block):
                self.pool.drop_keys(block)
            self.cache_at(g, at, request, self.column[g], tokens // self.unit)

    def cache_tail(self, g: int, at: int, request: FastRequest, tokens: int) -> None:
        """Register the state at the prompt's tail, where the tokens end there inside a block."""
        size = self.shape.block_size[g]
        is_tail = tokens == self.last_inner(request.num_prompt_tokens)
        if (
            is_tail
            and tokens % size
            and self.cache_at(g, at, request, tokens // size, tokens // self.unit)
        ):
            self.tables.cached[at] = 1 + tokens // size

    def cache_at(self, g: int, at: int, request: FastRequest, index: int, number: int) -> bool:
        """Give the block at an entry a key of `number` hashes; False if it has it, or is null."""
        if index >= self.tables.length[at] or number > request.num_hashes:
            return False
        block = self.tables.arena[self.tables.start[at] + index]
        if block == 0 or (self.pool.is_cached(block) and self.pool.covered(block) == number):
            return False
        is_new = self.pool.register_partial(block, request, number - 1, g)
        self.allocator.step_hashes[g].add(request.hash_at(number - 1))
        if is_new and self.allocator.events is not None:
            self.allocator.events.stored(request, g, 1, number - 1, number, [number - 1])
        return True
