"""The pool: reference counts, eviction order and cached identity of every block (KV-POOL-*)."""

from __future__ import annotations

from kvfast.residency import ResidencyLog

from .arrays import grown, zeroed
from .event_log import EventLog
from .free_queue import FreeQueue
from .key_map import KeyMap
from .request import FastRequest


class BlockPool:
    """Flat arrays over all blocks; the methods trust their arguments.

    - `refs[b]`: references to block b.
    - `covered[b]`: hashes, from the start of the request, that the primary key of block b covers.
    - Only with partial entries: `more[b]`, the first additional entry of block b, `more_next` the
      one after it, `owner` the block of an additional entry; all count from `num_blocks`.
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
    ) -> None:
        self.num_blocks = num_blocks
        self.queue = FreeQueue(num_blocks)
        self.keys = KeyMap(num_blocks, width)
        self.events = events
        self.residency = residency
        self.unhashed_to_front = unhashed_to_front
        self.removed_per_copy = removed_per_copy
        self.refs = zeroed("i", num_blocks)
        self.covered = zeroed("i", num_blocks)
        self.has_partial = False
        self.more = zeroed("i", 0)
        self.more_next = zeroed("i", 0)
        self.owner = zeroed("i", 0)
        self.num_more = 0
        self.free_more = 0

    # Taking and giving back.

    def allocate(self) -> int:
        """Take the block in front of the free queue, which must not be empty (KV-POOL-3)."""
        block = self.queue.take()
        if self.keys.is_added(block):  # KV-POOL-4
            self.drop_keys(block)
        self.refs[block] = 1
        if self.residency is not None:
            self.residency.ended(block)
            self.residency.allocated(block)
        return block

    def touch(self, block: int) -> None:
        """Take a reference on a hit; a free block leaves the free queue (KV-POOL-5)."""
        if self.refs[block] == 0:
            self.queue.unlink(block)
        self.refs[block] += 1
        if self.residency is not None:
            self.residency.touched(block)

    def release(self, block: int, left: int) -> int:
        """Drop a reference in a release call (KV-POOL-6).

        `left` is where the run of blocks without a key, which this call puts in front, ends so far
        (0 at its start); the answer is where it ends now.
        """
        self.refs[block] -= 1
        if self.refs[block] > 0:
            return left
        if self.unhashed_to_front and not self.keys.is_added(block):
            self.queue.put_after(left, block)
            return block
        self.queue.put_last(block)
        return left

    # Cached identity.

    def register(
        self, block: int, request: FastRequest, number: int, group: int, num_hashes: int
    ) -> None:
        """Cache a block under hash `number` of a request, which covers `num_hashes` hashes.

        Keys that the block still has are of shorter partial entries and go first (KV-POOL-18).
        """
        if self.keys.is_added(block):
            self.drop_keys(block)
        self.keys.add(block, request, number, group)
        self.covered[block] = num_hashes

    def register_partial(self, block: int, request: FastRequest, number: int, group: int) -> bool:
        """Cache a block under a key that ends inside it; False if it has it (KV-PART-2)."""
        if self.has_key(block, request, number, group):
            return False
        if self.keys.is_added(block) and self.covered[block] <= number:
            self.drop_keys(block)  # KV-PART-3: a longer prefix replaces all keys
        if not self.keys.is_added(block):
            self.keys.add(block, request, number, group)
            self.covered[block] = number + 1
            return True
        entry = self.take_more(block)
        self.keys.add(entry, request, number, group)
        return True

    def is_cached(self, block: int) -> bool:
        """Whether the block carries any key."""
        return self.keys.is_added(block)

    def has_key(self, block: int, request: FastRequest, number: int, group: int) -> bool:
        """Whether the block carries the key of hash `number` of a request."""
        if not self.keys.is_added(block):
            return False
        if self.keys.carries(block, request, number, group):
            return True
        if self.has_partial:
            entry = self.more[block]
            while entry:
                if self.keys.carries(entry, request, number, group):
                    return True
                entry = self.more_next[entry - self.num_blocks]
        return False

    def block_of(self, entry: int) -> int:
        """The block that an entry belongs to; 0 for no entry."""
        if entry < self.num_blocks:
            return entry
        return self.owner[entry - self.num_blocks]

    def forget(self, block: int) -> None:
        """Drop the identity of a block wherever it is (KV-POOL-10)."""
        if self.residency is not None:
            self.residency.ended(block)
        if self.keys.is_added(block):
            self.drop_keys(block)

    def drop_keys(self, block: int) -> None:
        """Take all keys of the block out of the cache, an event for each (KV-EVT-4)."""
        self.drop(block)
        entry = 0
        if self.has_partial:
            entry = self.more[block]
            self.more[block] = 0
        while entry:
            self.drop(entry)
            after = self.more_next[entry - self.num_blocks]
            self.more_next[entry - self.num_blocks] = self.free_more
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
        if self.has_partial:
            self.more = zeroed("i", self.num_blocks)
            self.num_more = 0
            self.free_more = 0
        if self.residency is not None:
            self.residency.reset()
        if self.events is not None:
            self.events.cleared()

    # Additional entries.

    def take_more(self, block: int) -> int:
        """A new additional entry at the end of those of the block."""
        if not self.has_partial:
            self.has_partial = True
            self.more = zeroed("i", self.num_blocks)
        entry = self.free_more
        if entry:
            self.free_more = self.more_next[entry - self.num_blocks]
        else:
            if self.num_more == len(self.owner):
                room = max(64, 2 * self.num_more)
                self.owner = grown("i", self.owner, room)
                self.more_next = grown("i", self.more_next, room)
                self.keys.grow(self.num_blocks + room)
            entry = self.num_blocks + self.num_more
            self.num_more += 1
        self.owner[entry - self.num_blocks] = block
        self.more_next[entry - self.num_blocks] = 0
        last = self.more[block]
        if last == 0:
            self.more[block] = entry
            return entry
        while self.more_next[last - self.num_blocks]:
            last = self.more_next[last - self.num_blocks]
        self.more_next[last - self.num_blocks] = entry
        return entry

    def entries_of(self, block: int) -> list[int]:
        """The entries of a block, the primary one first."""
        if not self.keys.is_added(block):
            return []
        entries = [block]
        entry = self.more[block] if self.has_partial else 0
        while entry:
            entries.append(entry)
            entry = self.more_next[entry - self.num_blocks]
        return entries
