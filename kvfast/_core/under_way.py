"""Requests under way in a step: which may go on, and letting them (KV-BATCH-6)."""

from __future__ import annotations

from kvspec.request import RequestStatus

from . import cells as cell
from .arrays import zeroed
from .manager import FastManager
from .registry import Registry
from .request import FastRequest

STATUSES = tuple(RequestStatus)
MANY = 1 << 62
"""Sums stop here; nothing has room for so many tokens."""
ASKED, PLAIN, DONE = 0, 1, 2
"""Of an entry under way: its request is looked at; its cells say all; nothing is left to do."""


class UnderWay(Registry):
    """The entries of a step, of which those under way are handled here.

    They stand in one row: finished, preempted up to `end_preempted`, under way up to
    `end_under_way`, new up to `size`.

    - `row_at`: the row of an entry in the tables; `after_at`: its computed tokens after the step;
      `granted_at`: what it was granted, `granted` in all; `way_at`: how it is done.
    - `filled_at[k]`: the entry that is the k-th to fill a block. `ahead` has no meaning: what is
      read into it is in the processor's cache when it is needed, and reads do not wait for others.
    """

    def __init__(self, manager: FastManager) -> None:
        super().__init__(manager)
        self.is_plain = self.num_groups == 1 and self.core.shape.is_full(0)
        self.block_size = self.core.shape.block_size[0] if self.is_plain else 0
        self.caches = manager.config.enable_caching
        self.running = RequestStatus.RUNNING
        self.row_at = zeroed("i", 0)
        self.after_at = zeroed("q", 0)
        self.granted_at = zeroed("q", 0)
        self.way_at = zeroed("i", 0)
        self.filled_at = zeroed("i", 0)
        self.ahead = 0
        self.end_preempted = self.end_under_way = 0
        self.lookahead = 0
        self.granted = 0

    def make_room_for_entries(self) -> None:
        """Let what is noted of each entry have room for all."""
        if len(self.row_at) < self.size:
            self.after_at = zeroed("q", 2 * self.size)
            self.granted_at = zeroed("q", 2 * self.size)
            self.way_at = zeroed("i", 2 * self.size)
            self.filled_at = zeroed("i", 2 * self.size)
            self.row_at = zeroed("i", 2 * self.size)  # last: its length says that there is room

    def request_at(self, i: int) -> FastRequest:
        """The request of entry i."""
        request: FastRequest = self.requests[self.handles[i]]  # type: ignore[assignment]  # registered
        return request

    # Legality.

    def are_under_way(self) -> bool:
        """Whether every entry under way may be done; if not, nothing is changed."""
        if self.is_plain and self.choose_ways() == 0:
            return True
        for i in range(self.end_preempted, self.end_under_way):
            if self.way_at[i] == ASKED and not self.may_continue(i):
                return False
        return True

    def choose_ways(self) -> int:
        """Look at the cells of the entries under way; how many requests must be asked.

        The same checks as in `may_continue`. With one group, of full attention, cells tell all of a
        running request, whose watermark is 0 (KV-MGR-9). Most of decoding takes no block and fills
        none: only a count changes. That is done here, in advance, and taken back by `undo` when it
        turns out that another entry is illegal. Rows and counts of these entries are noted.
        """
        tables = self.core.tables
        size = self.block_size
        lookahead = self.lookahead
        longest = self.core.max_len
        caches = self.caches
        num_asked = num_filled = 0
        self.core.turn.changes()
        for i in range(self.end_preempted, self.end_under_way):
            self.way_at[i] = ASKED
            at = cell.STRIDE * self.handles[i]
            row = self.cells[at + cell.ROW]
            computed = self.cells[at + cell.COMPUTED]
            after = computed + self.counts[i]
            held = tables.length[row] * size
            if (
                not self.cells[at + cell.RUNS]
                or self.cells[at + cell.SERIAL] != tables.serial[row]
                or computed < 0
                or computed > held
                or held == 0
                or after > longest
            ):
                num_asked += 1
                continue
            self.row_at[i] = row
            self.after_at[i] = after
            if caches and after >= tables.cached[row] * size:
                if tables.cached[row] == 0:  # it holds blocks that were never handed to the cache
                    num_asked += 1
                    continue
                self.way_at[i] = PLAIN
                self.filled_at[num_filled] = i
                num_filled += 1
            elif after + lookahead <= held:
                self.way_at[i] = DONE
                self.cells[at + cell.COMPUTED] = after
            else:
                self.way_at[i] = PLAIN
                self.ahead ^= tables.arena[tables.start[row] + tables.length[row] - 1]
        if num_filled:
            self.read_ahead(num_filled)
        self.core.turn.changed()
        return num_asked

    def read_ahead(self, num_filled: int) -> None:
        """Read what registering will read: all requests, then all hashes, then the map of keys."""
        core = self.core
        per = core.shape.hashes_per_block[0]
        width = core.hasher.words_per_digest
        for k in range(num_filled):
            request: FastRequest = self.requests[self.handles[self.filled_at[k]]]  # type: ignore[assignment]  # registered
            self.ahead ^= request.num_tokens
        for k in range(num_filled):
            number = core.tables.cached[self.row_at[self.filled_at[k]]] * per - 1
            request = self.request_at(self.filled_at[k])
            if number < request.num_hashes:
                self.ahead ^= request.digest_words[number * width]
        for k in range(num_filled):
            i = self.filled_at[k]
            core.pool.read_ahead(core.tables, self.row_at[i], self.request_at(i), per)

    def undo(self) -> None:
        """Take back what was done in advance."""
        for i in range(self.end_preempted, self.end_under_way):
            if self.way_at[i] == DONE:
                request = self.request_at(i)
                request.set_computed(self.after_at[i] - self.counts[i])

    def may_rewind(self) -> bool:
        """Whether every entry has as many computed tokens as its count says."""
        for i in range(self.size):
            at = cell.STRIDE * self.handles[i]
            if self.cells[at + cell.RUNS]:
                computed = self.cells[at + cell.COMPUTED]
            else:
                computed = self.request_at(i).computed_now()
            if self.counts[i] > computed:
                return False
        return True

    def set_computed_at(self, i: int, num_tokens: int) -> None:
        """Set the computed tokens of an entry's request."""
        at = cell.STRIDE * self.handles[i]
        if self.cells[at + cell.RUNS]:
            self.cells[at + cell.COMPUTED] = num_tokens
        else:
            self.request_at(i).set_computed(num_tokens)

    def rewind_all(self) -> None:
        """Take back as many computed tokens of every entry as its count says."""
        for i in range(self.size):
            at = cell.STRIDE * self.handles[i]
            if self.cells[at + cell.RUNS]:
                self.cells[at + cell.COMPUTED] -= self.counts[i]
            else:
                request = self.request_at(i)
                request.set_computed(request.computed_now() - self.counts[i])

    def is_scheduled(self, request: FastRequest) -> bool:
        """Whether status and preemptions are what they can be."""
        if request.preemptions < 0:
            return False
        return request.state is self.running or request.state in STATUSES

    def may_continue(self, i: int) -> bool:
        """Whether a request is under way, with slots for all it computed (KV-BATCH-6).

        Notes its row, also for the next steps.
        """
        core = self.core
        request = self.request_at(i)
        computed = request.computed_now()
        if computed < 0 or not self.is_scheduled(request):
            return False
        if computed + self.counts[i] > core.max_len:
            return False
        row = core.row_of(request)
        self.row_at[i] = row
        self.note_row(self.handles[i], row)
        if computed == 0 and not core.allocator.holds_blocks(row):
            return False
        for g in range(self.num_groups):
            if core.shape.holds_tokens(g):
                held = core.tables.length[row * self.num_groups + g] if row >= 0 else 0
                if computed > held * core.shape.block_size[g]:
                    return False
        return True

    # Going on.

    def continue_all(self) -> None:
        """Requests under way (KV-BATCH-6)."""
        for i in range(self.end_preempted, self.end_under_way):
            num_tokens = self.counts[i]
            goes_on = True
            if self.way_at[i] == PLAIN:
                goes_on = self.go_on_plain(i, 0)
            elif self.way_at[i] == ASKED:
                goes_on = self.go_on(i, num_tokens)
            if not goes_on:
                num_tokens = 0
            self.granted_at[i] = num_tokens
            self.granted = min(self.granted + num_tokens, MANY)

    def go_on(self, i: int, num_tokens: int) -> bool:
        """The next tokens of a request that was looked at; whether they were granted."""
        core = self.core
        request = self.request_at(i)
        row = self.row_at[i]
        local = request.computed_now()
        self.after_at[i] = local + num_tokens
        if self.is_plain and core.tables.cached[row] > 0:
            return self.go_on_plain(i, core.watermark_for(request))
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

    def go_on_plain(self, i: int, watermark: int) -> bool:
        """`go_on` where there is one group, of full attention (KV-MGR-7)."""
        core = self.core
        row = self.row_at[i]
        after = self.after_at[i]
        size = self.block_size
        held = core.tables.length[row]
        needed = core.shape.cdiv(min(after + self.lookahead, core.max_len), size) - held
        needed = max(needed, 0)
        if needed + watermark > core.pool.num_free:
            return False
        if needed > 0:
            core.allocator.extend(0, row, held + needed)
        if self.caches and after >= core.tables.cached[row] * size:
            request = self.request_at(i)
            end = min(after, request.num_tokens) // size
            first = core.tables.cached[row] - 1
            if first < end:
                core.allocator.cache_range(0, row, request, first, end)
        self.set_computed_at(i, after)
        return True

    def cache_until(self, row: int, request: FastRequest, computed: int) -> None:
        """Note what is computed, and register the blocks that it fills (KV-MGR-10)."""
        if self.caches:
            self.core.allocator.cache(row, request, min(computed, request.num_tokens))
        request.set_computed(computed)
