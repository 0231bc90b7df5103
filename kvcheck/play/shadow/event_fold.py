"""Fold the event stream into the cached keys (KV-EVT-7)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

from kvspec.errors import InvariantViolation
from kvspec.events import AllBlocksCleared, BlockRemoved, BlockStored, Event
from kvspec.policy import Policy
from kvspec.snapshot import Snapshot

ToldKey = tuple[object, int]
"""A hash as events show it, and its group."""


class EventFold:
    """The keys that are cached if the events are right, counted once per physical block.

    Example: stored h, stored h, removed h leaves h once. Memory: one entry per such key.
    `is_set`: only the last copy's removal has an event, and each key counts once (KV-POL-3).
    """

    def __init__(self, *, is_set: bool = False) -> None:
        self.keys: Counter[ToldKey] = Counter()
        self.is_set = is_set

    @classmethod
    def under(cls, policy: Policy) -> EventFold:
        return cls(is_set=policy.removed_event_per == "last_copy")

    def take_in(self, events: Iterable[Event]) -> None:
        for event in events:
            if isinstance(event, AllBlocksCleared):
                self.keys.clear()
            elif isinstance(event, BlockStored) and event.is_report:
                self._expect_known(event)
            elif isinstance(event, BlockStored):
                self._add(event.block_hashes, event.group, 1)
            elif isinstance(event, BlockRemoved):
                self._add(event.block_hashes, event.group, -1)

    def _expect_known(self, report: BlockStored) -> None:
        """Raise InvariantViolation if a report names a hit that was not stored before."""
        for shown in report.block_hashes:
            if not self.keys[shown, report.group]:
                raise InvariantViolation(
                    "reports_tell_what_is_cached",
                    "KV-EVT-11",
                    f"key {_text(shown)} of group {report.group} is reported, and not cached",
                )

    def start_from(self, snapshot: Snapshot, *, int_hashes: bool) -> None:
        self.keys = _cached(snapshot, int_hashes=int_hashes, is_set=self.is_set)

    def expect_state(self, snapshot: Snapshot, *, int_hashes: bool) -> None:
        """Check that the fold equals the cached keys. Raises InvariantViolation."""
        cached = _cached(snapshot, int_hashes=int_hashes, is_set=self.is_set)
        for key in [*cached, *self.keys]:
            if cached[key] != self.keys[key]:
                shown, group = key
                raise InvariantViolation(
                    "events_tell_what_is_cached",
                    "KV-EVT-7",
                    f"key {_text(shown)} of group {group} is cached {cached[key]} times,"
                    f" {self.keys[key]} times if the events are folded",
                )

    def _add(self, hashes: Iterable[object], group: int, count: int) -> None:
        for shown in hashes:
            before = 0 if self.is_set and count > 0 else self.keys[shown, group]
            self.keys[shown, group] = before + count
            if self.keys[shown, group] == 0:
                del self.keys[shown, group]


def _text(shown: object) -> object:
    """Return a hash as messages show it."""
    return shown.hex() if isinstance(shown, bytes) else shown


def _cached(snapshot: Snapshot, *, int_hashes: bool, is_set: bool) -> Counter[ToldKey]:
    counts: Counter[ToldKey] = Counter()
    for key, blocks in snapshot.lookup_order.items():
        shown: object = int.from_bytes(key[-12:-4], "big") if int_hashes else key[:-4]
        told = (shown, int.from_bytes(key[-4:], "big"))
        counts[told] = 1 if is_set else counts[told] + len(blocks)
    return counts
