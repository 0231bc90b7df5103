"""The cost of `kvcheck.monitor`: the demo trace through kvref, alone and watched.

    python bench/monitor.py [--requests 40] [--runs 5]

Seconds are those of the whole replay, including its driver. Each round runs all settings once, one
after the other, so that a slow moment of the machine affects all; ratios are taken within a round.
"""

from __future__ import annotations

import argparse
from itertools import islice
from statistics import median
from time import perf_counter
from typing import Any

import kvcheck
from kvcheck.tools.replay.driver import Driver
from kvcheck.tools.replay.options import ReplayOptions
from kvcheck.tools.replay.source import open_trace
from kvref.implementation import ReferenceImplementation
from kvspec.config import ManagerConfig
from kvspec.interface import KVCacheManager

SETTINGS = (None, 100, 1)
"""None: not watched; else the audits' rate."""


class Watched(ReferenceImplementation):
    """kvref without its own checks, with its managers under a monitor."""

    def __init__(self, every: int | None) -> None:
        super().__init__()
        self.every = every

    def create(self, config: ManagerConfig, **options: Any) -> KVCacheManager:
        """Make a manager that is audited at this rate."""
        manager = super().create(config, **options | {"check_invariants": False})
        return manager if self.every is None else kvcheck.monitor(manager, self.every)


def seconds(every: int | None, num_requests: int) -> float:
    """Time one replay."""
    with open_trace("demo") as source:
        records = islice(iter(source), num_requests)
        options = ReplayOptions(num_blocks=300, block_size=64)
        driver = Driver(Watched(every), options, records, trace_name="demo")
        began = perf_counter()
        driver.run()
        return perf_counter() - began


def main() -> None:
    """Print one line per setting: median and range of the seconds and of the ratio to unwatched."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--requests", type=int, default=40)
    parser.add_argument("--runs", type=int, default=5)
    given = parser.parse_args()
    rounds = [[seconds(every, given.requests) for every in SETTINGS] for _ in range(given.runs)]
    print(f"{given.requests} requests of the demo, {given.runs} rounds: median (least … most)")
    for index, every in enumerate(SETTINGS):
        name = "unwatched" if every is None else f"every={every}"
        taken = [times[index] for times in rounds]
        ratios = [times[index] / times[0] for times in rounds]
        print(f"{name:10}  {shown(taken)} s   ratio {shown(ratios)}")


def shown(values: list[float]) -> str:
    """Format median and range."""
    return f"{median(values):.2f} ({min(values):.2f} … {max(values):.2f})"


if __name__ == "__main__":
    main()
