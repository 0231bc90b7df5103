"""Memory is bounded by the pool and the history, not by the length of the run."""

from __future__ import annotations

import gc
import tracemalloc
from dataclasses import dataclass

import pytest

import kvcheck
from kvcheck.watch import Monitor
from kvref.implementation import ReferenceImplementation
from tests.monitor.twins import Engine, config

REFERENCE = ReferenceImplementation()


@dataclass(frozen=True)
class Held:
    measured: int
    estimated: int


def most_held(steps: tuple[int, int], every: int, history: int) -> tuple[Held, Held]:
    """Return the most memory held during the first of these steps, and during the second."""
    monitor: Monitor = kvcheck.monitor(
        REFERENCE.create(config(), check_invariants=False), every, history=history
    )
    engine = Engine(REFERENCE, monitor)
    engine.run(2)  # what is imported and cached once is not the monitor's
    tracemalloc.start()
    try:
        found = []
        for count in steps:
            measured = 0
            for _ in range(count // 5):
                engine.run(5)
                gc.collect()  # unreachable objects are not held, though not yet freed
                measured = max(measured, tracemalloc.get_traced_memory()[0])
            found.append(Held(measured, monitor.report().peak_memory_bytes))
    finally:
        tracemalloc.stop()
    assert monitor.report().violation is None
    return found[0], found[1]


@pytest.mark.parametrize("every", [10, pytest.param(1, marks=pytest.mark.deep)])
def test_a_longer_run_holds_no_more(every: int) -> None:
    early, late = most_held((60, 100), every, history=40)
    assert late.measured < 1.25 * early.measured
    assert late.estimated < 1.25 * early.estimated


def test_the_measure_sees_what_grows() -> None:
    early, late = most_held((20, 60), 10, history=1_000_000)
    assert late.measured > 2 * early.measured
    assert late.estimated > 2 * early.estimated


@pytest.mark.deep
def test_the_estimate_is_of_the_right_size() -> None:
    _, late = most_held((20, 30), 1, history=100)
    assert late.measured / 3 < late.estimated < late.measured * 3
