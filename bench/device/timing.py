"""Times of calls on a device, with the contestants of each round in random order."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from random import Random

import torch

Call = Callable[[], object]


@dataclass(frozen=True)
class Spread:
    """Seconds per call: median and quartiles of the rounds."""

    median: float
    low: float
    high: float


@dataclass(frozen=True)
class Repeated:
    """A call that does what is measured `num_calls` times."""

    call: Call
    num_calls: int

    def __call__(self) -> object:
        """Make all calls."""
        return self.call()


def rounds(
    contestants: Mapping[str, Call], device: torch.device, *, num_rounds: int, num_calls: int
) -> dict[str, list[float]]:
    """Measure seconds per call in each round, by contestant; the first round is not counted.

    On a CUDA device between two events on its stream, `num_calls` calls at a time, after other work
    has filled its caches: the first of these calls finds nothing there, the others what the one
    before has left. Calls that the host makes more slowly than the device runs them show the host's
    time, even when each of them is a graph: `captured` with `num_calls` shows the device's.
    """
    random = Random(0)
    times: dict[str, list[float]] = {name: [] for name in contestants}
    flushed = torch.empty(
        256 << 20 if device.type == "cuda" else 1, dtype=torch.uint8, device=device
    )
    for number in range(num_rounds + 1):
        names = list(contestants)
        random.shuffle(names)
        for name in names:
            flushed.zero_()
            seconds = _timed(contestants[name], device, num_calls)
            if number:
                times[name].append(seconds)
    return times


def _timed(call: Call, device: torch.device, num_calls: int) -> float:
    if isinstance(call, Repeated):
        loops, num_calls = 1, call.num_calls
    else:
        loops = num_calls
    if device.type != "cuda":
        start = time.perf_counter()
        for _ in range(loops):
            call()
        return (time.perf_counter() - start) / num_calls
    first, last = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    torch.cuda.synchronize(device)
    first.record()
    for _ in range(loops):
        call()
    last.record()
    torch.cuda.synchronize(device)
    return float(first.elapsed_time(last)) / 1000 / num_calls


def captured(call: Call, device: torch.device, num_calls: int = 1) -> Call:
    """Capture `num_calls` calls in a row as a CUDA graph; on a CPU return the call itself.

    It must not wait for the device, and does the same each time.
    """
    if device.type != "cuda":
        return call
    for _ in range(3):
        call()
    torch.cuda.synchronize(device)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for _ in range(num_calls):
            call()
    return Repeated(graph.replay, num_calls)


def spread(values: list[float]) -> Spread:
    """Return median and quartiles."""
    if len(values) < 2:
        return Spread(values[0], values[0], values[0])
    low, median, high = statistics.quantiles(values, n=4, method="inclusive")
    return Spread(median, low, high)


def ratio(one: list[float], other: list[float]) -> Spread:
    """Return the time of `one` over that of `other`, round by round."""
    return spread([a / b for a, b in zip(one, other, strict=True)])
