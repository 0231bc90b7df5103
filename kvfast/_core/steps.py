"""Steps over registered requests: what may be done, and doing it (KV-BATCH-*).

The same as the manager's single calls one after another, without a Python call for each request.
"""

from __future__ import annotations

from array import array

from kvspec.request import RequestStatus

from .manager import FastManager
from .registry import Numbers
from .request import FastRequest
from .under_way import UnderWay

WAITING = RequestStatus.WAITING
RUNNING = RequestStatus.RUNNING
PREEMPTED = RequestStatus.PREEMPTED
MANY = 1 << 62  # as in under_way


class Steps(UnderWay):
    """One step at a time; see `UnderWay` for the order of its entries.

    - `scheduled`: what those under way and the new ones were granted. `hits`: what was cached of
      the new ones.
    - `rows` and `slots`: where block deltas and slots are written to; not the caller's memory
      between two calls. `rows_left`: how many did not fit.
    """

    def __init__(self, manager: FastManager) -> None:
        super().__init__(manager)
        self.zero = array("q", [0])
        self.no_rows = memoryview(bytearray(16)).cast("i", [1, 4])
        self.rows = self.no_rows
        self.rows_left = 0
        self.has_rows = False
        self.no_slots: list[memoryview | None] = []
        self.slots = self.no_slots
        self.end_finished = 0
        self.budget = self.reserved = 0
        self.whole_must_fit = self.stops_at_refusal = False
        self.scheduled: array[int] = array("q")
        self.hits: array[int] = array("q")

    # Legality.

    def all_legal(self) -> bool:
        """Whether every entry may be done (KV-BATCH-2); if not, nothing is changed."""
        self.make_room_for_entries()
        try:
            legal = self.are_under_way() and self.are_others_legal()
        except BaseException:  # a status can be anything, and is compared
            self.undo()
            raise
        if not legal:
            self.undo()
        return legal

    def are_others_legal(self) -> bool:
        """Whether preempted and new entries may be done."""
        for i in range(self.end_finished, self.end_preempted):
            if self.request_at(i).preemptions < 0:
                return False
        for i in range(self.end_under_way, self.size):  # noqa: SIM110  # a loop becomes C
            if not self.may_start(self.request_at(i)):
                return False
        return True

    def may_start(self, request: FastRequest) -> bool:
        """Whether a request holds nothing, and every token could have a slot (KV-BATCH-7)."""
        core = self.core
        if request.computed_now() != 0 or not self.is_scheduled(request):
            return False
        if request.num_tokens > core.max_len:
            return False
        return not core.allocator.holds_blocks(core.row_of(request))

    def most_slots(self) -> int:
        """The most tokens that the step may schedule (KV-BATCH-9)."""
        certain = wanted = 0
        for i in range(self.end_preempted, self.end_under_way):
            certain = min(certain + self.counts[i], MANY)
        for i in range(self.end_under_way, self.size):
            wanted = min(wanted + min(self.counts[i], self.request_at(i).num_tokens), MANY)
        return certain + min(max(0, self.budget - certain), wanted)

    # What is done.

    def perform(self) -> None:
        """Do all entries in order."""
        self.scheduled = self.zero * (self.size - self.end_preempted)
        self.hits = self.zero * (self.size - self.end_under_way)
        for i in range(self.end_preempted):
            self.give_back(i)
        self.granted = 0
        self.continue_all()
        if self.size > self.end_under_way:
            self.start_all(self.hits)
        if self.size > self.end_preempted:
            self.write_granted(self.scheduled)

    def give_back(self, i: int) -> None:
        """Release everything; the request starts anew (KV-BATCH-5)."""
        request = self.request_at(i)
        row = self.core.forget_row(request)
        if row >= 0:
            self.core.allocator.free(row)
            self.core.tables.give_row(row)
        request.set_computed(0)
        if i >= self.end_finished:
            request.preemptions += 1
            request.set_status(PREEMPTED)
        else:
            request.set_status(WAITING)
        self.nothing_reported(self.handles[i])

    def start_all(self, hits: Numbers) -> None:
        """New requests (KV-BATCH-7), within what the others left of the budget (KV-BATCH-8)."""
        budget = max(0, self.budget - self.granted)
        is_beside_others = self.granted > 0
        first = self.end_under_way
        for i in range(first, self.size):
            self.granted_at[i] = 0
        for i in range(first, self.size):
            if budget == 0:
                break
            request = self.request_at(i)
            hit = self.find_hit(request)
            self.count_hit(request, hit)
            num_tokens = min(min(self.counts[i], budget), request.num_tokens - hit)
            if self.start(request, hit, num_tokens, is_beside_others):
                self.row_at[i] = self.core.row_of(request)
                self.note_row(self.handles[i], self.row_at[i])
                self.after_at[i] = hit + num_tokens
                self.nothing_reported(self.handles[i])
                hits[i - first] = hit
                self.granted_at[i] = num_tokens
                budget -= num_tokens
                self.granted += num_tokens
                is_beside_others = True
            elif self.stops_at_refusal:
                break

    def find_hit(self, request: FastRequest) -> int:
        """The hit length in tokens; its blocks stand in the look-up (KV-MGR-2)."""
        core = self.core
        if not self.caches or request.input.skip_reading_cache:
            core.lookup.clear()
            return 0
        tokens = core.lookup.longest_hit(request, request.num_tokens - 1)
        if tokens == 0:
            core.lookup.clear()
        return tokens

    def count_hit(self, request: FastRequest, tokens: int) -> None:
        """Count the look-up, if there was one (KV-STAT-1)."""
        if self.caches and self.core.log_stats and not request.input.skip_reading_cache:
            self.core.count_look_up(request, tokens)

    def start(
        self, request: FastRequest, hit: int, num_tokens: int, is_beside_others: bool
    ) -> bool:
        """Admit a request with the hit just found; False where there is no room."""
        core = self.core
        row = core.place(
            core.row_of(request), request, num_tokens, self.lookahead, hit, 0, hit, 0, hit > 0,
            self.whole_must_fit, self.reserved,
            core.watermark_for(request) if is_beside_others else 0,
        )  # fmt: skip
        if row < 0:
            return False
        self.cache_until(row, request, hit + num_tokens)
        request.set_status(RUNNING)
        return True

    # What is told.

    def write_granted(self, scheduled: Numbers) -> None:
        """What each entry under way and each new one was granted."""
        for i in range(self.end_preempted, self.size):
            scheduled[i - self.end_preempted] = self.granted_at[i]

    def write_slots(self, g: int, slots: memoryview[int]) -> None:
        """The slot of every granted token in one group (KV-BATCH-9)."""
        tables = self.core.tables
        size = self.core.shape.block_size[g]
        to = 0
        for i in range(self.end_preempted, self.size):
            num_tokens = self.granted_at[i]
            if num_tokens == 0:
                continue
            start = tables.start[self.row_at[i] * self.num_groups + g]
            position = self.after_at[i] - num_tokens
            while position < self.after_at[i]:
                index = position // size
                first = tables.arena[start + index] * size
                offset = position - index * size
                end = min(size, offset + self.after_at[i] - position)
                for k in range(offset, end):
                    slots[to] = first + k
                    to += 1
                position += end - offset

    def write_rows(self) -> int:
        """The new entries of what was granted something, as many rows as fit; how many.

        `rows_left` is how many did not fit.
        """
        tables = self.core.tables
        at = 0
        self.rows_left = 0
        for i in range(self.end_preempted, self.size):
            if self.granted_at[i] == 0:
                continue
            # Mostly there is nothing to tell; with one group no call is needed to see it.
            if (
                self.num_groups == 1
                and tables.length[self.row_at[i]] <= self.reported[self.handles[i]]
            ):
                continue
            untold = self.rows_to_tell(self.handles[i], self.row_at[i])
            if untold:
                end = self.report(self.handles[i], self.row_at[i], at)
                self.rows_left += untold - (end - at)
                at = end
        return at

    def report(self, handle: int, row: int, at: int) -> int:
        """One request's entries that nobody was told of, behind `at` rows (KV-BATCH-10)."""
        tables = self.core.tables
        room = len(self.rows)
        for g in range(self.num_groups if row >= 0 else 0):
            told = self.reported[handle * self.num_groups + g]
            length = tables.length[row * self.num_groups + g]
            start = tables.start[row * self.num_groups + g]
            while told < length and at < room:
                self.rows[at, 0] = handle
                self.rows[at, 1] = g
                self.rows[at, 2] = told
                self.rows[at, 3] = tables.arena[start + told]
                told += 1
                at += 1
            self.reported[handle * self.num_groups + g] = told
        return at
