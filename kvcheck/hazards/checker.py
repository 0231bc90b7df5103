"""Find accesses to one block that no order keeps apart, or whose order is wrong (KV-HAZ-1 … 6).

Work of one stream is ordered. Other work is ordered by `after`, and by the host, which issues it
after it has learned that other work ended. So a work has a vector clock: for each stream, how many
works of it surely ended before this one began. Two accesses that no clock orders may happen at
once.
"""

from __future__ import annotations

from collections.abc import Container, Iterator
from dataclasses import dataclass, field

from kvcheck.hazards.lines import Ended, Given, Line, Place, Pools, Run
from kvspec.errors import InvalidArgumentError

Clock = dict[str, int]


def _join(clock: Clock, other: Clock) -> None:
    """Advance a clock by what another knows."""
    for stream, count in other.items():
        clock[stream] = max(clock.get(stream, 0), count)


@dataclass(eq=False)
class _Work:
    """A `Run`, the `index`-th of its stream, and the clock of what ended before it."""

    run: Run
    line: int
    index: int
    before: Clock
    failed: bool = False

    def is_in(self, clock: Clock) -> bool:
        """Whether it has ended by this clock."""
        return clock.get(self.run.stream, 0) >= self.index

    def end(self) -> Clock:
        return {**self.before, self.run.stream: self.index}


@dataclass(frozen=True)
class _Access:
    """An access of a work to a block while the block had its `generation`-th content."""

    work: _Work
    place: Place
    is_write: bool
    generation: int

    def overlaps(self, place: Place) -> bool:
        return self.place.begin < place.end and place.begin < self.place.end

    def covers(self, other: _Access) -> bool:
        """Whether who comes after this read comes after the other one, too."""
        return (
            not (self.is_write or other.is_write)
            and self.work.run.stream == other.work.run.stream
            and self.generation == other.generation
            and self.place.begin <= other.place.begin
            and other.place.end <= self.place.end
        )

    @property
    def is_content(self) -> bool:
        """Whether it writes keys and values."""
        return self.is_write and not self.work.run.is_zeroing


@dataclass(eq=False)
class _Block:
    """Who holds and held a block, and what was done in it. A new owner begins a new generation."""

    generation: int = 0
    holders: set[str] = field(default_factory=set)
    former: set[str] = field(default_factory=set)
    accesses: list[_Access] = field(default_factory=list)


@dataclass(frozen=True)
class Hazard:
    """A rule that `second` breaks in a block, beside `first` where there are two.

    `lines` are their numbers in the record.
    """

    rule: str
    place: Place
    what: str
    first: str | None
    second: str
    lines: tuple[int, ...]

    def __str__(self) -> str:
        return f"{self.rule} {self.place}"


class HazardChecker:
    """Takes lines in the order in which the host issues them; each returns its hazards."""

    def __init__(self) -> None:
        self.sizes_tokens: dict[str, int] = {}
        self.works: dict[str, _Work] = {}
        self._blocks: dict[tuple[str, int], _Block] = {}
        self._streams: dict[str, Clock] = {}
        self._known: Clock = {}

    def take(self, line: Line, number: int = 0) -> list[Hazard]:
        """Return what is wrong with a line. Raises InvalidArgumentError for an id of no work."""
        if isinstance(line, Pools):
            self.sizes_tokens = dict(line.sizes_tokens)
            return []
        if isinstance(line, Given):
            return list(self._given(line, number))
        if isinstance(line, Ended):
            work = self._work(line.id)
            _join(self._known, work.end())
            work.failed = not line.ok
            return []
        return list(self._run(line, number))

    def forget(self, awaited: Container[str]) -> None:
        """Forget the ids of work that has ended, by what the host knows.

        Later lines may name only those of `awaited`.
        """
        works = self.works.items()
        self.works = {n: w for n, w in works if n in awaited or not w.is_in(self._known)}

    def is_filled(self, place: Place) -> bool:
        """Whether work that did not fail has written all its slots since the block was given."""
        block, left = self._block(place), set(range(place.begin, place.end))
        for access in reversed(block.accesses):
            if access.is_content and access.generation == block.generation:
                slots = set(range(access.place.begin, access.place.end)) & left
                if slots and access.work.failed:
                    return False
                left -= slots
        return not left

    def _work(self, name: str) -> _Work:
        if name not in self.works:
            raise InvalidArgumentError("id", name, "the id of earlier work")
        return self.works[name]

    def _block(self, place: Place) -> _Block:
        return self._blocks.setdefault(place.of_block, _Block())

    def _given(self, line: Given, number: int) -> Iterator[Hazard]:
        for place in line.places:
            block = self._block(place)
            if line.is_back:
                block.holders.discard(line.request)
                block.former.add(line.request)
                continue
            if not line.is_hit:
                block.generation += 1
                block.former |= block.holders
                block.holders.clear()
                block.accesses = [a for a in block.accesses if not a.work.is_in(self._known)]
            block.holders.add(line.request)
            block.former.discard(line.request)
            for access in block.accesses if line.is_hit else ():
                if access.is_content and access.work.failed and self._is_last(block, access):
                    what = f"{line.request} hits what {access.work.run.id} failed to bring"
                    first = access.work
                    lines = (first.line, number)
                    yield Hazard("KV-HAZ-5", place, what, first.run.id, line.request, lines)

    @staticmethod
    def _is_last(block: _Block, access: _Access) -> bool:
        """Whether its slots have not been written since."""
        later = block.accesses[block.accesses.index(access) + 1 :]
        return access.generation == block.generation and not any(
            each.is_content and each.overlaps(access.place) for each in later
        )

    def _run(self, run: Run, number: int) -> Iterator[Hazard]:
        if run.id in self.works:
            raise InvalidArgumentError("id", run.id, "the id of no earlier work")
        before = dict(self._known)
        _join(before, self._streams.get(run.stream, {}))
        for name in run.after:
            _join(before, self._work(name).end())
        work = _Work(run, number, before.get(run.stream, 0) + 1, before)
        self.works[run.id] = work
        self._streams[run.stream] = work.end()
        for place in run.reads:
            yield from self._read(work, place)
        for place in run.writes:
            yield from self._write(work, place)
        for is_write, places in ((False, run.reads), (True, run.writes)):
            for place in places:
                block = self._block(place)
                access = _Access(
                    work, place, is_write, block.generation - (run.request in block.former)
                )
                block.accesses = [each for each in block.accesses if not access.covers(each)]
                block.accesses.append(access)

    def _read(self, work: _Work, place: Place) -> Iterator[Hazard]:
        block, run = self._block(place), work.run
        if block.holders and run.request in block.former:
            yield self._hazard("KV-HAZ-3", work, place, f"{run.id} reads a block given to another")
            return
        left = set(range(place.begin, place.end))
        for own in run.writes:  # a layer writes the whole batch before it attends
            if own.of_block == place.of_block and not run.is_zeroing:
                left -= set(range(own.begin, own.end))
        for access in reversed(block.accesses):
            if not access.is_write or not access.overlaps(place):
                continue
            if not access.work.is_in(work.before):
                is_late = access.generation < block.generation
                rule = "KV-HAZ-4" if is_late else "KV-HAZ-1"
                what = f"{run.id} may read before or while {access.work.run.id} writes"
                yield self._hazard(rule, work, place, what, access.work)
                return
            if access.generation < block.generation or not access.is_content:
                continue
            slots = set(range(access.place.begin, access.place.end)) & left
            if slots and access.work.failed:
                what = f"{run.id} reads what {access.work.run.id} failed to bring"
                yield self._hazard("KV-HAZ-5", work, place, what, access.work)
                return
            left -= slots
        if left:
            what = f"{run.id} reads slot {min(left)}, not written since the block was given"
            yield self._hazard("KV-HAZ-1", work, place, what)

    def _write(self, work: _Work, place: Place) -> Iterator[Hazard]:
        block, run = self._block(place), work.run
        if block.holders and run.request in block.former:
            yield self._hazard("KV-HAZ-4", work, place, f"{run.id} writes a block given to another")
            return
        for access in reversed(block.accesses):
            if not access.overlaps(place):
                continue
            other, is_ordered = access.work, access.work.is_in(work.before)
            is_older = access.generation < block.generation
            if access.is_write and not is_older and run.is_zeroing and access.is_content:
                what = f"{run.id} zeroes what {other.run.id} has written"
                yield self._hazard("KV-HAZ-6", work, place, what, other)
                return
            if is_ordered:
                continue
            if not access.is_write:
                rule = "KV-HAZ-3" if is_older else "KV-HAZ-2"
                what = f"{run.id} may write before {other.run.id} has read"
            elif other.run.is_zeroing:
                rule, what = "KV-HAZ-6", f"{run.id} may write before {other.run.id} zeroes"
            else:
                rule = "KV-HAZ-4" if is_older else "KV-HAZ-2"
                what = f"{run.id} and {other.run.id} may write at once"
            yield self._hazard(rule, work, place, what, other)
            return

    @staticmethod
    def _hazard(
        rule: str, work: _Work, place: Place, what: str, other: _Work | None = None
    ) -> Hazard:
        first = None if other is None else other.run.id
        lines = (work.line,) if other is None else (other.line, work.line)
        return Hazard(rule, place, what, first, work.run.id, lines)
