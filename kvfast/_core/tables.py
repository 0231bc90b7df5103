"""Block lists: for every request (a row) and group, which blocks hold its tokens (KV-GRP-1).

All lists are in one flat array, the arena, each in a place of 2^k entries. A list that outgrows its
place moves to one twice as large; freed places are kept by size and reused. The facts about the
list of row r in group g are at `at = r * num_groups + g`:

- `start`, `room`, `length`: its place in the arena, its capacity, its number of entries.
- `cached`: 1 + the number of leading blocks that were cached; 0 without an entry.
- `passed`: leading entries that are known to be null, so that they are not examined again; of R-SWA
  those up to the end of the gap (KV-RSWA-1).
- `allocated`: 1 once an align-mode Mamba group took new blocks for the row (KV-MAMBA-6).

`serial[row]` is a number that is unique to each use of a row; 0 while the row is free. It shows a
holder of the row whether it still belongs to the same request.
"""

from __future__ import annotations

from . import objects
from .arrays import grown, zeroed

SMALLEST_PLACE = 4
NUM_SIZES = 32
LINK_BASE = 1 << 31
"""A link takes two entries of 31 bits."""


class Tables:
    """The lists of all rows. The methods trust their arguments."""

    def __init__(self, num_groups: int) -> None:
        self.num_groups = num_groups
        self.num_rows = 0
        self.max_rows = 8
        per_list = self.max_rows * num_groups
        self.start = zeroed("q", per_list)
        self.room = zeroed("q", per_list)
        self.length = zeroed("i", per_list)
        self.cached = zeroed("i", per_list)
        self.passed = zeroed("i", per_list)
        self.allocated = zeroed("i", per_list)
        self.serial = zeroed("q", self.max_rows)
        self.last_serial = 0
        self.free_row = zeroed("i", self.max_rows)
        self.first_free_row = -1
        self.arena = zeroed("i", 256)
        self.arena_end = 0
        self.places = zeroed("q", NUM_SIZES)
        self.num_nonempty = zeroed("i", num_groups)

    # Rows.

    def is_null(self, at: int, index: int) -> bool:
        """Return whether list `at` has this entry, and it is null."""
        return 0 <= index < self.length[at] and self.arena[self.start[at] + index] == 0

    def take_row(self) -> int:
        """Take a row without any list."""
        row = self.first_free_row
        if row >= 0:
            self.first_free_row = self.free_row[row] - 1
        else:
            if self.num_rows == self.max_rows:
                self.grow_rows()
            row = self.num_rows
            self.num_rows += 1
        self.last_serial += 1
        self.serial[row] = self.last_serial
        return row

    def grow_rows(self) -> None:
        """Make room for twice as many rows."""
        self.max_rows *= 2
        per_list = self.max_rows * self.num_groups
        self.start = grown("q", self.start, per_list)
        self.room = grown("q", self.room, per_list)
        self.length = grown("i", self.length, per_list)
        self.cached = grown("i", self.cached, per_list)
        self.passed = grown("i", self.passed, per_list)
        self.allocated = grown("i", self.allocated, per_list)
        self.serial = grown("q", self.serial, self.max_rows)
        self.free_row = grown("i", self.free_row, self.max_rows)

    def clear_row(self, row: int) -> None:
        """Forget the lists of a row; the row stays taken."""
        for group in range(self.num_groups):
            at = row * self.num_groups + group
            if self.length[at] > 0:
                self.num_nonempty[group] -= 1
            if self.room[at] > 0:
                self.give_place(self.start[at], self.room[at])
            self.room[at] = 0
            self.length[at] = 0
            self.cached[at] = 0
            self.passed[at] = 0
            self.allocated[at] = 0

    def give_row(self, row: int) -> None:
        """Give back a row, which must be clear."""
        self.serial[row] = 0
        self.free_row[row] = self.first_free_row + 1
        self.first_free_row = row

    # Lists.

    def append(self, at: int, block: int) -> None:
        """Append a block to the list; there must be room."""
        self.arena[self.start[at] + self.length[at]] = block
        self.length[at] += 1

    def make_room(self, at: int, group: int, num_blocks: int) -> None:
        """Let the list have room for `num_blocks` in all, and count it as one that is not empty.

        The caller fills it up to more than nothing.
        """
        if self.length[at] == 0 and num_blocks > 0:
            self.num_nonempty[group] += 1
        if num_blocks > self.room[at]:
            self.move(at, num_blocks)

    def move(self, at: int, num_blocks: int) -> None:
        """Take the list to a place with room for `num_blocks`."""
        if num_blocks >= LINK_BASE:
            raise MemoryError(f"a list of {num_blocks} blocks")
        room = SMALLEST_PLACE
        while room < num_blocks:
            room *= 2
        place = self.take_place(room)
        start = self.start[at]
        for i in range(self.length[at]):
            self.arena[place + i] = self.arena[start + i]
        if self.room[at] > 0:
            self.give_place(start, self.room[at])
        self.start[at] = place
        self.room[at] = room

    def size_of(self, room: int) -> int:
        """Return the number of a place size: 0 for the smallest."""
        size = 0
        while SMALLEST_PLACE << size < room:
            size += 1
        return size

    def take_place(self, room: int) -> int:
        """Take a place of this room (a power of 2); returns its start."""
        size = self.size_of(room)
        place = self.places[size] - 1
        if place >= 0:
            self.places[size] = self.link_of(place)
            objects.fetch_int(self.arena, max(self.places[size] - 1, 0))
            return place
        place = self.arena_end
        if place + room > len(self.arena):
            self.arena = grown("i", self.arena, max(2 * len(self.arena), place + room))
        self.arena_end = place + room
        return place

    def give_place(self, place: int, room: int) -> None:
        """Keep a place for a later list of its size. Its first two entries link to the next."""
        size = self.size_of(room)
        link = self.places[size]
        self.arena[place] = link % LINK_BASE
        self.arena[place + 1] = link // LINK_BASE
        self.places[size] = place + 1

    def link_of(self, place: int) -> int:
        """Return 1 + the next kept place of the same size, 0 at the end."""
        low: int = self.arena[place]
        high: int = self.arena[place + 1]
        return high * LINK_BASE + low

    def to_list(self, at: int) -> list[int]:
        """Return the blocks of a list."""
        start = self.start[at]
        return [self.arena[start + i] for i in range(self.length[at])]
