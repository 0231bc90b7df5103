"""The index of engines (KV-FLEET-*): what each has, and per hash a bit for each that has it."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

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
from kvspec.fleet import MOST_WAITING, Batch, EngineState, GroupPrefix, Heard, MediumCleared

_Place: TypeAlias = tuple[str, int]
"""Medium and group."""

_LONG_AGO = float("-inf")


@dataclass(slots=True)
class _Line:
    """One engine. `bit`: its own in every mask. `due`: the number that is expected next."""

    bit: int
    due: int = 0
    time_s: float = _LONG_AGO
    is_whole: bool = True
    waiting: dict[int, Batch] = field(default_factory=dict)
    copies: dict[_Place, dict[EventHash, int]] = field(default_factory=dict)


class FastIndex:
    """See `kvspec.fleet.PrefixIndex` for what each call promises.

    An event costs a few look-ups in dicts, and `prefixes` one per hash, however many engines there
    are. Memory: per engine an entry for each key, and one for each key that any of them has.
    """

    def __init__(self, *, removed_event_per: str = "copy", max_waiting: int = MOST_WAITING) -> None:
        self._max_waiting = check_index(removed_event_per, max_waiting)
        self._is_set = removed_event_per == "last_copy"
        self._lines: dict[str, _Line] = {}
        self._owners: dict[_Place, dict[EventHash, int]] = {}

    @property
    def engines(self) -> tuple[str, ...]:
        """The names of all engines, sorted."""
        return tuple(sorted(self._lines))

    def hear(self, engine: str, batch: Batch) -> Heard:
        """Apply it if it is due, keep it if it is early."""
        engine = check_engine(engine)
        check_batch(batch)
        line = self._lines.get(engine) or self._begin(engine)
        if batch.number < line.due:
            if batch.time_s <= line.time_s:
                return Heard.KNOWN  # KV-FLEET-2
            self._begin(engine)  # KV-FLEET-5
            self.hear(engine, batch)
            return Heard.RESTARTED
        if batch.time_s < line.time_s or batch.number in line.waiting:
            return Heard.KNOWN
        if batch.number == line.due:
            self._apply(line, batch)
            self._go_on(line)
            return Heard.APPLIED
        if len(line.waiting) >= self._max_waiting:
            return Heard.FULL
        line.waiting[batch.number] = batch
        return Heard.WAITING

    def restore(self, engine: str, state: EngineState) -> bool:
        """Replace the engine's keys (KV-FLEET-6)."""
        engine = check_engine(engine)
        check_state(state)
        line = self._lines.get(engine) or self._begin(engine)
        if (state.time_s, state.number) < (line.time_s, line.due - 1):
            return False
        self._clear(line)
        for (medium, group, block_hash), copies in state.keys.items():
            self._set(line, (medium, group), block_hash, copies)
        line.due, line.time_s, line.is_whole = state.number + 1, state.time_s, state.is_whole
        self._go_on(line)
        return True

    def skip(self, engine: str) -> bool:
        """Restart, empty, at the lowest waiting batch (KV-FLEET-7)."""
        line = self._line(engine)
        if not line.waiting:
            return False
        self._clear(line)
        line.due, line.is_whole = min(line.waiting), False
        self._go_on(line)
        return True

    def forget(self, engine: str) -> None:
        """Drop the engine; its bit is free again."""
        line = self._lines.pop(check_engine(engine), None)
        if line is not None:
            self._clear(line)

    def missing(self, engine: str) -> tuple[int, int] | None:
        """Return the missing numbers up to the lowest waiting one (KV-FLEET-3)."""
        line = self._line(engine)
        return (line.due, min(line.waiting)) if line.waiting else None

    def last(self, engine: str) -> tuple[int, float]:
        """Return the number and time of the last applied batch."""
        line = self._line(engine)
        return line.due - 1, line.time_s

    def state(self, engine: str) -> EngineState:
        """Return a copy of the engine's state."""
        line = self._line(engine)
        keys = {
            (medium, group, block_hash): copies
            for (medium, group), hashes in line.copies.items()
            for block_hash, copies in hashes.items()
        }
        return EngineState(line.due - 1, line.time_s, keys, line.is_whole)

    def prefixes(
        self, hashes: Sequence[EventHash], *, group: int = 0, medium: str = MEDIUM_GPU
    ) -> Mapping[str, int]:
        """Look up one hash after another, until no engine has it (KV-FLEET-8)."""
        check_hashes("hashes", hashes)
        owners = self._owners.get((medium, group), {})
        reached: list[tuple[int, int]] = []  # hashes, and the bits of the engines with that many
        alive = owners.get(hashes[0], 0) if len(hashes) else 0
        length = 1
        while alive and length < len(hashes):
            now = alive & owners.get(hashes[length], 0)
            if now != alive:
                reached.append((length, alive & ~now))
            alive, length = now, length + 1
        reached.append((length, alive))
        return self._by_name(reached)

    def hits(self, groups: Sequence[GroupPrefix], *, medium: str = MEDIUM_GPU) -> Mapping[str, int]:
        """Compute hits with a few operations on masks per hash (KV-FLEET-17)."""
        check_groups(groups)
        step = math.lcm(*(one.block_size_tokens for one in groups))
        length = min(len(one.hashes) * one.block_size_tokens for one in groups) // step * step
        left = sum(line.bit for line in self._lines.values())
        able = [(one.block_size_tokens, self._able(one, medium, left)) for one in groups]
        reached: list[tuple[int, int]] = []
        while length and left:
            bits = left
            for block_size, masks in able:
                bits &= masks[length // block_size]
            reached.append((length, bits))
            left &= ~bits
            length -= step
        return self._by_name(reached)

    def _by_name(self, reached: Sequence[tuple[int, int]]) -> Mapping[str, int]:
        """Return engines by name with their numbers, from pairs of a number and the bits of its
        engines.
        """
        found = {}
        for name in self.engines:
            bit = self._lines[name].bit
            for number, bits in reached:
                if bits & bit:
                    found[name] = number
        return found

    def _able(self, one: GroupPrefix, medium: str, everyone: int) -> list[int]:
        """Return, for each number of blocks, the engines with all that such a hit needs."""
        owners = self._owners.get((medium, one.group), {})
        masks = [everyone] + [owners.get(block_hash, 0) for block_hash in one.hashes]
        wanted = one.num_last_blocks
        span = 1  # masks[k] is of the last `span` blocks before k
        if wanted == 0:
            return [everyone] * len(masks)
        while span < len(masks) and (wanted is None or span < wanted):
            # Twice as many blocks at once, or as many more as are still wanted.
            further = span if wanted is None else min(span, wanted - span)
            earlier = [everyone] * min(further, len(masks)) + masks[: len(masks) - further]
            masks = [now & before for now, before in zip(masks, earlier, strict=True)]
            span += further
        return masks

    def _begin(self, engine: str) -> _Line:
        """Begin an engine without keys, whose first batch is due."""
        line = self._lines.get(engine)
        if line is not None:
            self._clear(line)
            bit = line.bit
        else:
            taken = sum(other.bit for other in self._lines.values())
            bit = ~taken & (taken + 1)  # the lowest free one
        self._lines[engine] = _Line(bit)
        return self._lines[engine]

    def _go_on(self, line: _Line) -> None:
        """Apply the batches that waited for this, and drop those that can no longer follow."""
        while True:
            if line.waiting:
                line.waiting = {
                    number: batch
                    for number, batch in line.waiting.items()
                    if number >= line.due and batch.time_s >= line.time_s  # KV-FLEET-5
                }
            batch = line.waiting.pop(line.due, None)
            if batch is None:
                return
            self._apply(line, batch)

    def _apply(self, line: _Line, batch: Batch) -> None:
        for event in batch.events:
            self._fold(line, event)
        line.due, line.time_s = batch.number + 1, batch.time_s

    def _fold(self, line: _Line, event: Event | MediumCleared) -> None:
        """Apply one event (KV-FLEET-4)."""
        if isinstance(event, AllBlocksCleared):
            self._clear(line)
            line.is_whole = True  # KV-FLEET-7
            return
        if isinstance(event, MediumCleared):  # KV-FLEET-12
            self._clear(line, event.medium)
            return
        place = (event.medium, event.group)
        known = line.copies.get(place, {})
        is_stored = isinstance(event, BlockStored)
        is_once = self._is_set or (isinstance(event, BlockStored) and event.is_report)
        for block_hash in event.block_hashes:
            copies = known.get(block_hash, 0)
            if is_stored and not (copies and is_once):
                self._set(line, place, block_hash, copies + 1)
            elif not is_stored and copies:
                self._set(line, place, block_hash, copies - 1)
            known = line.copies.get(place, known)

    def _set(self, line: _Line, place: _Place, block_hash: EventHash, copies: int) -> None:
        """Set the number of copies; 0 removes the key."""
        if copies:
            line.copies.setdefault(place, {})[block_hash] = copies
            owners = self._owners.setdefault(place, {})
            owners[block_hash] = owners.get(block_hash, 0) | line.bit
        else:
            del line.copies[place][block_hash]
            self._disown(line, place, block_hash)

    def _disown(self, line: _Line, place: _Place, block_hash: EventHash) -> None:
        left = self._owners[place][block_hash] & ~line.bit
        if left:
            self._owners[place][block_hash] = left
        else:
            del self._owners[place][block_hash]

    def _clear(self, line: _Line, medium: str | None = None) -> None:
        """Drop all keys, or those of one medium; waiting batches stay."""
        for place in [place for place in line.copies if medium in (None, place[0])]:
            for block_hash in line.copies.pop(place):
                self._disown(line, place, block_hash)

    def _line(self, engine: str) -> _Line:
        engine = check_engine(engine)
        if engine not in self._lines:
            raise InvalidArgumentError("engine", engine, "one that was heard of")
        return self._lines[engine]
