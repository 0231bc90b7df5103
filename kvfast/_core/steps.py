"""Steps over registered requests: what may be done, and doing it (KV-BATCH-*).

The same as the manager's single calls one after another, without a Python call for each request.
"""

from __future__ import annotations

from array import array
from typing import TypeAlias

from kvspec.request import RequestStatus

from .arrays import zeroed
from .manager import FastManager
from .registry import Registry
from .request import FastRequest

Numbers: TypeAlias = "memoryview[int] | array[int]"

WAITING = RequestStatus.WAITING
RUNNING = RequestStatus.RUNNING
PREEMPTED = RequestStatus.PREEMPTED
STATUSES = tuple(RequestStatus)
MANY = 1 << 62
"""Sums stop here; nothing has room for so many tokens."""


class Steps(Registry):
    """One step at a time.

    Its entries stand in one row: finished up to `end_finished`, preempted up to `end_preempted`,
    under way up to `end_under_way`, new up to `size`.

    - `scheduled`: what those under way and the new ones were granted, `granted` in all.
    - `hits`: what was cached of the new ones.
    - `row_at`: the row of an entry in the tables; `after_at`: its computed tokens after the step;
      `is_done`: it needs nothing more.
    - `rows`: where block deltas are written to; not the caller's memory between two calls.
    """

    def __init__(self, manager: FastManager) -> None:
        super().__init__(manager)
        self.is_plain = self.num_groups == 1 and self.core.shape.is_full(0)
        self.caches = manager.config.enable_caching
        self.running = RUNNING
        self.row_at = zeroed("i", 0)
        self.after_at = zeroed("q", 0)
        self.is_done = zeroed("i", 0)
        self.no_rows = memoryview(bytearray(16)).cast("i", [1, 4])
        self.rows = self.no_rows
        self.end_finished = self.end_preempted = self.end_under_way = 0
        self.lookahead = self.budget = self.reserved = 0
        self.whole_must_fit = self.stops_at_refusal = False
        self.scheduled: array[int] = array("q")
        self.hits: array[int] = array("q")
        self.granted = 0

    def request_at(self, i: int) -> FastRequest:
        """The request of entry i."""
        request: FastRequest = self.requests[self.handles[i]]  # type: ignore[assignment]  # registered
        return request

    # Legality.

    def all_legal(self) -> bool:
        """Whether every entry may be done (KV-BATCH-2); if not, nothing is changed."""
        if len(self.row_at) < self.size:
            self.row_at = zeroed("i", 2 * self.size)
            self.after_at = zeroed("q", 2 * self.size)
            self.is_done = zeroed("i", 2 * self.size)
        if self.is_plain:
            self.go_on_within_blocks()
        else:
            for i in range(self.end_preempted, self.end_under_way):
                self.is_done[i] = 0
        for i in range(self.end_preempted, self.end_under_way):
            if not self.is_done[i] and not self.may_continue(i):
                self.undo()
                return False
        if not self.are_others_legal():
            self.undo()
            return False
        return True

    def go_on_within_blocks(self) -> None:
        """Do the entries that neither need a block nor fill one: only a count changes.

        That is most of decoding, where there is one group of full attention. It is done in advance,
        while the request is being looked at; `undo` for when it turns out that another entry is
        illegal. The watermark can refuse what needs no block, but not if it is running (KV-MGR-9).
        """
        core = self.core
        tables = core.tables
        holders = core.holders
        size = core.shape.block_size[0]
        per = core.shape.hashes_per_block[0]
        longest = core.max_len
        for i in range(self.end_preempted, self.end_under_way):
            request: FastRequest = self.requests[self.handles[i]]  # type: ignore[assignment]  # registered
            self.is_done[i] = 0
            row = request.row
            if row < 0 or row >= len(holders) or holders[row] is not request:
                continue
            if request.computed < 0 or request.preemptions < 0:
                continue
            after = request.computed + self.counts[i]
            if self.caches and after >= tables.cached[row] * size:
                core.pool.read_ahead(tables, row, request, per)
            elif (
                request.status is self.running
                and after <= longest
                and after + self.lookahead <= tables.length[row] * size
            ):
                request.computed = after
                self.row_at[i] = row
                self.after_at[i] = after
                self.is_done[i] = 1

    def undo(self) -> None:
        """Take back what was done in advance."""
        for i in range(self.end_preempted, self.end_under_way):
            if self.is_done[i]:
                request = self.request_at(i)
                request.computed -= self.counts[i]

    def are_others_legal(self) -> bool:
        """Whether preempted and new entries may be done."""
        for i in range(self.end_finished, self.end_preempted):
            if self.request_at(i).preemptions < 0:
                return False
        for i in range(self.end_under_way, self.size):  # noqa: SIM110  # a loop becomes C
            if not self.may_start(self.request_at(i)):
                return False
        return True

    def is_scheduled(self, request: FastRequest) -> bool:
        """Whether status and preemptions are what they can be."""
        if request.preemptions < 0:
            return False
        return request.status is self.running or request.status in STATUSES

    def may_continue(self, i: int) -> bool:
        """Whether a request is under way, with slots for all it computed (KV-BATCH-6).

        Notes its row.
        """
        core = self.core
        request = self.request_at(i)
        computed = request.computed
        if computed < 0 or not self.is_scheduled(request):
            return False
        if computed + self.counts[i] > core.max_len:
            return False
        row = core.row_of(request)
        self.row_at[i] = row
        if computed == 0 and not core.allocator.holds_blocks(row):
            return False
        for g in range(self.num_groups):
            if core.shape.holds_tokens(g):
                held = core.tables.length[row * self.num_groups + g] if row >= 0 else 0
                if computed > held * core.shape.block_size[g]:
                    return False
        return True

    def may_start(self, request: FastRequest) -> bool:
        """Whether a request holds nothing, and every token could have a slot (KV-BATCH-7)."""
        core = self.core
        if request.computed != 0 or not self.is_scheduled(request):
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
        self.scheduled = array("q", bytes(8 * (self.size - self.end_preempted)))
        self.hits = array("q", bytes(8 * (self.size - self.end_under_way)))
        for i in range(self.end_preempted):
            self.give_back(i)
        self.granted = 0
        self.continue_all(self.scheduled)
        if self.size > self.end_under_way:
            self.start_all(self.scheduled, self.hits)

    def give_back(self, i: int) -> None:
        """Release everything; the request starts anew (KV-BATCH-5)."""
        request = self.request_at(i)
        row = self.core.forget_row(request)
        if row >= 0:
            self.core.allocator.free(row)
            self.core.tables.give_row(row)
        request.computed = 0
        request.status = WAITING
        if i >= self.end_finished:
            request.status = PREEMPTED
            request.preemptions += 1
        self.nothing_reported(self.handles[i])

    def continue_all(self, scheduled: Numbers) -> None:
        """Requests under way (KV-BATCH-6)."""
        first = self.end_preempted
        for i in range(first, self.end_under_way):
            num_tokens = self.counts[i]
            if self.is_done[i] or self.go_on(i, num_tokens):
                scheduled[i - first] = num_tokens
                self.granted = min(self.granted + num_tokens, MANY)

    def go_on(self, i: int, num_tokens: int) -> bool:
        """The next tokens of a request under way; whether they were granted."""
        core = self.core
        request = self.request_at(i)
        row = self.row_at[i]
        local = request.computed
        self.after_at[i] = local + num_tokens
        if self.is_plain and core.tables.cached[row] > 0:
            return self.go_on_plain(request, row, local + num_tokens)
        core.lookup.clear()
        row = core.place(
            row, request, num_tokens, self.lookahead, local, 0, local, 0, False, False, 0,
            core.watermark_for(request),
        )  # fmt: skip
        if row < 0:
            return False
        self.row_at[i] = row
        self.cache_until(row, request, local + num_tokens)
        return True

    def go_on_plain(self, request: FastRequest, row: int, after: int) -> bool:
        """`go_on` to `after` tokens where there is one group, of full attention (KV-MGR-7)."""
        core = self.core
        size = core.shape.block_size[0]
        held = core.tables.length[row]
        needed = core.shape.cdiv(min(after + self.lookahead, core.max_len), size) - held
        needed = max(needed, 0)
        if needed + core.watermark_for(request) > core.pool.num_free:
            return False
        core.allocator.extend(0, row, held + needed)
        end = min(after, request.num_tokens) // size
        first = core.tables.cached[row] - 1
        if self.caches and first < end:
            core.allocator.cache_range(0, row, request, first, end)
        request.computed = after
        return True

    def cache_until(self, row: int, request: FastRequest, computed: int) -> None:
        """Note what is computed, and register the blocks that it fills (KV-MGR-10)."""
        if self.caches:
            self.core.allocator.cache(row, request, min(computed, request.num_tokens))
        request.computed = computed

    def start_all(self, scheduled: Numbers, hits: Numbers) -> None:
        """New requests (KV-BATCH-7), within what the others left of the budget (KV-BATCH-8)."""
        budget = max(0, self.budget - self.granted)
        is_beside_others = self.granted > 0
        first = self.end_under_way
        for i in range(first, self.size):
            if budget == 0:
                break
            request = self.request_at(i)
            hit = self.hit_of(request)
            num_tokens = min(min(self.counts[i], budget), request.num_tokens - hit)
            if self.start(request, hit, num_tokens, is_beside_others):
                self.row_at[i] = self.core.row_of(request)
                self.after_at[i] = request.computed
                self.nothing_reported(self.handles[i])
                hits[i - first] = hit
                scheduled[i - self.end_preempted] = num_tokens
                budget -= num_tokens
                self.granted += num_tokens
                is_beside_others = True
            elif self.stops_at_refusal:
                break

    def hit_of(self, request: FastRequest) -> int:
        """The hit length in tokens; its blocks stand in the look-up (KV-MGR-2)."""
        core = self.core
        if not self.caches or request.input.skip_reading_cache:
            core.lookup.clear()
            return 0
        tokens = core.lookup.longest_hit(request, request.num_tokens - 1)
        if core.log_stats:
            core.count_look_up(request, tokens)
        if tokens == 0:
            core.lookup.clear()
        return tokens

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
        request.status = RUNNING
        return True

    # What is told.

    def write_slots(self, g: int, slots: memoryview[int], scheduled: Numbers) -> None:
        """The slot of every granted token in one group (KV-BATCH-9)."""
        tables = self.core.tables
        size = self.core.shape.block_size[g]
        to = 0
        for i in range(self.end_preempted, self.size):
            num_tokens = scheduled[i - self.end_preempted]
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

    def write_rows(self, scheduled: Numbers) -> int:
        """The new entries of what was granted something, as many rows as fit; how many."""
        at = 0
        for i in range(self.end_preempted, self.size):
            if scheduled[i - self.end_preempted] and self.rows_to_tell(
                self.handles[i], self.row_at[i]
            ):
                at = self.report(self.handles[i], self.row_at[i], at)
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

    def rows_left(self, scheduled: Numbers) -> int:
        """Rows of this step that did not fit."""
        left = 0
        for i in range(self.end_preempted, self.size):
            if scheduled[i - self.end_preempted]:
                left += self.rows_to_tell(self.handles[i], self.row_at[i])
        return left
