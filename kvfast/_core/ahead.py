"""Sort a step's running requests by the hot fields; advance at once those that need no block.

Most of decoding takes no block and fills none: only a count changes. That is done in advance, and
undone if another entry turns out to be illegal.
"""

from __future__ import annotations

from . import hot, objects
from .arrays import zeroed
from .core import Core
from .entries import Entries
from .registry import Registry
from .turn import Turn


class Ahead:
    """The running entries of a step, sorted by what is left to do.

    - `left_at[k]`, k < `num_left`: the entries with something left to do, in order. If `rows` are
      requested, also those with something to report. All other entries are granted all their
      tokens: `granted`.
    - `num_asked` of the entries left need a full allocation (`Entries.is_asked`). The others need
      `num_needed` new blocks, and `filled_at[k]`, k < `num_filled`, fill some, in order;
      `home_at[k]`: the home of the first one's key, see `Running`.
    - `notes_all`: whether rows and counts of the entries that are not left are also noted.
    - `is_ahead`: whether those are done before the step is known to be legal.
    """

    def __init__(
        self, core: Core, turn: Turn, registry: Registry, entries: Entries, rows: objects.Rows
    ) -> None:
        self.core = core
        self.turn = turn
        self.registry = registry
        self.entries = entries
        self.rows = rows
        self.is_plain = self.core.num_groups == 1 and self.core.shape.keeps_all(0)
        self.block_size = self.core.shape.block_size[0] if self.is_plain else 0
        self.caches = self.core.enable_caching
        self.left_at = zeroed("i", 0)
        self.filled_at = zeroed("i", 0)
        self.home_at = zeroed("q", 0)
        self.num_left = self.num_asked = self.num_filled = self.num_needed = 0
        self.lookahead = 0
        self.granted = 0
        self.notes_all = self.is_ahead = False

    def make_room(self) -> None:
        """Let there be room for all entries."""
        if len(self.left_at) < self.entries.size:
            self.filled_at = zeroed("i", 2 * self.entries.size)
            self.home_at = zeroed("q", 2 * self.entries.size)
            self.left_at = zeroed("i", 2 * self.entries.size)  # last: its length says so

    def sort_all(self) -> None:
        """Leave what is to be done for each running entry, and do the rest."""
        entries = self.entries
        self.is_ahead = False
        self.granted = 0
        self.num_left = self.num_asked = self.num_filled = self.num_needed = 0
        if self.is_plain:
            self.count_all()
        else:
            for i in range(entries.end_preempted, entries.end_running):
                self.ask(i)

    def leave(self, i: int, is_asked: bool) -> None:
        """Note that an entry has something left to do; return whether its request must be asked."""
        self.entries.is_asked[i] = is_asked
        self.left_at[self.num_left] = i
        self.num_left += 1

    def ask(self, i: int) -> None:
        """Mark the entry as needing a full allocation."""
        self.num_asked += 1
        self.leave(i, True)

    def count_all(self) -> None:
        """Do `sort_all` by the hot fields, if they suffice for most requests."""
        entries = self.entries
        handles, counts = objects.longs_of(entries.handles), objects.longs_of(entries.counts)
        fields = objects.longs_of(self.registry.fields)
        serials = objects.longs_of(self.core.tables.serial)
        left_at, num_left = objects.ints_of(self.left_at), 0
        lookahead, notes_all = self.lookahead, self.notes_all
        granted = 0
        self.turn.changes()
        for i in range(entries.end_preempted, entries.end_running):
            at = hot.STRIDE * handles[i]
            row = fields[at + hot.ROW]
            computed = fields[at + hot.COMPUTED]
            count = counts[i]
            after = computed + count
            if (
                after + lookahead < fields[at + hot.RUNS]
                and fields[at + hot.SERIAL] == serials[row]
                and computed >= 0
            ):
                fields[at + hot.COMPUTED] = after
                granted += count  # at most the tokens that it has slots for
                if notes_all:
                    self.note(i, row, after)
            else:
                left_at[num_left] = i
                num_left += 1
        self.granted = granted
        self.sort_left(num_left)
        self.is_ahead = True
        self.turn.changed()

    def sort_left(self, num_left: int) -> None:
        """Advance those of the first entries of `left_at` that only count, and keep the others.

        Makes the same checks as `Running.may_continue`. With one group, of full attention, the hot
        fields and the row determine a running request, whose watermark is 0 (KV-MGR-9).
        """
        entries, registry, tables = self.entries, self.registry, self.core.tables
        handles, counts = objects.longs_of(entries.handles), objects.longs_of(entries.counts)
        fields, reported = objects.longs_of(registry.fields), objects.ints_of(registry.reported)
        lengths, cached_at = objects.ints_of(tables.length), objects.ints_of(tables.cached)
        size, caches, max_len = self.block_size, self.caches, self.core.max_len
        for k in range(num_left):
            i = self.left_at[k]
            at = hot.STRIDE * handles[i]
            row, computed = fields[at + hot.ROW], fields[at + hot.COMPUTED]
            after = computed + counts[i]
            length, cached = lengths[row], cached_at[row]
            held = length * size
            if (
                not fields[at + hot.RUNS]
                or fields[at + hot.SERIAL] != tables.serial[row]
                or computed < 0
                or computed > held
                or held == 0
                or after > max_len
                or (caches and cached == 0)  # its blocks were never handed to the cache
            ):
                self.ask(i)
                continue
            fills = caches and after >= cached * size
            missing = min(after + self.lookahead, max_len) - held
            if not fills and missing <= 0:
                has_told = length <= reported[handles[i]]
                if has_told or not self.rows.is_open:
                    if has_told:
                        self.note_reach(handles[i], row)
                    fields[at + hot.COMPUTED] = after
                    self.granted += counts[i]
                    if self.notes_all:
                        self.note(i, row, after)
                    continue
            self.note(i, row, after)
            self.leave(i, False)
            if missing > 0:
                self.num_needed += 1 if missing <= size else self.core.shape.cdiv(missing, size)
            if fills:
                self.filled_at[self.num_filled] = i
                self.num_filled += 1
                objects.fetch_item(registry.requests, handles[i])
            objects.fetch_int(tables.arena, tables.start[row] + (cached if fills else length) - 1)

    def note_reach(self, handle: int, row: int) -> None:
        """Note up to how many tokens the next steps of a reported request only count.

        It holds as long as the row is the request's and its list is no longer than now, see
        `hot.RUNS`.
        """
        until = min(self.core.tables.length[row] * self.block_size, self.core.max_len)
        if self.caches:
            until = min(until, self.core.tables.cached[row] * self.block_size - 1)
        at = hot.STRIDE * handle + hot.RUNS
        if until > 0 and self.registry.fields[at]:
            self.registry.fields[at] = 1 + until

    def note(self, i: int, row: int, after: int) -> None:
        """Note the row and the later count of an entry."""
        self.entries.row_at[i] = row
        self.entries.after_at[i] = after
        self.entries.granted_at[i] = self.entries.counts[i]

    def undo(self) -> None:
        """Undo what was done in advance.

        Nothing was done if sorting broke off or never began: then `left_at` does not yet separate
        done entries from unvisited ones.
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
