"""Records with a look ahead: the same ones in the same order, and how many are due."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from kvcheck.tools.replay.arrivals import Arrivals
from kvcheck.tools.replay.trace import TraceError, TraceRecord


def record(line: int, timestamp: int) -> TraceRecord:
    return TraceRecord(line, timestamp, 10, 1, (line,))


TRACE = [record(line, 10 * line) for line in range(1, 8)]


def test_who_looks_ahead_gets_the_same_records() -> None:
    arrivals = Arrivals(TRACE)
    found: list[TraceRecord] = []
    for clock in range(0, 100, 7):
        arrivals.num_due(clock)
        found += [next(arrivals)] if len(found) < len(TRACE) else []
    assert found == TRACE == list(Arrivals(TRACE))


def test_those_up_to_the_clock_are_due_and_no_more_than_one_beyond_is_read() -> None:
    read: list[int] = []

    def source() -> Iterator[TraceRecord]:
        for each in TRACE:
            read.append(each.line)
            yield each

    arrivals = Arrivals(source())
    assert [arrivals.num_due(clock) for clock in (0, 10, 29, 30)] == [0, 1, 2, 3]
    assert read == [1, 2, 3, 4]
    assert next(arrivals) == TRACE[0]
    assert arrivals.num_due(30) == 2
    assert arrivals.num_due(10**6) == 6
    assert [each.line for each in arrivals] == [2, 3, 4, 5, 6, 7]
    assert arrivals.num_due(10**6) == 0


def test_a_bad_record_is_raised_when_it_is_its_turn() -> None:
    def source() -> Iterator[TraceRecord]:
        yield TRACE[0]
        raise TraceError("t", 2, None, "is not JSON")

    arrivals = Arrivals(source())
    assert arrivals.num_due(10**6) == 1
    assert next(arrivals) == TRACE[0]
    with pytest.raises(TraceError, match="is not JSON"):
        next(arrivals)
