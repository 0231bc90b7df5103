"""The pool: reference counts, eviction order and cached identity of every block (KV-POOL-*).

The free queue is a doubly linked ring through the records of the blocks (see `record`). The null
block, which is never in it, is its head: before the block in front, and after the one at the back.
"""

from __future__ import annotations

from collections.abc import Sequence

from kvfast.residency import ResidencyLog

from . import objects, probing, record
from .arrays import grown, zeroed
from .event_log import EventLog
from .key_map import KeyMap
from .order import Order
from .request import FastRequest
from .tables import Tables
from .upcoming import Upcoming


class BlockPool:
    """The blocks 1 … num_blocks - 1, at first free, in this order. The methods trust their caller.

    Additional entries (KV-PART-2) of a block are chained by `next_entry`, starting at the block;
    free ones start at `free_more`. `num_more` were ever made.
    """

    def __init__(
        self,
        num_blocks: int,
        width: int,
        *,
        events: EventLog | None,
        residency: ResidencyLog | None,
        unhashed_to_front: bool,
        removed_per_copy: bool,
        order: tuple[str, int] = ("lru", 0),
    ) -> None:
        self.num_blocks = num_blocks
        self.num_free = num_blocks - 1
        self.keys = KeyMap(num_blocks, width)
        self.facts = self.keys.facts
        self.upcoming = Upcoming(num_blocks, self.keys)
        self.order: Order | None = None
        if order[0] != "lru":
            self.order = Order(num_blocks, self.keys, *order)
        self.events = events
        self.residency = residency
        self.unhashed_to_front = unhashed_to_front
        self.removed_per_copy = removed_per_copy
        self.has_partial = False
        self.next_entry = zeroed("i", 0)
        self.num_more = 0
        self.free_more = 0
        # All others are linked by being zero.
        self.link(num_blocks - 1, 0)

    # The free queue.

    def after(self, block: int) -> int:
        """Return the block after this one; for 0 the one in front."""
        return block + 1 + self.facts[record.INTS * block + record.NEXT]

    def before(self, block: int) -> int:
        """Return the block before this one; for 0 the one at the back."""
        return block - 1 + self.facts[record.INTS * block + record.PREV]

    def link(self, left: int, right: int) -> None:
        """Make `right` follow `left`."""
        self.facts[record.INTS * left + record.NEXT] = right - left - 1
        self.facts[record.INTS * right + record.PREV] = left - right + 1

    def put(self, left: int, block: int) -> None:
        """Put a block right after `left` (0: in front); it must not be in the queue."""
        right = self.after(left)
        self.link(left, block)
        self.link(block, right)
        self.num_free += 1

    def unlink(self, block: int) -> None:
        """Remove a block from the queue, wherever it is."""
        self.link(self.before(block), self.after(block))
        self.num_free -= 1

    def first_free(self, count: int, left: int) -> list[int]:
        """Return up to `count` free blocks after `left` (0: from the front). O(count)."""
        blocks: list[int] = []
        block = self.after(left)
        while block and len(blocks) < count:
            blocks.append(block)
            block = self.after(block)
        return blocks

    def queue(self) -> list[int]:
        """Return the free blocks, the one to be taken next first. O(n)."""
        return self.first_free(self.num_blocks, 0)

    def set_queue(self, blocks: Sequence[int]) -> None:
        """Make these the free blocks, in this order."""
        last = 0
        for block in blocks:
            self.link(last, block)
            self.upcoming.put(block)
            last = block
        self.link(last, 0)
        self.num_free = len(blocks)

    # Taking and giving back.

    def refs(self, block: int) -> int:
        """Return the number of references to a block."""
        return self.facts[record.INTS * block + record.REFS]

    def set_refs(self, block: int, refs: int) -> None:
        """Set the references to a block; the queue stays as it is."""
        self.facts[record.INTS * block + record.REFS] = refs

    def take(self) -> int:
        """Take the block in front (KV-POOL-3); what it cached is forgotten (KV-POOL-4)."""
        block = self.after(0)
        base = record.INTS * block
        after = self.after(block)
        self.upcoming.taken(block, after - block)
        self.link(0, after)
        self.num_free -= 1
        self.facts[base + record.REFS] = 1
        if self.facts[base + record.DUP_NEXT]:
            self.drop_keys(block)
        if self.residency is not None:  # a sink is an allocation as well (KV-STAT-7)
            self.residency.ended(block)
            self.residency.allocated(block)
        return block

    def allocate(self, tables: Tables, at: int, count: int) -> None:
        """Append blocks from the front of the queue, without their keys, to a list with room."""
        while count > probing.RUN_BLOCKS:
            self.allocate_run(tables, at, probing.RUN_BLOCKS)
            count -= probing.RUN_BLOCKS
        self.allocate_run(tables, at, count)

    def allocate_run(self, tables: Tables, at: int, count: int) -> None:
        """Allocate at most as many blocks as it pays to read memory ahead for."""
        start = tables.start[at] + tables.length[at]
        has_keys, line = 0, -1
        facts, arena = objects.ints_of(self.facts), objects.ints_of(tables.arena)
        block = self.after(0)
        for place in range(start, start + count):
            base = record.INTS * block
            arena[place] = block
            facts[base + record.REFS] = 1
            if facts[base + record.DUP_NEXT]:
                has_keys = 1
                # Fetched here, its slot is ready when the key is removed; eight slots are a line.
                if facts[base + record.HOME] & ~probing.SIDE_MASK != line:
                    line = facts[base + record.HOME] & ~probing.SIDE_MASK
                    self.keys.fetch_slots(line)
            step = 1 + facts[base + record.NEXT]
            self.upcoming.taken(block, step)
            block += step
        self.link(0, block)
        self.num_free -= count
        tables.length[at] += count
        if has_keys:
            self.evict(tables, start, start + count)
        if self.residency is not None:
            for place in range(start, start + count):
                self.residency.ended(tables.arena[place])
                self.residency.allocated(tables.arena[place])

    def evict(self, tables: Tables, start: int, end: int) -> None:
        """Forget the keys of the blocks at these places of the lists."""
        if self.events is None and not self.has_partial and self.order is None:
            self.keys.remove_run(tables, start, end)
        else:
            for place in range(start, end):
                if self.keys.is_added(tables.arena[place]):
                    self.drop_keys(tables.arena[place])

    def touch(self, tables: Tables, start: int, end: int) -> None:
        """Take a reference to the hits at these places; a free one leaves the queue (KV-POOL-5).

        They may follow null, in a window that retains more than it reads (KV-SW-9).
        """
        for place in range(start, end):
            block = tables.arena[place]
            if block == 0:
                continue
            if self.facts[record.INTS * block + record.REFS] == 0:
                self.unlink(block)
            self.facts[record.INTS * block + record.REFS] += 1
            if self.residency is not None:
                self.residency.touched(block)

    def release(self, tables: Tables, start: int, end: int) -> None:
        """Drop a reference to the blocks at these places, the last first, as one call."""
        left = 0
        if self.order is not None:
            for place in range(end - 1, start - 1, -1):
                if tables.arena[place]:
                    left = self.drop_ref(tables.arena[place], left)
            return
        last = self.before(0)
        for place in range(end - 1, start - 1, -1):
            block = tables.arena[place]
            base = record.INTS * block
            if block == 0:
                continue
            if self.facts[base + record.DUP_NEXT] and self.facts[base + record.REFS] == 1:
                # After the one before it; the link back from the head is set at the end.
                self.facts[base + record.REFS] = 0
                self.link(last, block)
                self.upcoming.put(block)
                self.num_free += 1
                last = block
            else:
                self.link(last, 0)
                left = self.drop_ref(block, left)
                last = self.before(0)
        self.link(last, 0)

    def drop_ref(self, block: int, left: int) -> int:
        """Drop a reference in a release call.

        `left` is the current end of the run of blocks without a key that this call puts in front (0
        at its start); returns its new end.
        """
        base = record.INTS * block
        self.facts[base + record.REFS] -= 1
        if self.facts[base + record.REFS] > 0:
            return left
        if self.unhashed_to_front and self.facts[base + record.DUP_NEXT] == 0:
            self.put(left, block)
            return block
        self.put(self.before(0) if self.order is None else self.order.join(block), block)
        self.upcoming.put(block)
        return left

    # Cached identity.

    def register(
        self, block: int, request: FastRequest, number: int, group: int, num_hashes: int
    ) -> None:
        """Cache a block under hash `number` of a request, which covers `num_hashes` hashes.

        Keys that the block still has are of shorter partial entries and go first (KV-POOL-18).
        """
        self.register_at(self.keys.home_of(request, number, group), block, request, number, group)
        self.set_covered(block, num_hashes)

    def register_at(
        self, home: int, block: int, request: FastRequest, number: int, group: int
    ) -> None:
        """Register where the home of the key is known, but do not set what it covers."""
        if self.keys.is_added(block):
            self.drop_keys(block)
        elif self.order is not None:
            self.order.begin(block, request.priority)
        self.keys.add_at(home, block, request, number, group)

    def register_run(
        self,
        tables: Tables,
        start: int,
        first: int,
        end: int,
        request: FastRequest,
        per: int,
        group: int,
    ) -> None:
        """Register blocks first … end - 1 of a list that begins at `start`, but null ones."""
        if self.order is not None:
            self.order.begin_run(tables, start + first, start + end, request.priority)
        first = self.keys.add_run(tables, start, first, end, request, per, group)
        while first < end:
            block = tables.arena[start + first]
            first += 1
            self.register(block, request, first * per - 1, group, first * per)
            first = self.keys.add_run(tables, start, first, end, request, per, group)

    def register_partial(self, block: int, request: FastRequest, number: int, group: int) -> bool:
        """Cache a block under a key that ends inside it; False if it has it (KV-PART-2)."""
        if self.has_key(block, request, number, group):
            return False
        if not self.keys.is_added(block) or self.covered(block) <= number:
            self.register(block, request, number, group, number + 1)  # KV-PART-3: for all keys
            return True
        self.keys.add(self.take_more(block), request, number, group)
        return True

    def covered(self, block: int) -> int:
        """Return the hashes that the primary key of a block covers."""
        return self.facts[record.INTS * block + record.COVERED]

    def set_covered(self, block: int, num_hashes: int) -> None:
        """Set the hashes that the primary key covers."""
        self.facts[record.INTS * block + record.COVERED] = num_hashes

    def is_cached(self, block: int) -> bool:
        """Return whether the block has any key."""
        return self.keys.is_added(block)

    def has_key(self, block: int, request: FastRequest, number: int, group: int) -> bool:
        """Return whether the block has the key of hash `number` of a request."""
        entry = block if self.keys.is_added(block) else 0
        while entry and not self.keys.carries(entry, request, number, group):
            entry = self.more(entry)
        return entry != 0

    def block_of(self, entry: int) -> int:
        """Return the block that an entry belongs to; 0 for no entry."""
        if entry < self.num_blocks:
            return entry
        return self.facts[record.INTS * entry + record.OWNER]

    def forget(self, block: int) -> None:
        """Drop the identity of a block wherever it is (KV-POOL-10)."""
        if self.residency is not None:
            self.residency.ended(block)
        if self.keys.is_added(block):
            self.drop_keys(block)

    def drop_keys(self, block: int) -> None:
        """Take all keys of the block out of the cache, an event for each (KV-EVT-4)."""
        if self.order is not None:
            self.order.leave(block)
        self.drop(block)
        entry = self.more(block)
        if entry:
            self.set_more(block, 0)
        while entry:
            self.drop(entry)
            after = self.more(entry)
            self.set_more(entry, self.free_more)
            self.free_more = entry
            entry = after

    def drop(self, entry: int) -> None:
        """Take one entry out of the cache."""
        was_last = self.keys.remove(entry)
        if self.events is not None and (was_last or self.removed_per_copy):
            self.events.removed(self.keys, entry)

    def reset(self) -> None:
        """Forget every key; no block may be in use (KV-POOL-11)."""
        self.keys.clear()
        if self.order is not None:
            self.order.clear()
        if self.has_partial:
            for block in range(self.num_blocks):
                self.set_more(block, 0)
            self.num_more = 0
            self.free_more = 0
        if self.residency is not None:
            self.residency.reset()
        if self.events is not None:
            self.events.cleared()

    # Additional entries.

    def more(self, entry: int) -> int:
        """Return the first additional entry of a block, or the one after such an entry; 0: none."""
        return self.next_entry[entry] if self.has_partial else 0

    def set_more(self, entry: int, after: int) -> None:
        """Set the next additional entry."""
        self.next_entry[entry] = after

    def take_more(self, block: int) -> int:
        """Append a new additional entry to those of the block."""
        if not self.has_partial:
            self.has_partial = True
            self.next_entry = zeroed("i", self.keys.num_entries)
        entry = self.free_more
        if entry:
            self.free_more = self.more(entry)
        else:
            entry = self.num_blocks + self.num_more
            if entry == self.keys.num_entries:
                self.keys.grow(entry + max(64, self.num_more))
                self.facts = self.keys.facts
                self.next_entry = grown("i", self.next_entry, self.keys.num_entries)
            self.num_more += 1
        self.facts[record.INTS * entry + record.OWNER] = block
        self.set_more(entry, 0)
        last = block
        while self.more(last):
            last = self.more(last)
        self.set_more(last, entry)
        return entry

    def entries_of(self, block: int) -> list[int]:
        """Return the entries of a block, the primary one first."""
        entries: list[int] = []
        entry = block if self.keys.is_added(block) else 0
        while entry:
            entries.append(entry)
            entry = self.more(entry)
        return entries
