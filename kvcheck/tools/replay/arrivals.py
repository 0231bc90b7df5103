"""The records of a trace, with access to those after the next one that have already arrived."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator

from kvcheck.tools.replay.trace import TraceRecord


class Arrivals(Iterator[TraceRecord]):
    """The records as they are; what is wrong with one is raised when it is its turn."""

    def __init__(self, records: Iterable[TraceRecord]) -> None:
        self._records = iter(records)
        self._ahead: deque[TraceRecord] = deque()
        self._failure: Exception | None = None
        self._is_at_end = False

    def __next__(self) -> TraceRecord:
        if not self._ahead:
            self._read()
        if self._ahead:
            return self._ahead.popleft()
        if self._failure is not None:
            raise self._failure
        raise StopIteration

    def num_due(self, clock_ms: int) -> int:
        """Count the unread records with a timestamp up to this; they are in order of time."""
        while not self._is_at_end and not (self._ahead and self._ahead[-1].timestamp_ms > clock_ms):
            self._read()
        is_last_later = bool(self._ahead) and self._ahead[-1].timestamp_ms > clock_ms
        return len(self._ahead) - is_last_later

    def _read(self) -> None:
        """Read one more record, if there is one."""
        if self._is_at_end:
            return
        try:
            self._ahead.append(next(self._records))
        except StopIteration:
            self._is_at_end = True
        except Exception as error:
            self._failure, self._is_at_end = error, True
