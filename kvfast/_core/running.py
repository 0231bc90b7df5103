"""Running requests in a step: which may go on, and letting them (KV-BATCH-6)."""

from __future__ import annotations

from typing import Any

from kvspec.request import RequestStatus

from . import hot, objects, probing
from .arrays import zeroed
from .core import Core
from .entries import Entries
from .registry import Registry
from .request import FastRequest
from .turn import Turn

STATUSES = tuple(RequestStatus)
MANY = 1 << 62
"""Sums stop here; nothing has room for so many tokens."""
ASKED, PLAIN, FILLS = 0, 1, 2
"""`way_at` of those left: its request is looked at; its hot fields say all; they do, and it fills a
block."""


class Running:
    """The entries of running requests.

    - `granted`: tokens granted so far. `refused`: whether an entry was granted none.
    - `left_at[k]`, k < `num_left`: the entries for which there is something left to do, in order.
      Where `rows` are asked for, also those that have something to tell. Of the others all counts
      are granted.
    - `notes_all`: whether rows and counts of those others are noted, too.
    - `is_ahead`: whether those others are done before the step is known to be legal.
    """

    def __init__(
        self, core: Core, turn: Turn, registry: Registry, entries: Entries, rows: objects.Rows
    ) -> None:
        self.core = core
        self.turn = turn
        self.registry = registry
        self.entries = entries
        self.rows = rows
        self.notes_all = self.is_ahead = False
        self.num_groups = self.core.num_groups
        self.is_plain = self.num_groups == 1 and self.core.shape.keeps_all(0)
        self.block_size = self.core.shape.block_size[0] if self.is_plain else 0
        self.caches = self.core.enable_caching
        self.running = RequestStatus.RUNNING
        self.left_at = zeroed("i", 0)
        self.num_left = self.num_asked = self.num_filled = 0
        self.lookahead = 0
        self.granted = 0
        self.refused = False

    def make_room(self) -> None:
        """Let there be room for all entries."""
        if len(self.left_at) < self.entries.size:
            self.left_at = zeroed("i", 2 * self.entries.size)

    def may_all_continue(self) -> bool:
        """Whether every running entry that must be asked may be done; nothing is changed."""
        entries = self.entries
        for k in range(self.num_left):
            i = self.left_at[k]
            if entries.way_at[i] == ASKED and not self.may_continue(i):
                return False
        return True

    def leave(self, i: int, way: int) -> None:
        """Something is left to do for an entry."""
        self.entries.way_at[i] = way
        self.left_at[self.num_left] = i
        self.num_left += 1

    def choose_ways(self) -> None:
        """Leave what is to be done for each running entry: `num_asked` requests must be asked.

        Most of decoding takes no block and fills none: only a count changes. That is done here, in
        advance, and taken back by `undo` when it turns out that another entry is illegal.
        """
        entries = self.entries
        self.is_ahead = False
        self.granted = 0
        self.num_left = self.num_asked = self.num_filled = 0
        if self.is_plain:
            self.count_ahead()
        else:
            for i in range(entries.end_preempted, entries.end_running):
                self.ask(i)

    def ask(self, i: int) -> None:
        """The request of an entry must be asked."""
        self.num_asked += 1
        self.leave(i, ASKED)

    def count_ahead(self) -> None:
        """`choose_ways` by the hot fields, where they tell all of most requests."""
        entries = self.entries
        handles, counts = objects.longs_of(entries.handles), objects.longs_of(entries.counts)
        fields = objects.longs_of(self.registry.fields)
        serials = objects.longs_of(self.core.tables.serial)
        lookahead, notes_all = self.lookahead, self.notes_all
        granted = 0
        self.turn.changes()
        for i in range(entries.end_preempted, entries.end_running):
            at = hot.STRIDE * handles[i]
            row = fields[at + hot.ROW]
            computed = fields[at + hot.COMPUTED]
            after = computed + counts[i]
            if (
                after + lookahead < fields[at + hot.RUNS]
                and fields[at + hot.SERIAL] == serials[row]
                and computed >= 0
            ) or self.only_counts(i, row, computed, after):
                fields[at + hot.COMPUTED] = after
                granted += counts[i]  # at most the tokens that it has slots for
                if notes_all:
                    self.note(i, row, after)
        if self.num_filled > 1:  # of one the reads would wait no less
            self.read_ahead()
        self.granted = granted
        self.is_ahead = True
        self.turn.changed()

    def only_counts(self, i: int, row: int, computed: int, after: int) -> bool:
        """Whether an entry takes no block, fills none and has none to tell; else it is left.

        The same checks as in `may_continue`. With one group, of full attention, the hot fields and
        the row tell all of a running request, whose watermark is 0 (KV-MGR-9).
        """
        registry, tables = self.registry, self.core.tables
        handle = self.entries.handles[i]
        at = hot.STRIDE * handle
        size = self.block_size
        length, cached = tables.length[row], tables.cached[row]
        held = length * size
        fills = self.caches and after >= cached * size
        if (
            not registry.fields[at + hot.RUNS]
            or registry.fields[at + hot.SERIAL] != tables.serial[row]
            or computed < 0
            or computed > held
            or held == 0
            or after > self.core.max_len
            or (fills and cached == 0)  # its blocks were never handed to the cache
        ):
            self.ask(i)
            return False
        if not fills and after + self.lookahead <= held:
            if length <= registry.reported[handle]:
                self.note_reach(handle, row)
                return True
            if not self.rows.is_open:
                return True
        self.note(i, row, after)
        if fills:
            self.num_filled += 1
            self.leave(i, FILLS)
            objects.fetch_item(registry.requests, handle)
        else:
            self.leave(i, PLAIN)
        last = cached if fills else length
        objects.fetch_int(tables.arena, tables.start[row] + last - 1)
        return False

    def note_reach(self, handle: int, row: int) -> None:
        """Note up to how many tokens the next steps of a request only count, if its list was told.

        Lists, what was cached of them and what was told only grow while the row is the request's.
        """
        tables, registry = self.core.tables, self.registry
        at = hot.STRIDE * handle
        length, cached = tables.length[row], tables.cached[row]
        until = min(length * self.block_size, self.core.max_len)
        if self.caches:
            until = min(until, cached * self.block_size - 1)
        if until > 0 and registry.fields[at + hot.RUNS] and length <= registry.reported[handle]:
            registry.fields[at + hot.RUNS] = 1 + until

    def note(self, i: int, row: int, after: int) -> None:
        """Note the row, and the counts of an entry if all goes well."""
        self.entries.row_at[i] = row
        self.entries.after_at[i] = after
        self.entries.granted_at[i] = self.entries.counts[i]

    def read_ahead(self) -> None:
        """Read what registering will read: all hashes, then the map of keys.

        That of the block, and that of the first of the eight that are side by side in the map.
        """
        entries, core = self.entries, self.core
        requests: list[Any] = self.registry.requests
        per = core.shape.hashes_per_block[0]
        width = core.hasher.words_per_digest
        for k in range(self.num_left):
            if entries.way_at[self.left_at[k]] != FILLS:
                continue
            number = core.tables.cached[entries.row_at[self.left_at[k]]] * per - 1
            request = requests[entries.handles[self.left_at[k]]]
            if number < request.num_hashes:
                objects.fetch_at(request.digest_words, number * width)
                first = number & ~probing.SIDE_MASK
                objects.fetch_at(request.digest_words, first * width)
        for k in range(self.num_left):
            i = self.left_at[k]
            if entries.way_at[i] == FILLS:
                request = requests[entries.handles[i]]
                core.pool.read_ahead(core.tables, entries.row_at[i], request, per)

    def undo(self) -> None:
        """Take back what was done in advance.

        Nothing was where choosing broke off, or never began: then `left_at` does not yet tell the
        entries that were done from those that nobody came to.
        """
        entries = self.entries
        if self.is_ahead:
            k = 0
            self.turn.changes()
            for i in range(entries.end_preempted, entries.end_running):
                if k < self.num_left and self.left_at[k] == i:
                    k += 1
                else:
                    request = entries.request_at(i)
                    request.set_computed(request.computed_now() - entries.counts[i])
            self.turn.changed()

    def may_rewind(self) -> bool:
        """Whether every entry has as many computed tokens as its count says."""
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
        """Whether status and counts are what they can be."""
        if not request.has_legal_counts():
            return False
        return request.state is self.running or request.state in STATUSES

    def may_continue(self, i: int) -> bool:
        """Whether a request is running, with slots for all it computed (KV-BATCH-6).

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
                held = core.tables.length[row * self.num_groups + g] if row >= 0 else 0
                if computed > held * core.shape.block_size[g]:
                    return False
        return True

    # Going on.

    def continue_all(self) -> None:
        """Every running entry for which something is left to do (KV-BATCH-6)."""
        entries = self.entries
        granted = self.granted
        self.refused = False
        for k in range(self.num_left):
            i = self.left_at[k]
            num_tokens = entries.counts[i]
            if entries.way_at[i] == ASKED:
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
        """The next tokens of a request that was looked at; whether they were granted."""
        core = self.core
        request = self.entries.request_at(i)
        row = self.entries.row_at[i]
        local = request.computed_now()
        self.entries.after_at[i] = local + num_tokens
        if self.is_plain and core.tables.cached[row] > 0:
            return self.go_on_plain(i, core.watermark_for(request))
        core.lookup.clear()
        row = core.place(
            row, request, num_tokens, self.lookahead, local, 0, local, 0, False, False, 0,
            core.watermark_for(request),
        )  # fmt: skip
        if row < 0:
            return False
        self.entries.row_at[i] = row
        self.cache_until(row, request, local + num_tokens)
        return True

    def go_on_plain(self, i: int, watermark: int) -> bool:
        """`go_on` where there is one group, of full attention (KV-MGR-7)."""
        core = self.core
        row = self.entries.row_at[i]
        after = self.entries.after_at[i]
        size = self.block_size
        held = core.tables.length[row]
        slots = min(after + self.lookahead, core.max_len)
        needed = core.shape.cdiv(slots, size) - held if slots > held * size else 0
        if needed + watermark > core.pool.num_free:
            return False
        if needed > 0:
            core.allocator.extend(0, row, held + needed)
        if self.caches and after >= core.tables.cached[row] * size:
            request = self.entries.request_at(i)
            end = core.shape.full_blocks(0, min(after, request.num_tokens), request.num_hashes)
            first = core.tables.cached[row] - 1
            if first < end:
                core.allocator.cache_range(0, row, request, first, end)
        self.set_computed_at(i, after)
        return True

    def cache_until(self, row: int, request: FastRequest, computed: int) -> None:
        """Note what is computed, and register the blocks that it fills (KV-MGR-10)."""
        if self.caches:
            self.core.cache(row, request, min(computed, request.num_tokens), True)
        request.set_computed(computed)
