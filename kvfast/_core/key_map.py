"""The cache map: from a key (block hash and group) to the blocks that carry it (KV-POOL-13).

An *entry* is one key of one block. Entry b < num_blocks is the primary key of block b; a block that
is also reachable at finer boundaries (KV-PART-2) owns further entries, from num_blocks on. What is
known of an entry stands in its record (see `record`): the key, and a ring of the entries with the
same key, in the order in which they were added.

`slots` is open addressing with linear probing. A slot holds 32 bits of the key's mixed hash and the
entry that was added first, 0 where it is empty. At least half of them are empty. Deleting moves
later entries of a run back, so no slot is ever marked as deleted.

A read of memory takes as long as some hundred instructions, but reads do not wait for each other:
the methods that work on a run of blocks read what they will need of the slots ahead.
"""

from __future__ import annotations

from . import record
from .arrays import grown, zeroed
from .request import FastRequest
from .tables import Tables

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
        self.ahead = 0
        self.lay_out(zeroed("i", record.INTS * num_blocks))
        self.set_num_slots(num_blocks)

    def lay_out(self, facts: memoryview[int]) -> None:
        """The records of all entries from now on."""
        self.facts = facts
        self.words: memoryview[int] = facts.cast("B").cast("Q")

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
        for entry in range(self.num_entries):
            # Written only where needed: a record that nobody used takes no memory yet.
            if self.is_added(entry):
                self.facts[record.INTS * entry + record.DUP_NEXT] = 0

    def grow(self, num_entries: int) -> None:
        """Room for more entries, for additional keys; what is there keeps its order."""
        self.lay_out(grown("i", self.facts, record.INTS * num_entries))
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

    def place_of(self, request: FastRequest, number: int, group: int) -> int:
        """The place of the key of hash `number` of the request: its slot, or an empty one."""
        mixed = self.mix(request.digest_words[number * self.width], group)
        i = mixed & self.slot_mask
        while True:
            slot = self.slots[i]
            if slot == 0:
                return i
            if slot >> ENTRY_BITS == mixed and self.carries(
                slot & ENTRY_MASK, request, number, group
            ):
                return i
            i = (i + 1) & self.slot_mask

    def find(self, request: FastRequest, number: int, group: int) -> int:
        """The entry added first under hash `number` of the request in a group; 0 if none."""
        return self.slots[self.place_of(request, number, group)] & ENTRY_MASK

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

        For some blocks at a time first all home slots are read, then all hashes.
        """
        per = hashes_per_block
        if first < limit:  # most look-ups that find nothing find nothing here
            entry = self.find(request, (first + 1) * per - 1, group)
            if entry == 0:
                return first
            out[base + first] = entry
            first += 1
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
        at = number * self.width
        mine = record.WORDS * entry
        different = self.words[mine] ^ request.digest_words[at]
        for k in range(1, self.width):
            different |= self.words[mine + k] ^ request.digest_words[at + k]
        return different == 0 and self.facts[record.INTS * entry + record.GROUP] == group

    def hash_of(self, entry: int) -> bytes:
        """The hash of an entry's key."""
        return bytes(self.words[record.WORDS * entry : record.WORDS * entry + self.width])

    def group_of(self, entry: int) -> int:
        """The group of an entry's key."""
        return self.facts[record.INTS * entry + record.GROUP]

    def is_added(self, entry: int) -> bool:
        """Whether the entry is in the map."""
        return self.facts[record.INTS * entry + record.DUP_NEXT] != 0

    def heads(self) -> list[int]:
        """For every key the entry added first; in no order."""
        return [slot & ENTRY_MASK for slot in memoryview(self.slots).tolist() if slot]

    def ring_of(self, head: int) -> list[int]:
        """The entries with the same key as `head`, from it on."""
        ring = [head]
        entry = self.next_of(head)
        while entry != head:
            ring.append(entry)
            entry = self.next_of(entry)
        return ring

    def next_of(self, entry: int) -> int:
        """The next of the entries with the same key."""
        return self.facts[record.INTS * entry + record.DUP_NEXT]

    def read_ahead(self, request: FastRequest, number: int) -> None:
        """Read the slot of hash `number`, if there is one, in the only group."""
        if number < request.num_hashes:
            word = request.digest_words[number * self.width]
            self.ahead ^= self.slots[self.mix(word, 0) & self.slot_mask]

    # Adding.

    def add_hash(self, entry: int, block_hash: bytes, group: int, head: int) -> None:
        """`add` with a hash given as bytes, to the ring of `head` (0: the first with this key)."""
        for k, word in enumerate(memoryview(block_hash).cast("Q")):
            self.words[record.WORDS * entry + k] = word
        self.facts[record.INTS * entry + record.GROUP] = group
        if head:
            self.join(entry, head)
            return
        self.join(entry, entry)
        self.num_keys += 1
        self.fill_slot(self.slot_of(entry))

    def add(self, entry: int, request: FastRequest, number: int, group: int) -> None:
        """Add an entry behind all with the same key; it must not be in the map."""
        place = self.place_of(request, number, group)
        at = number * self.width
        mine = record.WORDS * entry
        for k in range(self.width):
            self.words[mine + k] = request.digest_words[at + k]
        facts = record.INTS * entry
        self.facts[facts + record.GROUP] = group
        if self.slots[place]:
            self.join(entry, self.slots[place] & ENTRY_MASK)
        else:
            self.facts[facts + record.DUP_NEXT] = entry
            self.facts[facts + record.DUP_PREV] = entry
            self.num_keys += 1
            mixed = self.mix(self.words[mine], group)
            self.slots[place] = (mixed << ENTRY_BITS) | entry

    def add_run(
        self,
        tables: Tables,
        start: int,
        first: int,
        end: int,
        request: FastRequest,
        hashes_per_block: int,
        group: int,
    ) -> int:
        """Add blocks first … end - 1 of a list that begins at `start`; null has no key.

        Ends before a block that is in the map already; the answer is where it ended.
        """
        per = hashes_per_block
        while first < end:
            until = min(first + RUN_BLOCKS, end)
            for i in range(first, until):
                word = request.digest_words[((i + 1) * per - 1) * self.width]
                self.ahead ^= self.slots[self.mix(word, group) & self.slot_mask]
            for i in range(first, until):
                block = tables.arena[start + i]
                if block:
                    if self.is_added(block):
                        return i
                    self.add(block, request, (i + 1) * per - 1, group)
                    self.facts[record.INTS * block + record.COVERED] = (i + 1) * per
            first = until
        return end

    def join(self, entry: int, head: int) -> None:
        """Put an entry at the end of the ring of `head`; its own head: a ring of one."""
        mine = record.INTS * entry
        first = record.INTS * head
        last = head
        if entry != head:
            last = self.facts[first + record.DUP_PREV]
        self.facts[record.INTS * last + record.DUP_NEXT] = entry
        self.facts[mine + record.DUP_PREV] = last
        self.facts[mine + record.DUP_NEXT] = head
        self.facts[first + record.DUP_PREV] = entry

    def slot_of(self, entry: int) -> int:
        """The slot of an entry that is the first of its ring."""
        word = self.words[record.WORDS * entry]
        mixed = self.mix(word, self.facts[record.INTS * entry + record.GROUP])
        return (mixed << ENTRY_BITS) | entry

    def fill_slot(self, slot: int) -> None:
        """Write a slot at the first empty place from its home on."""
        i = (slot >> ENTRY_BITS) & self.slot_mask
        while self.slots[i] != 0:
            i = (i + 1) & self.slot_mask
        self.slots[i] = slot

    # Removing.

    def remove(self, entry: int) -> bool:
        """Take an entry out of the map, which must have it; whether its key left with it."""
        mine = record.INTS * entry
        after = self.facts[mine + record.DUP_NEXT]
        before = self.facts[mine + record.DUP_PREV]
        own_slot = self.slot_of(entry)
        self.facts[mine + record.DUP_NEXT] = 0
        self.facts[mine + record.DUP_PREV] = 0
        if after == entry:
            self.empty_slot(own_slot)
            self.num_keys -= 1
            return True
        self.facts[record.INTS * before + record.DUP_NEXT] = after
        self.facts[record.INTS * after + record.DUP_PREV] = before
        # Only the first of a ring has a slot; the run of its home slot ends at an empty one.
        i = (own_slot >> ENTRY_BITS) & self.slot_mask
        while self.slots[i] != 0:
            if self.slots[i] == own_slot:
                self.slots[i] = own_slot - entry + after
                break
            i = (i + 1) & self.slot_mask
        return False

    def remove_run(self, tables: Tables, start: int, end: int) -> None:
        """Take the blocks at these places of the lists out of the map, those that are in it."""
        while start < end:
            until = min(start + RUN_BLOCKS, end)
            for i in range(start, until):
                home = self.slot_of(tables.arena[i]) >> ENTRY_BITS
                self.ahead ^= self.slots[home & self.slot_mask]
            for i in range(start, until):
                block = tables.arena[i]
                if self.is_added(block):
                    self.remove(block)
            start = until

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
