"""Steps over registered requests: what may be done, and doing it (KV-BATCH-*).

The same as the manager's single calls one after another, without a Python call for each request.
"""

from __future__ import annotations

from kvspec.request import RequestStatus

from . import hot, objects, probing, reports
from .core import Core
from .entries import Entries, Numbers
from .registry import Registry
from .request import FastRequest
from .running import Running

WAITING = RequestStatus.WAITING
RUNNING = RequestStatus.RUNNING
PREEMPTED = RequestStatus.PREEMPTED
MANY = 1 << 62  # as in running


class Steps:
    """One step at a time; see `Entries` for the order in it.

    `results.scheduled`: what running and new entries were granted; `results.hits`: what was cached
    of the new ones.
    """

    def __init__(self, core: Core, registry: Registry, entries: Entries, running: Running) -> None:
        self.core = core
        self.registry = registry
        self.entries = entries
        self.running = running
        self.ahead = self.running.ahead
        self.budget = self.reserved = 0
        self.whole_must_fit = self.stops_at_refusal = False
        self.results = objects.Results()

    def all_legal(self) -> bool:
        """Return whether every entry is legal (KV-BATCH-2); if not, nothing is changed."""
        entries, ahead = self.entries, self.ahead
        entries.make_room_for_step()
        ahead.make_room()
        ahead.sort_all()
        if (
            ahead.num_asked == 0
            and entries.end_running == entries.size
            and entries.end_finished == entries.end_preempted
        ):
            return True
        try:
            legal = self.running.may_all_continue() and self.are_others_legal()
        except BaseException:  # a status can be anything, and is compared
            ahead.undo()
            raise
        if not legal:
            ahead.undo()
        return legal

    def are_others_legal(self) -> bool:
        """Return whether preempted and new entries are legal."""
        entries = self.entries
        for i in range(entries.end_finished, entries.end_preempted):
            if entries.request_at(i).preemptions < 0:
                return False
        for i in range(entries.end_running, entries.size):
            objects.fetch_item(self.registry.requests, entries.handles[i])
        for i in range(entries.end_running, entries.size):
            objects.fetch_object(entries.request_at(i).request_id)
            objects.fetch_long(self.registry.fields, hot.STRIDE * entries.handles[i])
        legal = True
        for i in range(entries.end_running, entries.size):
            legal = legal and self.may_start(i)
        return legal

    def may_start(self, i: int) -> bool:
        """Return whether a request holds nothing, and every token could have a slot (KV-BATCH-7).

        Notes its row, which may exist without any block.
        """
        core = self.core
        request = self.entries.request_at(i)
        number, end = 0, min(request.num_hashes, probing.RUN_BLOCKS)
        while number < end:  # the first hash of each line of the map
            objects.fetch_at(request.digest_words, number * core.hasher.words_per_digest)
            number += probing.SIDE_MASK + 1
        if request.computed_now() != 0 or not self.running.is_scheduled(request):
            return False
        if request.num_tokens > core.max_len:
            return False
        row = core.rows.of(request)
        self.entries.row_at[i] = row
        return not core.allocator.holds_blocks(row)

    def most_slots(self) -> int:
        """Return the most tokens that the step may schedule (KV-BATCH-9)."""
        entries = self.entries
        certain = wanted = 0
        for i in range(entries.end_preempted, entries.end_running):
            certain = min(certain + entries.counts[i], MANY)
        for i in range(entries.end_running, entries.size):
            wanted = min(wanted + min(entries.counts[i], entries.request_at(i).num_tokens), MANY)
        return certain + min(max(0, self.budget - certain), wanted)

    # What is done.

    def perform(self) -> None:
        """Do all entries in order. `results` is ready for those that run and the new ones."""
        entries = self.entries
        num_running = entries.end_running - entries.end_preempted
        for i in range(entries.end_preempted):
            self.give_back(i)
        self.running.continue_all()
        is_one_each = self.running.granted == num_running and not self.running.refused
        if entries.size > entries.end_running:
            self.start_all(self.results.hits)
            is_one_each = False
        if not is_one_each:
            self.write_granted(self.results.scheduled)

    def give_back(self, i: int) -> None:
        """Release all blocks of a request and reset it (KV-BATCH-5)."""
        entries = self.entries
        request = entries.request_at(i)
        self.core.release(request)
        request.set_computed(0)
        if i >= entries.end_finished:
            request.preemptions += 1
            request.set_status(PREEMPTED)
        else:
            request.set_status(WAITING)
        self.registry.nothing_reported(entries.handles[i])

    def start_all(self, hits: Numbers) -> None:
        """Start new requests (KV-BATCH-7) within what is left of the budget (KV-BATCH-8)."""
        registry, entries = self.registry, self.entries
        budget = max(0, self.budget - self.running.granted)
        is_beside_others = self.running.granted > 0
        first = entries.end_running
        for i in range(first, entries.size):
            entries.granted_at[i] = 0
        for i in range(first, entries.size):
            if budget == 0:
                break
            request = entries.request_at(i)
            # Without caching a request may have the hashes of another manager, of another length.
            if i + 1 < entries.size and self.core.enable_caching:
                self.read_ahead(entries.request_at(i + 1))
            hit = self.find_hit(request)
            if not self.core.counts_admitted:
                self.count_hit(request, hit)
            num_tokens = min(min(entries.counts[i], budget), request.num_tokens - hit)
            if self.start(i, request, hit, num_tokens, is_beside_others):
                registry.note_row(entries.handles[i], entries.row_at[i])
                entries.after_at[i] = hit + num_tokens
                registry.nothing_reported(entries.handles[i])
                if self.core.counts_admitted:  # KV-POL-18
                    self.count_hit(request, hit)
                hits[i - first] = hit
                entries.granted_at[i] = num_tokens
                budget -= num_tokens
                self.running.granted += num_tokens
                is_beside_others = True
            elif self.stops_at_refusal:
                break

    def read_ahead(self, request: FastRequest) -> None:
        """Fetch what starting a request reads first: hashes, and where they belong in the map."""
        keys, width = self.core.pool.keys, self.core.hasher.words_per_digest
        number, end = 0, min(request.num_hashes, probing.RUN_BLOCKS)
        while number < end:
            keys.fetch_slots(keys.home_of(request, number, 0))
            for k in range(2, probing.SIDE_MASK, 2):  # two hashes of 32 bytes are a line
                objects.fetch_at(request.digest_words, (number + k) * width)
            number += probing.SIDE_MASK + 1

    def find_hit(self, request: FastRequest) -> int:
        """Return the hit length in tokens; its blocks are in the look-up (KV-MGR-2)."""
        core = self.core
        if not self.running.caches or request.skips_reading:
            core.lookup.clear()
            return 0
        tokens = core.longest_hit(request, max(request.num_tokens - core.num_last, 0))
        if tokens == 0:
            core.lookup.clear()
        elif core.reports_asked:  # KV-POL-25
            reports.report_hit(core.events, core.lookup, request, tokens)
        return tokens

    def count_hit(self, request: FastRequest, tokens: int) -> None:
        """Count the look-up, if there was one (KV-STAT-1)."""
        if self.running.caches and self.core.log_stats and not request.skips_reading:
            self.core.stats.count(request, tokens)

    def start(
        self, i: int, request: FastRequest, hit: int, num_tokens: int, is_beside_others: bool
    ) -> bool:
        """Admit a request with the hit just found; returns False if there is no room."""
        core = self.core
        asked = core.asked.of(num_tokens, self.ahead.lookahead, hit)
        asked.has_hits, asked.whole_must_fit = hit > 0, self.whole_must_fit
        asked.reserved = self.reserved
        asked.watermark = core.watermark_for(request) if is_beside_others else 0
        row = core.place(self.entries.row_at[i], request, asked)
        if row < 0:
            return False
        self.entries.row_at[i] = row
        self.running.cache_until(row, request, hit + num_tokens)
        request.set_status(RUNNING)
        return True

    def write_granted(self, scheduled: Numbers) -> None:
        """Write the tokens granted to each running and each new entry."""
        entries, ahead = self.entries, self.ahead
        start = entries.end_preempted
        for i in range(start, entries.end_running):
            scheduled[i - start] = entries.counts[i]
        for k in range(ahead.num_left):  # the others were granted all
            i = ahead.left_at[k]
            scheduled[i - start] = entries.granted_at[i]
        for i in range(entries.end_running, entries.size):
            scheduled[i - start] = entries.granted_at[i]
