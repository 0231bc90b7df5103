"""The requests of a trace in order; a turn of a chat waits for the answer that it repeats."""

from __future__ import annotations

from bisect import insort
from collections.abc import Iterable

from kvcheck.tools.replay.trace import TraceRecord


class Turns:
    """Hold back a request whose prompt repeats an output while that is being generated.

    A request *follows* one whose whole runs, prompt and output, it begins with, if one of them has
    tokens of the output. `records` may grow after they were exhausted: `read` looks again.
    """

    def __init__(self, records: Iterable[TraceRecord]) -> None:
        self._records = iter(records)
        self._next: TraceRecord | None = None
        self._freed: list[TraceRecord] = []
        self._going_on: dict[int, list[TraceRecord]] = {}  # by the last whole run
        self._held: dict[str, list[TraceRecord]] = {}  # by the place that they wait for

    @property
    def front(self) -> TraceRecord | None:
        """The first request that need not wait; None at the end, or if all that are left wait."""
        return self._freed[0] if self._freed else self._next

    def num_due(self, clock_ms: int) -> int:
        """Count the requests that need not wait, of those read so far, and have come."""
        read = [*self._freed, *([] if self._next is None else [self._next])]
        return sum(record.timestamp_ms <= clock_ms for record in read)

    def take(self) -> TraceRecord:
        """Remove and return `front`, and read on."""
        if self._freed:
            return self._freed.pop(0)
        record = self._next
        if record is None:
            raise IndexError("no request is left that need not wait")
        self._next = None
        self.read()
        return record

    def read(self) -> None:
        """Read up to a request that need not wait, unless one was read."""
        while self._next is None:
            record = next(self._records, None)
            if record is None:
                return
            earlier = self._followed(record)
            if earlier is None:
                self._next = record
            else:
                self._held.setdefault(earlier.place, []).append(record)
            if (whole := _whole_runs(record)) > record.input_length // record.run_length:
                self._going_on.setdefault(record.ids[whole - 1], []).append(record)

    def ended(self, record: TraceRecord) -> None:
        """Let the requests go on that follow this one."""
        whole = _whole_runs(record)
        if whole > record.input_length // record.run_length:
            last = record.ids[whole - 1]
            self._going_on[last].remove(record)
            if not self._going_on[last]:
                del self._going_on[last]
        for each in self._held.pop(record.place, ()):
            insort(self._freed, each, key=lambda one: (one.line, one.part))

    def _followed(self, record: TraceRecord) -> TraceRecord | None:
        """Return the request with the longest beginning that this one follows, the first read."""
        for index in range(len(record.hash_ids) - 1, -1, -1) if self._going_on else ():
            for earlier in self._going_on.get(record.hash_ids[index], ()):
                ids = earlier.ids[: index + 1]
                if _whole_runs(earlier) == index + 1 and record.hash_ids[: index + 1] == ids:
                    return earlier
        return None


def _whole_runs(record: TraceRecord) -> int:
    """Count the whole runs of prompt and output, as far as they are known."""
    if record.output_ids is None:
        return record.input_length // record.run_length
    return (record.input_length + record.output_length) // record.run_length
