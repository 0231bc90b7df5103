"""The cached keys of a manager on the host, and the changes not yet sent to a device.

Keys get entries of a table on the device, in order of arrival. A removed key keeps its entry,
marked dead, and revives it if the key returns; when the entries are used up, the live ones are
numbered again.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from kvfast.device.hashing.sha256 import DIGEST_BYTES
from kvspec.errors import InvalidArgumentError
from kvspec.events import AllBlocksCleared, BlockRemoved, BlockStored, Event
from kvspec.snapshot import Snapshot

GROUP_BYTES = 4
"""Bytes of a key after its hash (KV-HASH-6)."""


@dataclass(frozen=True)
class Changes:
    """The changes that make a device's table current.

    - `is_anew`: it must be emptied first.
    - `new`: hashes of the entries `first`, `first + 1`, …
    - `lives`: earlier entries, with 1 for revived ones and 0 for dead ones.
    """

    is_anew: bool
    first: int
    new: Sequence[bytes]
    lives: Mapping[int, int]


class Keys:
    """The hashes that are cached in the only group; `counts`: in how many blocks each.

    `counts_copies`: each Removed event is about one copy; else about the last one (KV-POL-3).
    """

    def __init__(self, num_blocks: int, *, counts_copies: bool) -> None:
        self.counts: dict[bytes, int] = {}
        self.max_entries = 2 * num_blocks
        self._max_keys = num_blocks - 1
        self._counts_copies = counts_copies
        self._entries: dict[bytes, int] = {}
        self._changed: dict[bytes, None] = {}  # in the order of their first change
        self._is_anew = True

    def read(self, snapshot: Snapshot) -> None:
        """Set the cached keys from a snapshot."""
        self.counts = {}
        for keys in snapshot.block_keys:
            for key in keys:
                self._count(self.counts, key[:-GROUP_BYTES], 1)
        self._is_anew = True

    def update(self, events: Iterable[Event]) -> None:
        """Fold events in (KV-EVT-7); an error leaves everything as it was."""
        if not isinstance(events, Iterable):
            raise InvalidArgumentError("events", events, "the events that take_events answered")
        counts: dict[bytes, int] = {}
        is_cleared = False
        for number, event in enumerate(events):
            field = f"events[{number}]"
            if isinstance(event, AllBlocksCleared):
                counts, is_cleared = {}, True
                continue
            if not isinstance(event, BlockStored | BlockRemoved) or event.group != 0:
                raise InvalidArgumentError(field, event, "an event of the manager's only group")
            if isinstance(event, BlockStored) and event.is_report:
                continue
            for one in event.block_hashes:
                if not isinstance(one, bytes) or len(one) != DIGEST_BYTES:
                    raise InvalidArgumentError(field, one, f"hashes of {DIGEST_BYTES} bytes")
                if one not in counts:
                    counts[one] = 0 if is_cleared else self.counts.get(one, 0)
                is_stored = isinstance(event, BlockStored)
                if not is_stored and not counts[one]:
                    raise InvalidArgumentError(field, event, "no Removed of a key that is not here")
                self._count(counts, one, 1 if is_stored else -1)
        self._take(counts, is_cleared=is_cleared)

    def _count(self, counts: dict[bytes, int], one: bytes, change: int) -> None:
        count = counts.get(one, 0) + change
        counts[one] = count if self._counts_copies else min(count, 1)

    def _take(self, counts: Mapping[bytes, int], *, is_cleared: bool) -> None:
        """Set the counts of these hashes, and keep the others, or drop them with `is_cleared`."""
        kept = {} if is_cleared else self.counts
        gone = sum(not counts[one] and one in kept for one in counts)
        num_keys = len(kept) - gone + sum(counts[one] > 0 and one not in kept for one in counts)
        if num_keys > self._max_keys:
            allowed = f"at most {self._max_keys} keys, as there are blocks"
            raise InvalidArgumentError("events", num_keys, allowed)
        if is_cleared:
            self.counts = {}
            self._is_anew = True
        for one, count in counts.items():
            if count:
                self.counts[one] = count
            else:
                self.counts.pop(one, None)
            self._changed[one] = None

    def take_changes(self) -> Changes:
        """Return all changes since the last call."""
        new = [one for one in self._changed if one in self.counts and one not in self._entries]
        is_anew = self._is_anew or len(self._entries) + len(new) > self.max_entries
        lives: dict[int, int] = {}
        if is_anew:
            self._entries, new = {}, list(self.counts)
        else:
            old = [one for one in self._changed if one in self._entries]
            lives = {self._entries[one]: int(one in self.counts) for one in old}
        first = len(self._entries)
        self._entries.update((one, first + i) for i, one in enumerate(new))
        self._changed, self._is_anew = {}, False
        return Changes(is_anew, first, new, lives)
