"""The cache map: from a key (block hash and group) to the blocks that carry it (KV-POOL-13).

An *entry* is one key of one block. Entry b < num_blocks is the primary key of block b; a block that
is also reachable at finer boundaries (KV-PART-2) owns further entries, from num_blocks on. An
entry's record (see `record`) holds the key, and a ring of the entries with the same key, in the
order in which they were added.

`slots` is open addressing. A slot holds the entry that was added first under a key, some bits of
the key's hash, and how many steps it is from its home; 0 where it is empty. At least half of them
are empty. Deleting moves later slots back, so none is ever marked as deleted.

An uncached memory read takes as long as some hundred instructions. So the homes of eight
consecutive blocks of a request are side by side, in one cache line: they follow from the hash of
the first of the eight. Hashes are chained, so a caller with the hash of a block also has that of
the block before. A key that is added alone, by a snapshot, has its home by its own hash: it is a
*stray*, which is searched for only if there may be some.
"""

from __future__ import annotations

from . import objects, probing, record
from .arrays import grown, zeroed
from .request import FastRequest
from .tables import Tables

MIX_MASK = (1 << 32) - 1
GROUP_FACTOR = 0x9E3779B1
"""Odd, so that groups with one hash land in different places."""


class KeyMap:
    """Keys of the blocks of one pool. The methods trust their arguments."""

    def __init__(self, num_blocks: int, width: int) -> None:
        self.width = width
        self.num_blocks = num_blocks
        self.num_entries = num_blocks
        self.has_strays = False
        self.homes = zeroed("q", probing.RUN_BLOCKS)
        self.lay_out(zeroed("i", record.INTS * num_blocks))
        self.set_num_slots(num_blocks)

    def lay_out(self, facts: memoryview[int]) -> None:
        """Use these records for all entries from now on."""
        self.facts = facts
        self.words: memoryview[int] = facts.cast("B").cast("Q")

    def set_num_slots(self, num_entries: int) -> None:
        """Make an empty table in which half of the slots stay empty."""
        num_slots = 8
        while num_slots < 2 * num_entries:
            num_slots *= 2
        self.slot_mask = num_slots - 1
        self.slots = zeroed("q", num_slots)

    def clear(self) -> None:
        """Forget every key."""
        self.has_strays = False
        self.slots = zeroed("q", self.slot_mask + 1)
        for entry in range(self.num_entries):
            # Written only where needed: an unused record takes no memory yet.
            if self.is_added(entry):
                self.facts[record.INTS * entry + record.DUP_NEXT] = 0

    def grow(self, num_entries: int) -> None:
        """Make room for more entries, for additional keys, and keep the order of those present."""
        self.lay_out(grown("i", self.facts, record.INTS * num_entries))
        self.num_entries = num_entries
        if self.slot_mask + 1 < 2 * num_entries:
            old = self.slots
            self.set_num_slots(num_entries)
            for slot in memoryview(old).tolist():
                if slot:
                    self.fill_slot(slot & probing.ENTRY_MASK)

    # Looking up.

    def mix(self, word: int, group: int) -> int:
        """Return 32 bits of a hash that begins with `word`, in a group."""
        return ((word >> 8) ^ (group * GROUP_FACTOR)) & MIX_MASK

    def home_of(self, request: FastRequest, number: int, group: int) -> int:
        """Return the home of the slot of hash `number` of the request."""
        place = number & probing.SIDE_MASK
        mixed = self.mix(request.digest_words[(number - place) * self.width], group)
        return self.home_in(mixed, place)

    def home_in(self, mixed: int, place: int) -> int:
        """Return the home of a block at this place of a line, by the line's first hash."""
        # Turned by some bits, or the first places of all lines would be the fullest.
        turned = (place + (mixed >> 29)) & probing.SIDE_MASK
        return ((mixed * (probing.SIDE_MASK + 1)) | turned) & probing.HOME_MASK

    def find_homes(
        self, request: FastRequest, hashes_per_block: int, group: int, first: int, end: int
    ) -> None:
        """Compute the homes of blocks first … end - 1, at most RUN_BLOCKS, and fetch them."""
        words, homes = request.digest_words, objects.longs_of(self.homes)
        width, has_strays, count = self.width, self.has_strays, end - first
        number, i = (first + 1) * hashes_per_block - 1, 0
        while i < count:  # line by line: a line uses the hash of its first block
            line = number - (number & probing.SIDE_MASK)
            mixed = self.mix(words[line * width], group)
            self.fetch_slots(self.home_in(mixed, number - line))
            while i < count and number - line <= probing.SIDE_MASK:
                homes[i] = self.home_in(mixed, number - line)
                objects.fetch_at(request.digest_words, number * width)
                if has_strays:
                    self.fetch_slots(self.stray_home(words[number * width], group))
                number += hashes_per_block
                i += 1

    def fetch_slots(self, home: int) -> None:
        """Fetch the slot at home and the next one."""
        objects.fetch_long(self.slots, home & self.slot_mask)
        objects.fetch_long(self.slots, (home + probing.STEP) & self.slot_mask)

    def likely_entry(self, home: int, word: int, group: int) -> int:
        """Return the entry in the key's home slot (or stray slot), usually the one sought."""
        slot = self.slots[home & self.slot_mask]
        if self.has_strays and slot >> probing.TAG_SHIFT != word >> probing.TAG_OF_WORD_SHIFT:
            slot = self.slots[self.stray_home(word, group) & self.slot_mask]
        return slot & probing.ENTRY_MASK

    def stray_home(self, word: int, group: int) -> int:
        """Return the home of a key whose predecessors are not known."""
        return self.mix(word >> 24, group) & probing.HOME_MASK

    def steps_between(self, start: int, end: int) -> int:
        """Count the steps from one place to the other."""
        return ((end - start) * probing.STEP_INVERSE) & self.slot_mask

    def place_from(self, home: int, request: FastRequest, number: int, group: int) -> int:
        """Return the place of the slot of a key with this home, or of an empty slot."""
        tag = request.digest_words[number * self.width] >> probing.TAG_OF_WORD_SHIFT
        i = home & self.slot_mask
        while True:
            slot = self.slots[i]
            if slot == 0:
                return i
            entry = slot & probing.ENTRY_MASK
            if slot >> probing.TAG_SHIFT == tag and self.carries(entry, request, number, group):
                return i
            i = (i + probing.STEP) & self.slot_mask

    def find(self, request: FastRequest, number: int, group: int) -> int:
        """Return the entry added first under hash `number` of the request in a group; 0 if none."""
        home = self.home_of(request, number, group)
        entry = self.slots[self.place_from(home, request, number, group)] & probing.ENTRY_MASK
        if entry == 0 and self.has_strays:
            home = self.stray_home(request.digest_words[number * self.width], group)
            entry = self.slots[self.place_from(home, request, number, group)] & probing.ENTRY_MASK
        return entry

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
        """Find a run of blocks first … limit - 1 into out[base:]; returns its end."""
        per = hashes_per_block
        if first < limit:  # most look-ups that find nothing find nothing here
            entry = self.find(request, (first + 1) * per - 1, group)
            if entry == 0:
                return first
            out[base + first] = entry
            first += 1
        while first < limit:
            end = min(first + probing.RUN_BLOCKS, limit)
            self.find_homes(request, per, group, first, end)
            for i in range(first, end):
                word = request.digest_words[((i + 1) * per - 1) * self.width]
                entry = self.likely_entry(self.homes[i - first], word, group)
                objects.fetch_int(self.facts, record.INTS * entry)
                out[base + i] = entry
            for i in range(first, end):
                number = (i + 1) * per - 1
                entry = out[base + i]
                if entry == 0 or not self.carries(entry, request, number, group):
                    out[base + i] = entry = self.find(request, number, group)
                    if entry == 0:
                        return i
            first = end
        return limit

    def carries(self, entry: int, request: FastRequest, number: int, group: int) -> bool:
        """Return whether an entry has the key of hash `number` of the request in a group."""
        at = number * self.width
        mine = record.WORDS * entry
        different = self.words[mine] ^ request.digest_words[at]
        for k in range(1, self.width):
            different |= self.words[mine + k] ^ request.digest_words[at + k]
        return different == 0 and self.facts[record.INTS * entry + record.GROUP] == group

    def hash_of(self, entry: int) -> bytes:
        """Return the hash of an entry's key."""
        return bytes(self.words[record.WORDS * entry : record.WORDS * entry + self.width])

    def group_of(self, entry: int) -> int:
        """Return the group of an entry's key."""
        return self.facts[record.INTS * entry + record.GROUP]

    def is_added(self, entry: int) -> bool:
        """Return whether the entry is in the map."""
        return self.facts[record.INTS * entry + record.DUP_NEXT] != 0

    def slot_of(self, entry: int) -> int:
        """Return the place of the slot of an entry in the map; an empty one if another is first."""
        i = self.facts[record.INTS * entry + record.HOME] & self.slot_mask
        while self.slots[i] != 0 and self.slots[i] & probing.ENTRY_MASK != entry:
            i = (i + probing.STEP) & self.slot_mask
        return i

    def read_ahead(self, request: FastRequest, number: int) -> int:
        """Fetch the home of hash `number` in the only group, and the next slot; -1: no such
        hash.
        """
        if number >= request.num_hashes:
            return -1
        home = self.home_of(request, number, 0)
        self.fetch_slots(home)
        return home

    # Adding.

    def add_words(self, entry: int, words: memoryview[int], at: int, group: int, head: int) -> None:
        """Add with a hash at words[at], to the ring of `head` (0: the first with this key)."""
        objects.copy_words(self.words, record.WORDS * entry, words, at, self.width)
        self.facts[record.INTS * entry + record.GROUP] = group
        if head:
            self.join(entry, head)
        else:
            self.has_strays = True
            self.facts[record.INTS * entry + record.HOME] = self.stray_home(words[at], group)
            self.make_ring(entry)
            self.fill_slot(entry)

    def add(self, entry: int, request: FastRequest, number: int, group: int) -> None:
        """Add an entry after all with the same key; it must not be in the map."""
        self.add_at(self.home_of(request, number, group), entry, request, number, group)

    def add_at(self, home: int, entry: int, request: FastRequest, number: int, group: int) -> None:
        """Add a key whose home is known."""
        place = home & self.slot_mask
        if self.slots[place] or self.has_strays:
            self.add_beside(home, entry, request, number, group)
        else:  # its home is empty, so the key is not in the map
            self.write_key(entry, request, number, group)
            self.facts[record.INTS * entry + record.HOME] = home
            self.make_ring(entry)
            tag = self.words[record.WORDS * entry] >> probing.TAG_OF_WORD_SHIFT
            self.slots[place] = (tag << probing.TAG_SHIFT) | entry

    def add_beside(
        self, home: int, entry: int, request: FastRequest, number: int, group: int
    ) -> None:
        """Add as `add_at` does where other entries are in the way, or have the key."""
        place = self.place_from(home, request, number, group)
        head = self.slots[place] & probing.ENTRY_MASK
        if head == 0 and self.has_strays:
            head = self.find(request, number, group)
        self.write_key(entry, request, number, group)
        if head:
            self.join(entry, head)
        else:
            self.facts[record.INTS * entry + record.HOME] = home
            self.make_ring(entry)
            self.put_slot(entry, place, home)

    def write_key(self, entry: int, request: FastRequest, number: int, group: int) -> None:
        """Write hash `number` of the request and the group to the record of an entry."""
        at, mine = number * self.width, record.WORDS * entry
        objects.take_words(self.words, mine, request.digest_words, at, self.width)
        self.facts[record.INTS * entry + record.GROUP] = group

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

        Ends before a block that is already in the map; returns where it ended.
        """
        per, homes = hashes_per_block, objects.longs_of(self.homes)
        facts, arena = objects.ints_of(self.facts), objects.ints_of(tables.arena)
        while first < end:
            until = min(first + probing.RUN_BLOCKS, end)
            self.find_homes(request, per, group, first, until)
            for i in range(first, until):
                block = arena[start + i]
                if block:
                    if facts[record.INTS * block + record.DUP_NEXT]:
                        return i
                    self.add_at(homes[i - first], block, request, (i + 1) * per - 1, group)
                    facts[record.INTS * block + record.COVERED] = (i + 1) * per
            first = until
        return end

    def make_ring(self, entry: int) -> None:
        """Make a ring of one: the first entry of its key."""
        mine = record.INTS * entry
        self.facts[mine + record.DUP_NEXT] = self.facts[mine + record.DUP_PREV] = entry

    def join(self, entry: int, head: int) -> None:
        """Put an entry at the end of the ring of `head`."""
        mine, first = record.INTS * entry, record.INTS * head
        last = self.facts[first + record.DUP_PREV]
        self.facts[record.INTS * last + record.DUP_NEXT] = entry
        self.facts[mine + record.DUP_PREV] = last
        self.facts[mine + record.DUP_NEXT] = head
        self.facts[first + record.DUP_PREV] = entry
        self.facts[mine + record.HOME] = self.facts[first + record.HOME]

    def put_slot(self, entry: int, place: int, home: int) -> None:
        """Write the slot of the first entry of a key to an empty place."""
        steps = min(self.steps_between(home, place), probing.STEPS_MASK)
        tag = self.words[record.WORDS * entry] >> probing.TAG_OF_WORD_SHIFT
        self.slots[place] = (tag << probing.TAG_SHIFT) | (steps << probing.STEPS_SHIFT) | entry

    def fill_slot(self, entry: int) -> None:
        """Put a slot at the first empty place from its home on."""
        home = self.facts[record.INTS * entry + record.HOME]
        i = home & self.slot_mask
        while self.slots[i] != 0:
            i = (i + probing.STEP) & self.slot_mask
        self.put_slot(entry, i, home)

    # Removing.

    def remove(self, entry: int) -> bool:
        """Remove an entry, which must be in the map; return whether its key left with it."""
        mine = record.INTS * entry
        after, before = self.facts[mine + record.DUP_NEXT], self.facts[mine + record.DUP_PREV]
        self.facts[mine + record.DUP_NEXT] = self.facts[mine + record.DUP_PREV] = 0
        i = self.slot_of(entry)
        if after == entry:
            self.empty_slot(i)
            return True
        self.facts[record.INTS * before + record.DUP_NEXT] = after
        self.facts[record.INTS * after + record.DUP_PREV] = before
        if self.slots[i] != 0:
            self.slots[i] += after - entry
        return False

    def remove_run(self, tables: Tables, start: int, end: int) -> None:
        """Remove the blocks at these places of the lists from the map, if they are in it.

        Their slots were fetched when they were taken.
        """
        facts, arena = objects.ints_of(self.facts), objects.ints_of(tables.arena)
        slots, mask = objects.longs_of(self.slots), self.slot_mask
        for i in range(start, end):
            block = arena[i]
            mine = record.INTS * block
            after = facts[mine + record.DUP_NEXT]
            place = facts[mine + record.HOME] & mask
            if after == block and slots[place] & probing.ENTRY_MASK == block:  # most
                facts[mine + record.DUP_NEXT] = facts[mine + record.DUP_PREV] = 0
                if slots[(place + probing.STEP) & mask] == 0:
                    slots[place] = 0
                else:
                    self.empty_slot(place)
            elif after:
                self.remove(block)

    def empty_slot(self, hole: int) -> None:
        """Empty a place; slots displaced by it move back."""
        i, back = hole, 0
        while True:
            i = (i + probing.STEP) & self.slot_mask
            back += 1
            moved = self.slots[i]
            if moved == 0:
                break
            steps = (moved >> probing.STEPS_SHIFT) & probing.STEPS_MASK
            entry = moved & probing.ENTRY_MASK
            home = -1
            if steps == probing.STEPS_MASK:  # or more
                home = self.facts[record.INTS * entry + record.HOME]
                steps = self.steps_between(home, i)
            # It may move back unless its home is between the hole and its place.
            if steps < back:
                continue
            if home < 0:
                self.slots[hole] = moved - (back << probing.STEPS_SHIFT)
            else:
                self.put_slot(entry, hole, home)
            hole, back = i, 0
        self.slots[hole] = 0
