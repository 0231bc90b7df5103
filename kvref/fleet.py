"""The index of engines, by the letter of the rules (KV-FLEET-*): queries fold all batches."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from kvspec.checks.fleet import (
    check_batch,
    check_engine,
    check_groups,
    check_hashes,
    check_index,
    check_state,
)
from kvspec.errors import InvalidArgumentError
from kvspec.events import MEDIUM_GPU, AllBlocksCleared, BlockStored, Event, EventHash
from kvspec.fleet import (
    MOST_WAITING,
    Batch,
    EngineState,
    FleetKey,
    GroupPrefix,
    Heard,
    MediumCleared,
)

BEGINNING = EngineState(-1, float("-inf"), {})


@dataclass
class Told:
    """One engine: the state to begin from, and every batch received since, by its number."""

    start: EngineState = BEGINNING
    batches: dict[int, Batch] = field(default_factory=dict)

    @property
    def applied(self) -> Iterator[Batch]:
        """Batches from the start up to the first gap (KV-FLEET-1).

        A batch with an earlier time is left from before a restart (KV-FLEET-5).
        """
        number, time_s = self.start.number + 1, self.start.time_s
        while number in self.batches and self.batches[number].time_s >= time_s:
            yield self.batches[number]
            number, time_s = number + 1, self.batches[number].time_s

    @property
    def last(self) -> tuple[int, float]:
        """Number and time of the last that is applied."""
        found = (self.start.number, self.start.time_s)
        for batch in self.applied:
            found = (batch.number, batch.time_s)
        return found

    @property
    def waiting(self) -> list[int]:
        """Numbers of batches after a gap, ascending."""
        return sorted(number for number in self.batches if number > self.last[0])

    def drop_old(self) -> None:
        """Drop waiting batches not later than the last: those before a restart (KV-FLEET-5)."""
        while old := [n for n in self.waiting if self.batches[n].time_s < self.last[1]]:
            for one in old:
                del self.batches[one]


class ReferenceIndex:
    """The index; `told` maps each engine to the batches received from it."""

    def __init__(self, *, removed_event_per: str = "copy", max_waiting: int = MOST_WAITING) -> None:
        self.max_waiting = check_index(removed_event_per, max_waiting)
        self.is_set = removed_event_per == "last_copy"
        self.told: dict[str, Told] = {}

    @property
    def engines(self) -> tuple[str, ...]:
        """The names of all engines, sorted."""
        return tuple(sorted(self.told))

    def hear(self, engine: str, batch: Batch) -> Heard:
        engine = check_engine(engine)
        check_batch(batch)
        told = self.told.setdefault(engine, Told())
        number, time_s = told.last
        restarted = batch.number <= number and batch.time_s > time_s
        if restarted:  # KV-FLEET-5
            told = self.told[engine] = Told()
        elif batch.number <= number or batch.time_s < time_s or batch.number in told.batches:
            return Heard.KNOWN  # KV-FLEET-2
        if batch.number > told.last[0] + 1 and len(told.waiting) >= self.max_waiting:
            return Heard.FULL
        told.batches[batch.number] = batch
        told.drop_old()
        if restarted:
            return Heard.RESTARTED
        return Heard.WAITING if batch.number in told.waiting else Heard.APPLIED

    def restore(self, engine: str, state: EngineState) -> bool:
        """Set a new start, and keep the batches after it (KV-FLEET-6)."""
        engine = check_engine(engine)
        check_state(state)
        told = self.told.get(engine, Told())
        number, time_s = told.last
        if (state.time_s, state.number) < (time_s, number):
            return False
        later = {n: one for n, one in told.batches.items() if n > state.number}
        self.told[engine] = Told(state, later)
        self.told[engine].drop_old()
        return True

    def skip(self, engine: str) -> bool:
        """Restart, empty, at the lowest waiting batch (KV-FLEET-7)."""
        told = self._of(engine)
        if not told.waiting:
            return False
        first = told.waiting[0]
        start = EngineState(first - 1, told.last[1], {}, is_whole=False)
        later = {n: one for n, one in told.batches.items() if n >= first}
        self.told[engine] = Told(start, later)
        self.told[engine].drop_old()
        return True

    def forget(self, engine: str) -> None:
        self.told.pop(check_engine(engine), None)

    def missing(self, engine: str) -> tuple[int, int] | None:
        """Return the range between the last applied and the first that waits (KV-FLEET-3)."""
        told = self._of(engine)
        return (told.last[0] + 1, told.waiting[0]) if told.waiting else None

    def last(self, engine: str) -> tuple[int, float]:
        """Return the number and time of the last applied batch."""
        return self._of(engine).last

    def state(self, engine: str) -> EngineState:
        """Fold the start and all applied batches (KV-FLEET-4)."""
        told = self._of(engine)
        is_whole, keys = told.start.is_whole, Counter(dict(told.start.keys))
        for batch in told.applied:
            for event in batch.events:
                is_whole = is_whole or isinstance(event, AllBlocksCleared)  # KV-FLEET-7
                self._fold(keys, event)
        number, time_s = told.last
        return EngineState(number, time_s, dict(keys), is_whole)

    def prefixes(
        self, hashes: Sequence[EventHash], *, group: int = 0, medium: str = MEDIUM_GPU
    ) -> Mapping[str, int]:
        """Compare engine by engine, hash by hash (KV-FLEET-8)."""
        check_hashes("hashes", hashes)
        found: dict[str, int] = {}
        for engine in self.engines:
            keys, length = self.state(engine).keys, 0
            while length < len(hashes) and (medium, group, hashes[length]) in keys:
                length += 1
            if length:
                found[engine] = length
        return found

    def hits(self, groups: Sequence[GroupPrefix], *, medium: str = MEDIUM_GPU) -> Mapping[str, int]:
        """Compare engine by engine, from the longest length down, group by group (KV-FLEET-17)."""
        check_groups(groups)
        step = math.lcm(*(one.block_size_tokens for one in groups))
        longest = min(len(one.hashes) * one.block_size_tokens for one in groups)
        found: dict[str, int] = {}
        for engine in self.engines:
            keys = self.state(engine).keys
            for length in range(longest // step * step, 0, -step):
                if all(_hits(keys, medium, one, length) for one in groups):
                    found[engine] = length
                    break
        return found

    def _fold(self, keys: Counter[FleetKey], event: Event | MediumCleared) -> None:
        """Apply one event to the keys (KV-FLEET-4)."""
        if isinstance(event, AllBlocksCleared):
            keys.clear()
            return
        if isinstance(event, MediumCleared):  # KV-FLEET-12
            for key in list(keys):
                if key[0] == event.medium:
                    del keys[key]
            return
        for block_hash in event.block_hashes:
            key = (event.medium, event.group, block_hash)
            if not isinstance(event, BlockStored):
                keys[key] = max(keys[key] - 1, 0)
            elif event.is_report or self.is_set:
                keys[key] = max(keys[key], 1)
            else:
                keys[key] += 1
            if keys[key] == 0:
                del keys[key]

    def _of(self, engine: str) -> Told:
        engine = check_engine(engine)
        if engine not in self.told:
            raise InvalidArgumentError("engine", engine, "one that was heard of")
        return self.told[engine]


def _hits(keys: Mapping[FleetKey, int], medium: str, one: GroupPrefix, length: int) -> bool:
    """Return whether a group has the blocks that a hit of `length` tokens needs."""
    end = length // one.block_size_tokens
    first = 0 if one.num_last_blocks is None else max(0, end - one.num_last_blocks)
    return all((medium, one.group, each) in keys for each in one.hashes[first:end])
