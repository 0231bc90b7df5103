"""Allocate blocks to requests and release them (KV-GRP-*, KV-MGR-*).

A request is a row of the tables, or -1 while it holds nothing. A `Demand` is what a call asks for;
the hits are in the look-up's arrays.
"""

from __future__ import annotations

from . import kinds
from .arrays import zeroed
from .demand import Demand
from .event_log import EventLog
from .kinds import never
from .lookup import Lookup
from .pool import BlockPool
from .request import FastRequest
from .shape import Shape
from .tables import Tables
from .zeroing import ZeroQueue


class Allocator:
    """The groups of one manager at work. The methods trust their arguments."""

    def __init__(
        self,
        shape: Shape,
        pool: BlockPool,
        tables: Tables,
        lookup: Lookup,
        events: EventLog | None,
        *,
        rounds_down: bool,
    ) -> None:
        self.shape = shape
        self.pool = pool
        self.tables = tables
        self.lookup = lookup
        self.events = events
        self.rounds_down = rounds_down
        self.new_from = zeroed("i", shape.num_groups)
        self.caches_all = zeroed("i", shape.num_groups)
        for g in range(shape.num_groups):
            self.caches_all[g] = shape.caches_all(g)
        self.to_zero = ZeroQueue()
        # Hashes registered in this step, per group; only Mamba groups have any (KV-MAMBA-2).
        self.step_hashes: list[set[bytes]] = [set() for _ in range(shape.num_groups)]

    # Needs.

    def is_running(self, row: int) -> bool:
        """Return whether some group has an entry for the row (KV-GRP-9)."""
        if row >= 0:
            for g in range(self.shape.num_groups):
                if self.tables.cached[row * self.shape.num_groups + g]:
                    return True
        return False

    def holds_blocks(self, row: int) -> bool:
        """Return whether some group has a block, or null, for the row."""
        if row >= 0:
            for g in range(self.shape.num_groups):
                if self.tables.length[row * self.shape.num_groups + g]:
                    return True
        return False

    def num_needed(self, row: int, demand: Demand, capped: bool) -> int:
        """Free blocks that all groups together would take, or more than there are; pure."""
        total = 0
        for g in range(self.shape.num_groups):
            total += self.need_of(g, row, demand, capped)
            if total > self.pool.num_blocks:
                break  # counts of many groups may be more than 64 bits
        return total

    def need_of(self, g: int, row: int, demand: Demand, capped: bool) -> int:
        """Free blocks that one group would take (KV-GRP-3, KV-GRP-4)."""
        held = 0
        has_entry = False
        was_allocated = False
        if row >= 0:
            at = row * self.shape.num_groups + g
            held = self.tables.length[at]
            has_entry = self.tables.cached[at] != 0
            was_allocated = self.tables.allocated[at] != 0
        if not self.shape.holds_tokens(g):
            return max(self.length_for(g, demand) - held, 0)
        if self.shape.is_mamba(g) and self.is_too_new(g):
            return self.pool.num_blocks + 1
        if self.shape.is_aligned(g):
            return self.need_of_aligned(g, demand, held, has_entry, was_allocated)
        required = self.length_for(g, demand)
        if capped and self.shape.cap[g] >= 0:
            required = min(required, self.shape.cap[g])
        if has_entry:
            return max(required - held, 0)
        skipped = self.shape.skipped(g, demand.skip_at)
        present = max(skipped, self.lookup.hit_blocks[g] + held)
        return max(required - present, 0) + self.num_revived(g, max(0, skipped - held))

    def length_for(self, g: int, demand: Demand) -> int:
        """Return a group's list length (KV-CIRC-1, KV-CROSS-1, KV-CROSS-5, KV-MAMBA-6)."""
        kind = self.shape.kind[g]
        size = self.shape.block_size[g]
        if kind == kinds.FULL or kind == kinds.RSWA:
            return self.shape.cdiv(demand.slots, size)
        if kind == kinds.SLIDING or kind == kinds.CHUNKED or kind == kinds.REPLAYED:
            return self.shape.cdiv(demand.slots, size)
        if kind == kinds.MAMBA:
            return self.shape.cdiv(demand.slots, size) + self.shape.drafted[g]
        if kind == kinds.ALIGNED:
            return self.shape.cdiv(demand.main, size) + self.shape.drafted[g]
        if kind == kinds.CROSS:
            return self.shape.cdiv(demand.encoder, size)
        if kind == kinds.ENCODER_ONLY:
            return 0
        if kind == kinds.CIRCULAR:
            return 1
        return never(kind)

    def num_revived(self, g: int, first: int) -> int:
        """Count hits from index `first` on in the free queue; taking them also uses it up."""
        count = 0
        for i in range(first, self.lookup.hit_blocks[g]):
            block = self.lookup.hits[g * self.lookup.stride + i]
            if block and self.pool.refs(block) == 0:
                count += 1
        return count

    def is_too_new(self, g: int) -> bool:
        """Return whether the state to start from was registered in this very step (KV-MAMBA-2)."""
        num_hits = self.lookup.hit_blocks[g]
        if num_hits == 0 or not self.step_hashes[g]:
            return False
        block = self.lookup.hits[g * self.lookup.stride + num_hits - 1]
        return any(
            self.pool.keys.hash_of(entry) in self.step_hashes[g]
            for entry in self.pool.entries_of(block)
            if self.pool.keys.group_of(entry) == g
        )

    def need_of_aligned(
        self, g: int, demand: Demand, held: int, has_entry: bool, was_allocated: bool
    ) -> int:
        """Count the running state and the drafted ones (KV-MAMBA-7, KV-MAMBA-8)."""
        required = self.length_for(g, demand)
        drafted = self.shape.drafted[g]
        num_hits = self.lookup.hit_blocks[g]
        if demand.external > 0 and not has_entry:
            skipped = self.shape.skipped(g, demand.skip_at)
            length = max(skipped, num_hits)
            computed = self.shape.cdiv(demand.local + demand.external, self.shape.block_size[g])
            after_load = max(length, computed)
            need = after_load - length + self.num_revived(g, skipped)
            if required > after_load:
                need += required - max(after_load, required - drafted - 1)
            return need
        need = self.num_revived(g, 0)
        if required > num_hits + held:
            need += 1 if was_allocated else 1 + drafted
        return need

    # Taking.

    def take_hits(self, row: int, demand: Demand, priority: int) -> None:
        """Start the lists with the hits; skipped ones become null (KV-GRP-5, KV-GRP-8)."""
        for g in range(self.shape.num_groups):
            if self.shape.holds_tokens(g):
                self.take_hits_of(g, row, demand.skip_at, priority)
        if demand.external > 0:
            for g in range(self.shape.num_groups):
                if self.shape.holds_tokens(g):
                    computed = demand.local + demand.external
                    if not self.shape.is_window_beyond(g, demand.skip_at, computed):
                        size = self.shape.block_size[g]
                        self.extend(g, row, self.shape.cdiv(computed, size))
                elif self.shape.kind[g] == kinds.CIRCULAR:  # KV-CIRC-2
                    self.extend(g, row, 1)

    def take_hits_of(self, g: int, row: int, skip_at: int, priority: int) -> None:
        """Take one group's hits."""
        at = row * self.shape.num_groups + g
        skipped = self.shape.skipped(g, skip_at)
        length = max(skipped, self.lookup.hit_blocks[g])
        self.tables.make_room(at, g, length)
        start = self.tables.start[at]
        for i in range(skipped):
            self.tables.arena[start + i] = 0
        for i in range(skipped, length):
            self.tables.arena[start + i] = self.lookup.hits[g * self.lookup.stride + i]
        self.tables.length[at] = length
        if self.pool.order is not None:
            self.pool.order.use(self.tables, start + skipped, start + length, priority)
        self.pool.touch(self.tables, start + skipped, start + length)
        self.tables.cached[at] = 1 + length
        self.tables.passed[at] = skipped

    def take_new(self, row: int, demand: Demand) -> None:
        """Take the blocks still missing for the demand, in every group (KV-GRP-7).

        They are those of its list from `new_from[g]` on.
        """
        for g in range(self.shape.num_groups):
            self.new_from[g] = self.tables.length[row * self.shape.num_groups + g]
            if self.shape.is_aligned(g):
                self.take_aligned(g, row, self.length_for(g, demand))
            else:
                self.extend(g, row, self.length_for(g, demand))

    def extend(self, g: int, row: int, num_blocks: int) -> None:
        """Make the list `num_blocks` long, if it is shorter."""
        at = row * self.shape.num_groups + g
        missing = num_blocks - self.tables.length[at]
        if missing == 1:  # of most that decode
            self.tables.make_room(at, g, num_blocks)
            block = self.pool.take()
            self.tables.append(at, block)
            if self.shape.is_zeroed[g]:  # KV-GRP-10
                self.to_zero.add(g, block)
        elif missing > 0:
            self.tables.make_room(at, g, num_blocks)
            self.pool.allocate(self.tables, at, missing)
            if self.shape.is_zeroed[g]:
                end = self.tables.start[at] + num_blocks
                self.to_zero.add_run(g, self.tables, end - missing, end)

    def forget_step(self) -> None:
        """Make states registered in earlier steps available (KV-MGR-19)."""
        for hashes in self.step_hashes:
            hashes.clear()

    def take_aligned(self, g: int, row: int, required: int) -> None:
        """Pad with null, move drafted states along, take what is missing (KV-MAMBA-9)."""
        at = row * self.shape.num_groups + g
        held = self.tables.length[at]
        if required > held:
            self.tables.make_room(at, g, required)
            self.grow_aligned(at, required, held, self.shape.drafted[g])

    def grow_aligned(self, at: int, required: int, held: int, drafted: int) -> None:
        """Let an align-mode list grow; there is room."""
        running = required - drafted - 1
        for _ in range(held, running):
            self.tables.append(at, 0)
        if self.tables.allocated[at]:
            start = self.tables.start[at]
            for i in range(held - drafted, min(held, running)):
                self.tables.append(at, self.tables.arena[start + i])
                self.tables.arena[start + i] = 0
        self.pool.allocate(self.tables, at, required - self.tables.length[at])
        self.tables.allocated[at] = 1

    # Caching.

    def cache(self, row: int, request: FastRequest, tokens: int) -> None:
        """Register the full blocks among the first tokens, in every group (KV-GRP-11).

        With several groups only what an aligned hit can use, and for a group that drops a block
        the one behind it (KV-COORD-13).
        """
        aligned = tokens
        if self.rounds_down:
            aligned -= tokens % self.shape.alignment
        for g in range(self.shape.num_groups):
            if not self.shape.is_cached(g):  # KV-COORD-14
                continue
            size = self.shape.block_size[g]
            end = aligned
            if self.rounds_down and self.shape.drops[g] and aligned > 0:
                end = min(tokens, aligned + size)
            at = row * self.shape.num_groups + g
            first = max(self.tables.cached[at] - 1, 0)
            full = self.shape.full_blocks(g, end, request.num_hashes)
            if first < full:
                self.cache_range(g, at, request, first, full)
            if self.shape.tails[g]:
                self.cache_tail(g, row, request, end)
            if self.shape.returns[g] and end == self.shape.checkpoint(g, request.num_prompt_tokens):
                self.cache_checkpoint(g, row, request, end)

    def cache_tail(self, g: int, row: int, request: FastRequest, tokens: int) -> None:
        """Register the end of the prompt inside a block, if within these tokens (KV-POL-17)."""
        per = self.shape.hashes_per_block[g]
        unit = self.shape.block_size[g] // per
        limit = request.num_prompt_tokens - (0 if self.shape.drops[g] else 1)
        number = min(limit // unit, request.num_hashes)
        held = self.tables.length[row * self.shape.num_groups + g]
        if number % per and number * unit <= tokens and number // per < held:
            self.cache_partial(row, request, g, number - 1)

    def cache_checkpoint(self, g: int, row: int, request: FastRequest, tokens: int) -> None:
        """Register the state after these tokens, if that is the checkpoint (KV-POL-23)."""
        per = self.shape.hashes_per_block[g]
        number = tokens * per // self.shape.block_size[g]
        at = row * self.shape.num_groups + g
        if number > 0 and number % per == 0 and number // per <= self.tables.length[at]:
            block = self.tables.arena[self.tables.start[at] + number // per - 1]
            if block and not (self.pool.is_cached(block) and self.pool.covered(block) == number):
                self.cache_partial(row, request, g, number - 1)
                self.step_hashes[g].add(self.pool.keys.hash_of(block))

    def cache_range(self, g: int, at: int, request: FastRequest, first: int, end: int) -> None:
        """Register blocks first … end - 1 of a list, but null and masked ones."""
        per = self.shape.hashes_per_block[g]
        start = self.tables.start[at]
        self.tables.cached[at] = 1 + end
        if self.events is None and self.caches_all[g] and end - first == 1:
            block = self.tables.arena[start + first]
            if block:
                self.pool.register(block, request, end * per - 1, g, end * per)
        elif self.events is None and self.caches_all[g]:
            self.pool.register_run(self.tables, start, first, end, request, per, g)
        else:
            self.cache_each(g, start, request, first, end)
        if self.shape.is_mamba(g):
            self.note_step(g, start, first, end)

    def cache_each(self, g: int, start: int, request: FastRequest, first: int, end: int) -> None:
        """Do `cache_range` where some blocks are masked, or events need the stored ones."""
        per = self.shape.hashes_per_block[g]
        stored: list[int] = []
        for i in range(first, end):
            block = self.tables.arena[start + i]
            if block == 0:
                continue
            if not self.caches_all[g] and not self.shape.is_worth_caching(
                g, i, request.num_prompt_tokens, request.junction
            ):
                continue
            self.pool.register(block, request, (i + 1) * per - 1, g, (i + 1) * per)
            stored.append(i)
        if self.events is not None:
            self.events.stored(request, g, per, first, end, stored)

    def note_step(self, g: int, start: int, first: int, end: int) -> None:
        """Remember the keys of the states just registered (KV-MAMBA-2).

        A block that was skipped may also have keys, but none that covers it whole.
        """
        per = self.shape.hashes_per_block[g]
        for i in range(first, end):
            block = self.tables.arena[start + i]
            if (
                block
                and self.pool.keys.is_added(block)
                and self.pool.covered(block) == (i + 1) * per
            ):
                self.step_hashes[g].add(self.pool.keys.hash_of(block))

    def cache_partial(self, row: int, request: FastRequest, g: int, number: int) -> bool:
        """Add a key that ends inside a block: hash `number` of the request (KV-PART-1)."""
        at = row * self.shape.num_groups + g
        index = number // self.shape.hashes_per_block[g]
        block = self.tables.arena[self.tables.start[at] + index]
        if block == 0:
            return False
        is_new = self.pool.register_partial(block, request, number, g)
        if is_new and self.events is not None:  # KV-PART-4
            self.events.stored(request, g, 1, number, number + 1, [number])
        return True

    def remove_skipped(self, row: int, computed: int, prompt: int) -> None:
        """Release what fell out of the window, one release call per group (KV-GRP-2, KV-POOL-7)."""
        for g in range(self.shape.num_groups if row >= 0 else 0):
            verified = computed
            if self.shape.is_mamba(g) and self.shape.drafts_hold_states:  # KV-MAMBA-5
                verified = max(0, computed - self.shape.drafted[g])
            end, at = self.shape.skipped(g, verified), row * self.shape.num_groups + g
            kept = 0
            if self.shape.kind[g] == kinds.RSWA:  # KV-RSWA-1
                end = self.shape.gap_end(g, prompt, computed)
                kept = self.shape.cdiv(prompt, self.shape.block_size[g])
            if end:
                self.remove_before(g, at, kept, end)

    def remove_before(self, g: int, at: int, kept: int, end: int) -> None:
        """Replace the blocks `kept` … `end` - 1 by null and release them, last first.

        The kept part is not noted: a later prompt may be shorter (KV-REQ-6).
        """
        end = min(end, self.tables.length[at])
        passed = max(kept, self.tables.passed[at])
        start = self.tables.start[at]
        if end > passed:
            self.pool.release(self.tables, start + passed, start + end)
            for i in range(passed, end):
                self.tables.arena[start + i] = 0
            self.tables.passed[at] = end

    def free(self, row: int) -> None:
        """Release all lists, last block first, one release call per group (KV-POOL-8)."""
        for g in range(self.shape.num_groups):
            at = row * self.shape.num_groups + g
            start = self.tables.start[at]
            self.pool.release(self.tables, start, start + self.tables.length[at])
        self.tables.clear_row(row)
