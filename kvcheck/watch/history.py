"""The last calls, kept so that they can be written as a record; and nothing before them.

The history is made of two parts, each of a state and the calls since. When the second is full and
the state is known, the first is dropped and a third begins: a record holds between one and two
parts. Example with parts of 100 calls: after 250 it begins with the state after call 100.

A manager that shows no state has a single part, and no record once it has more calls than two
parts.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from kvcheck.play.state import View, observed
from kvcheck.watch.calls import Noted
from kvcheck.watch.requests import Describe
from kvcheck.watch.writing import OperationWriter, UnrecordableError
from kvspec.config import ManagerConfig
from kvspec.errors import FormatError
from kvspec.interface import KVCacheManager
from kvspec.record import Footer, Header, Observed, Operation
from kvspec.record_file import write_trace

QUEUED = ("take_events", "make_prefix_cache_stats")
"""Calls that return what was queued before; a state does not include it."""

LEAST_TOKENS = 100_000
"""A part is not full until its requests have this many tokens, however small the pool is."""


@dataclass
class _Part:
    """A state and the calls since; `view` None: the manager shows none.

    Each call is followed by the view of the state after it, as far as records of this pool show
    any, or by None if it was not read.
    """

    view: View | None
    calls: list[tuple[Noted, Observed | None]] = field(default_factory=list)
    request_ids: set[int] = field(default_factory=set)
    num_tokens: int = 0
    size_bytes: int = 0


class History:
    """The calls to one manager. `length`: calls in a part.

    Requests are kept by reference: their tokens are read when the record is written.
    """

    def __init__(
        self,
        manager: KVCacheManager,
        describe: Describe,
        view: View | None,
        *,
        length: int,
    ) -> None:
        self.config: ManagerConfig = manager.config
        self.none_hash = manager.none_hash
        self.describe = describe
        self.length = length
        self.is_small = Header(self.config, self.none_hash, None).is_small
        self.starts_afresh = view is not None and _is_fresh(self.config, view)
        self._parts = [_Part(view)]
        self._last_view = view
        self._gap: str | None = None
        self._at_start = Observed(manager.num_free_blocks, manager.usage)
        if view is None and manager.num_free_blocks != self.config.kv_cache.num_blocks - 1:
            self._gap = "the manager does not show its state, and is in use already"
        sizes = [group.spec.block_size for group in self.config.kv_cache.groups]
        self._max_tokens = max(LEAST_TOKENS, 4 * self.config.kv_cache.num_blocks * max([1, *sizes]))

    @property
    def is_full(self) -> bool:
        """Whether the next known state should begin a new part."""
        part = self._parts[-1]
        is_long = len(part.calls) >= self.length or part.num_tokens >= self._max_tokens
        return is_long or self._gap is not None

    @property
    def size_bytes(self) -> int:
        """An estimate of the memory in use; a state counts with 200 bytes per block."""
        per_state = 200 * self.config.kv_cache.num_blocks
        return sum(part.size_bytes + per_state for part in self._parts)

    def add(self, noted: Noted | None, view: View | None) -> None:
        """Add a call, and the state after it if it was read.

        `noted` is None for a call that records do not know and that changed nothing.
        """
        part = self._parts[-1]
        if part.view is None and len(part.calls) >= 2 * self.length:
            self._gap = "the manager does not show its state, and too many calls were made"
            part.calls.clear()
        if noted is None or (part.view is None and self._gap is not None):
            return
        seen = None
        if view is not None and self.is_small:
            seen = observed(view, self._last_view, is_small=True)
            self._last_view = view
        part.calls.append((noted, seen))
        part.size_bytes += noted.size_bytes
        if seen is not None:
            part.size_bytes += 500 + 20 * self.config.kv_cache.num_blocks * len(seen.state)
        if noted.request is not None and id(noted.request) not in part.request_ids:
            part.request_ids.add(id(noted.request))
            part.num_tokens += noted.num_tokens

    def break_off(self, why: str) -> None:
        """Note an event that records cannot express: they can only start from a later state."""
        self._gap = why

    def begin_part(self, view: View) -> None:
        self._parts = [*self._parts[-1:], _Part(view)]
        if self._gap is not None:
            self._parts, self._gap = self._parts[-1:], None
        self._last_view = view
        self.starts_afresh = False

    def write(
        self,
        path: Path,
        source: str,
        scenario: str,
        coverage: Mapping[str, int],
        last: View | None,
    ) -> Footer:
        """Write the record. `last` is the state after the last call.

        Raises UnrecordableError, OSError.
        """
        first = self._parts[0].view
        if self._gap is not None:
            raise UnrecordableError(self._gap)
        initial = None if first is None else observed(first, None, is_small=self.is_small)
        # A new manager has the first state only if its hash seed is fixed.
        is_new = self.starts_afresh and self.config.hash_seed is not None
        header = Header(
            config=self.config,
            none_hash=self.none_hash,
            initial=initial,
            source=source,
            scenario=scenario,
            start=None if first is None or is_new else first.snapshot,
        )
        try:
            operations = list(self._operations(header, last))
            return write_trace(path, header, operations, coverage)
        except (FormatError, TypeError, ValueError) as error:
            raise UnrecordableError(f"records cannot say what happened ({error})") from error

    def _operations(self, header: Header, last: View | None) -> Iterator[Operation]:
        """Yield all calls as operations, with requests made and extended before they are needed."""
        calls = [call for part in self._parts for call in part.calls]
        initial = header.initial or self._at_start
        knows_state = not header.is_stateless
        writer = OperationWriter(self.config, self.describe, initial, knows_state=knows_state)
        waiting = set(QUEUED) if header.start is not None else set()
        for number, (noted, seen) in enumerate(calls):
            yield from writer.prepare(noted)
            is_last = number == len(calls) - 1
            if is_last and last is not None and seen is None:
                seen = self._last_observed(last)
            uncompared = () if seen is not None else ("state",)
            if noted.name in waiting:
                waiting.discard(noted.name)
                uncompared = ("result", *uncompared)
            after = seen or Observed(noted.num_free_blocks, noted.usage)
            yield writer.operation(noted, after, uncompared)

    def _last_observed(self, last: View) -> Observed:
        """Return the state after the last call, relative to the last one that the record shows."""
        if self.is_small:
            return observed(last, self._last_view, is_small=True)
        return observed(last, None, is_small=False)


def _is_fresh(config: ManagerConfig, view: View) -> bool:
    """Return whether this is the state of a manager that was just made (KV-POOL-2)."""
    snapshot = view.snapshot
    set_aside = set(snapshot.reserved_blocks)
    unused = [b for b in range(1, config.kv_cache.num_blocks) if b not in set_aside]
    return (
        list(snapshot.free_queue) == unused
        and not snapshot.lookup_order
        and not snapshot.requests
        and not snapshot.popped_blocks
        and not any(snapshot.new_block_ids)
    )
