"""The cache map: from a key (block hash and group) to the blocks that carry it (KV-POOL-13).

An *entry* is one key of one block. Entry b < num_blocks is the primary key of block b; a block that
is also reachable at finer boundaries (KV-PART-2) owns further entries, from num_blocks on. All
facts about entries are flat arrays:

- `words`: the hash, as `width` 64-bit words; `groups`: the group.
- `dup_next`, `dup_prev`: a ring of the entries with the same key, in the order in which they were
  added; 0 for an entry that is not in the map (entry 0 would be the null block's).
- `slots`: open addressing with linear probing. A slot holds the low 32 bits of the key's mixed
  hash and the entry that was added first, 0 where it is empty. At least half of them are empty.

Deleting moves later entries of a run back, so no slot is ever marked as deleted.
"""

from __future__ import annotations

from .arrays import grown, zeroed
from .request import FastRequest

ENTRY_BITS = 31
ENTRY_MASK = (1 << 31) - 1
MIX_MASK = (1 << 32) - 1
RUN_BLOCKS = 32
GROUP_FACTOR = 0x9E3779B1
"""Odd, so that groups with one hash land in different places."""


class KeyMap:
    """Keys of the blocks of one pool. The methods trust their arguments."""

    def __init__(self, num_blocks: int, width: int) -> None:
        self.width = width
        self.num_blocks = num_blocks
        self.num_entries = num_blocks
        self.num_keys = 0
        self.words = zeroed("Q", num_blocks * width)
        self.groups = zeroed("i", num_blocks)
        self.dup_next = zeroed("i", num_blocks)
        self.dup_prev = zeroed("i", num_blocks)
        self.set_num_slots(num_blocks)

    def set_num_slots(self, num_entries: int) -> None:
        """An empty table in which half of the slots stay empty."""
        num_slots = 8
        while num_slots < 2 * num_entries:
            num_slots *= 2
        self.slot_mask = num_slots - 1
        self.slots = zeroed("q", num_slots)

    def clear(self) -> None:
        """Forget every key."""
        self.num_keys = 0
        self.slots = zeroed("q", self.slot_mask + 1)
        self.dup_next = zeroed("i", self.num_entries)
        self.dup_prev = zeroed("i", self.num_entries)

    def grow(self, num_entries: int) -> None:
        """Room for more entries, for additional keys; what is there keeps its order."""
        self.words = grown("Q", self.words, num_entries * self.width)
        self.groups = grown("i", self.groups, num_entries)
        self.dup_next = grown("i", self.dup_next, num_entries)
        self.dup_prev = grown("i", self.dup_prev, num_entries)
        self.num_entries = num_entries
        if self.slot_mask + 1 < 2 * num_entries:
            old = self.slots
            self.set_num_slots(num_entries)
            for slot in memoryview(old).tolist():
                if slot:
                    self.fill_slot(slot)

    # Looking up.

    def mix(self, word: int, group: int) -> int:
        """32 bits of a key whose hash begins with `word`: its home slot, and a first comparison."""
        return ((word >> 8) ^ (group * GROUP_FACTOR)) & MIX_MASK

    def find(self, request: FastRequest, number: int, group: int) -> int:
        """The entry added first under hash `number` of the request in a group; 0 if none."""
        at = number * self.width
        mixed = self.mix(request.digest_words[at], group)
        i = mixed & self.slot_mask
        while True:
            slot = self.slots[i]
            if slot == 0:
                return 0
            if slot >> ENTRY_BITS == mixed:
                entry = slot & ENTRY_MASK
                if self.carries(entry, request, number, group):
                    return entry
            i = (i + 1) & self.slot_mask

    def find_run(
        self,
        request: FastRequest,
        hashes_per_block: int,
        group: int,
        first: int,
        limit: int,
        out: memoryview[int],
        base: int,
    ) -> int:
        """The end of the run of blocks first … limit - 1 that are found; entries to out[base + i].

        For some blocks at a time first all home slots are read, then all hashes: a read of memory
        takes long, and these do not wait for each other.
        """
        per = hashes_per_block
        while first < limit:
            end = min(first + RUN_BLOCKS, limit)
            for i in range(first, end):
                word = request.digest_words[((i + 1) * per - 1) * self.width]
                out[base + i] = self.slots[self.mix(word, group) & self.slot_mask] & ENTRY_MASK
            for i in range(first, end):
                number = (i + 1) * per - 1
                entry = out[base + i]
                if entry == 0 or not self.carries(entry, request, number, group):
                    entry = self.find(request, number, group)
                    if entry == 0:
                        return i
                    out[base + i] = entry
            first = end
        return limit

    def carries(self, entry: int, request: FastRequest, number: int, group: int) -> bool:
        """Whether an entry has the key of hash `number` of the request in a group."""
        if self.groups[entry] != group:
            return False
        at = number * self.width
        mine = entry * self.width
        k = 0
        while k < self.width and self.words[mine + k] == request.digest_words[at + k]:
            k += 1
        return k == self.width

    def hash_of(self, entry: int) -> bytes:
        """The hash of an entry's key."""
        return bytes(self.words[entry * self.width : (entry + 1) * self.width])

    def group_of(self, entry: int) -> int:
        """The group of an entry's key."""
        return self.groups[entry]

    def is_added(self, entry: int) -> bool:
        """Whether the entry is in the map."""
        return self.dup_next[entry] != 0

    def heads(self) -> list[int]:
        """For every key the entry added first; in no order."""
        return [slot & ENTRY_MASK for slot in memoryview(self.slots).tolist() if slot]

    def ring_of(self, head: int) -> list[int]:
        """The entries with the same key as `head`, from it on."""
        ring = [head]
        entry = self.dup_next[head]
        while entry != head:
            ring.append(entry)
            entry = self.dup_next[entry]
        return ring

    # Changing.

    def add_hash(self, entry: int, block_hash: bytes, group: int, head: int) -> None:
        """`add` with a hash given as bytes, to the ring of `head` (0: the first with this key)."""
        for k, word in enumerate(memoryview(block_hash).cast("Q")):
            self.words[entry * self.width + k] = word
        self.groups[entry] = group
        self.link(entry, head)

    def add(self, entry: int, request: FastRequest, number: int, group: int) -> None:
        """Add an entry behind all with the same key; it must not be in the map."""
        head = self.find(request, number, group)
        self.groups[entry] = group
        at = number * self.width
        mine = entry * self.width
        for k in range(self.width):
            self.words[mine + k] = request.digest_words[at + k]
        self.link(entry, head)

    def link(self, entry: int, head: int) -> None:
        """Put an entry, whose key is written, at the end of the ring of `head` (0: a new ring)."""
        if head:
            last = self.dup_prev[head]
            self.dup_next[last] = entry
            self.dup_prev[entry] = last
            self.dup_next[entry] = head
            self.dup_prev[head] = entry
            return
        self.dup_next[entry] = entry
        self.dup_prev[entry] = entry
        self.num_keys += 1
        self.fill_slot((self.mixed_of(entry) << ENTRY_BITS) | entry)

    def mixed_of(self, entry: int) -> int:
        """`mix` of an entry's own key."""
        return self.mix(self.words[entry * self.width], self.groups[entry])

    def fill_slot(self, slot: int) -> None:
        """Write a slot at the first empty place from its home on."""
        i = (slot >> ENTRY_BITS) & self.slot_mask
        while self.slots[i] != 0:
            i = (i + 1) & self.slot_mask
        self.slots[i] = slot

    def remove(self, entry: int) -> bool:
        """Take an entry out of the map, which must have it; whether its key left with it."""
        mixed = self.mixed_of(entry)
        after = self.dup_next[entry]
        before = self.dup_prev[entry]
        self.dup_next[entry] = 0
        self.dup_prev[entry] = 0
        own_slot = (mixed << ENTRY_BITS) | entry
        if after == entry:
            self.empty_slot(own_slot)
            self.num_keys -= 1
            return True
        self.dup_next[before] = after
        self.dup_prev[after] = before
        # Only the first of a ring has a slot; the run of its home slot ends at an empty one.
        i = mixed & self.slot_mask
        while self.slots[i] != 0:
            if self.slots[i] == own_slot:
                self.slots[i] = (mixed << ENTRY_BITS) | after
                break
            i = (i + 1) & self.slot_mask
        return False

    def empty_slot(self, slot: int) -> None:
        """Empty the place of this slot; later ones of the run move back to where they are found."""
        i = (slot >> ENTRY_BITS) & self.slot_mask
        while self.slots[i] != slot:
            i = (i + 1) & self.slot_mask
        hole = i
        while True:
            i = (i + 1) & self.slot_mask
            moved = self.slots[i]
            if moved == 0:
                break
            home = (moved >> ENTRY_BITS) & self.slot_mask
            # It may move back unless its home lies behind the hole, between hole and place.
            if ((i - home) & self.slot_mask) >= ((i - hole) & self.slot_mask):
                self.slots[hole] = moved
                hole = i
        self.slots[hole] = 0
