"""Running requests in a step: check which may continue, and continue them (KV-BATCH-6)."""

from __future__ import annotations

from typing import Any

from kvspec.request import RequestStatus

from . import hot, objects, probing, record
from .ahead import Ahead
from .core import Core
from .entries import Entries
from .registry import Registry
from .request import FastRequest

STATUSES = tuple(RequestStatus)
MANY = 1 << 62
"""The bound on sums; no memory has room for this many tokens."""


class Running:
    """The running entries, from which `ahead` has sorted out those that only count.

    - `granted`: tokens granted so far. `refused`: whether an entry was granted none.
    - `in_any_order`: true if registering keys after taking all blocks is unobservable.
    """

    def __init__(self, core: Core, registry: Registry, entries: Entries, ahead: Ahead) -> None:
        self.core = core
        self.registry = registry
        self.entries = entries
        self.ahead = ahead
        self.num_groups = self.core.num_groups
        self.block_size = self.ahead.block_size
        self.caches = self.core.enable_caching
        self.in_any_order = self.ahead.is_plain and self.core.events is None
        self.running, self.waiting = RequestStatus.RUNNING, RequestStatus.WAITING
        self.granted = 0
        self.refused = False

    def may_all_continue(self) -> bool:
        """Return whether every running entry that needs a full allocation is legal. Pure."""
        entries, ahead = self.entries, self.ahead
        for k in range(ahead.num_left):
            i = ahead.left_at[k]
            if entries.is_asked[i] and not self.may_continue(i):
                return False
        return True

    def may_rewind(self) -> bool:
        """Return whether every entry has as many computed tokens as its count gives up."""
        registry, entries = self.registry, self.entries
        for i in range(entries.size):
            at = hot.STRIDE * entries.handles[i]
            if registry.fields[at + hot.RUNS]:
                computed = registry.fields[at + hot.COMPUTED]
            else:
                computed = entries.request_at(i).computed_now()
            if entries.counts[i] > computed:
                return False
        return True

    def set_computed_at(self, i: int, num_tokens: int) -> None:
        """Set the computed tokens of an entry's request."""
        at = hot.STRIDE * self.entries.handles[i]
        if self.registry.fields[at + hot.RUNS]:
            self.registry.fields[at + hot.COMPUTED] = num_tokens
        else:
            self.entries.request_at(i).set_computed(num_tokens)

    def rewind_all(self) -> None:
        """Take back as many computed tokens of every entry as its count says."""
        registry, entries = self.registry, self.entries
        for i in range(entries.size):
            at = hot.STRIDE * entries.handles[i]
            if registry.fields[at + hot.RUNS]:
                registry.fields[at + hot.COMPUTED] -= entries.counts[i]
            else:
                request = entries.request_at(i)
                request.set_computed(request.computed_now() - entries.counts[i])

    def is_scheduled(self, request: FastRequest) -> bool:
        """Return whether status and counts have legal values."""
        if not request.has_legal_counts():
            return False
        if request.state is self.running or request.state is self.waiting:  # as of most
            return True
        return request.state in STATUSES

    def may_continue(self, i: int) -> bool:
        """Return whether a request is running, with slots for all it computed (KV-BATCH-6).

        Notes its row, also for the next steps.
        """
        entries = self.entries
        core = self.core
        request = entries.request_at(i)
        computed = request.computed_now()
        if computed < 0 or not self.is_scheduled(request):
            return False
        if computed + entries.counts[i] > core.max_len:
            return False
        row = core.rows.of(request)
        entries.row_at[i] = row
        self.registry.note_row(entries.handles[i], row)
        if computed == 0 and not core.allocator.holds_blocks(row):
            return False
        for g in range(self.num_groups):
            if core.shape.holds_tokens(g):
                at = row * self.num_groups + g
                held = core.tables.length[at] if row >= 0 else 0
                if computed > held * core.shape.block_size[g]:
                    return False
                first = core.shape.first_read(g, request.num_prompt_tokens, computed)
                if row >= 0 and core.tables.is_null(at, first):  # KV-REQ-9
                    return False
        return True

    # Going on.

    def continue_all(self) -> None:
        """Continue every running entry for which something is left to do (KV-BATCH-6)."""
        ahead = self.ahead
        self.granted = ahead.granted
        self.refused = False
        if (
            ahead.num_asked == 0
            and ahead.num_needed <= self.core.pool.num_free
            and self.in_any_order
        ):
            self.take_each()
            if ahead.num_filled > 0:
                self.fill_each()
        else:
            self.continue_each()

    def take_each(self) -> None:
        """Take the new blocks of all entries left; there are enough."""
        entries, ahead, core = self.entries, self.ahead, self.core
        size, max_len, lookahead = self.block_size, core.max_len, ahead.lookahead
        lengths, left_at = objects.ints_of(core.tables.length), objects.ints_of(ahead.left_at)
        fields, handles = objects.longs_of(self.registry.fields), objects.longs_of(entries.handles)
        rows, after_at = objects.ints_of(entries.row_at), objects.longs_of(entries.after_at)
        for k in range(ahead.num_left):
            i = left_at[k]
            after = after_at[i]
            held = lengths[rows[i]]
            missing = min(after + lookahead, max_len) - held * size
            if missing > 0:
                needed = 1 if missing <= size else core.shape.cdiv(missing, size)
                core.allocator.extend(0, rows[i], held + needed)
                fields[hot.STRIDE * handles[i] + hot.RUNS] = 1  # until its new entries are reported
            fields[hot.STRIDE * handles[i] + hot.COMPUTED] = after
            self.granted += entries.counts[i]  # at most the tokens that it has slots for

    def fill_each(self) -> None:
        """Register the blocks that entries fill, after all were taken: the order is unobservable.

        The data it reads is prefetched: all hashes, of the block and of the first of the eight
        that are side by side in the map, then the map of keys.
        """
        entries, core, tables = self.entries, self.core, self.core.tables
        requests: list[Any] = self.registry.requests
        rows, filled_at = objects.ints_of(entries.row_at), objects.ints_of(self.ahead.filled_at)
        handles, homes = objects.longs_of(entries.handles), objects.longs_of(self.ahead.home_at)
        per, width = core.shape.hashes_per_block[0], core.hasher.words_per_digest
        for k in range(self.ahead.num_filled):
            request = requests[handles[filled_at[k]]]
            number = tables.cached[rows[filled_at[k]]] * per - 1
            if number < request.num_hashes:
                objects.fetch_at(request.digest_words, number * width)
                objects.fetch_at(request.digest_words, (number & ~probing.SIDE_MASK) * width)
        for k in range(self.ahead.num_filled):
            row = rows[filled_at[k]]
            cached = tables.cached[row]
            block = tables.arena[tables.start[row] + cached - 1]
            objects.fetch_int(core.pool.facts, record.INTS * block)
            request = requests[handles[filled_at[k]]]
            homes[k] = core.pool.keys.read_ahead(request, cached * per - 1)
        for k in range(self.ahead.num_filled):
            i = filled_at[k]
            request = requests[handles[i]]
            self.fill(rows[i], request, entries.after_at[i], homes[k])

    def fill(self, row: int, request: FastRequest, after: int, home: int) -> None:
        """Register the blocks that `after` tokens fill; `home`: of the first one's key, or -1."""
        core = self.core
        first = core.tables.cached[row] - 1
        tokens = min(after, request.num_tokens)
        end = core.shape.full_blocks(0, tokens, request.num_hashes)
        if end == first + 1 and home >= 0:
            core.tables.cached[row] = 1 + end
            block = core.tables.arena[core.tables.start[row] + first]
            per = core.shape.hashes_per_block[0]
            core.pool.register_at(home, block, request, end * per - 1, 0)
            core.pool.set_covered(block, end * per)
        elif first < end:
            core.allocator.cache_range(0, row, request, first, end)

    def continue_each(self) -> None:
        """Continue entries one by one: some may be refused, or have events."""
        entries, ahead = self.entries, self.ahead
        granted = self.granted
        for k in range(ahead.num_left):
            i = ahead.left_at[k]
            num_tokens = entries.counts[i]
            if entries.is_asked[i]:
                goes_on = self.go_on(i, num_tokens)
            else:
                goes_on = self.go_on_plain(i, 0)
            if not goes_on:
                num_tokens = 0
                self.refused = True
            entries.granted_at[i] = num_tokens
            granted = min(granted + num_tokens, MANY)
        self.granted = granted

    def go_on(self, i: int, num_tokens: int) -> bool:
        """Allocate the next tokens of a checked request; returns whether they were granted."""
        core = self.core
        request = self.entries.request_at(i)
        row = self.entries.row_at[i]
        local = request.computed_now()
        self.entries.after_at[i] = local + num_tokens
        if self.ahead.is_plain and core.tables.cached[row] > 0:
            return self.go_on_plain(i, core.watermark_for(request))
        core.lookup.clear()
        asked = core.asked.of(num_tokens, self.ahead.lookahead, local)
        asked.watermark = core.watermark_for(request)
        row = core.place(row, request, asked)
        if row < 0:
            return False
        self.entries.row_at[i] = row
        self.registry.look_again(self.entries.handles[i])
        self.cache_until(row, request, local + num_tokens)
        return True

    def go_on_plain(self, i: int, watermark: int) -> bool:
        """Continue where there is one group, of full attention (KV-MGR-7)."""
        core = self.core
        row = self.entries.row_at[i]
        after = self.entries.after_at[i]
        size = self.block_size
        held = core.tables.length[row]
        slots = min(after + self.ahead.lookahead, core.max_len)
        needed = core.shape.cdiv(slots, size) - held if slots > held * size else 0
        if needed + watermark > core.pool.num_free:
            return False
        if needed > 0:
            core.allocator.extend(0, row, held + needed)
            self.registry.look_again(self.entries.handles[i])
        if self.caches and after >= core.tables.cached[row] * size:
            self.fill(row, self.entries.request_at(i), after, -1)
        self.set_computed_at(i, after)
        return True

    def cache_until(self, row: int, request: FastRequest, computed: int) -> None:
        """Note what is computed, and register the blocks that it fills (KV-MGR-10)."""
        if self.caches:
            self.core.cache(row, request, min(computed, request.num_tokens), True)
        request.set_computed(computed)
