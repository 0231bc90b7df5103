"""Records of what kvfast did: in a replay of a trace, and under a monitor."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import kvcheck
from kvcheck.tools.replay.driver import Driver
from kvcheck.tools.replay.options import ReplayOptions
from kvcheck.tools.replay.result import Counts
from kvcheck.tools.replay.trace import TraceRecord
from kvcheck.watch import Monitor
from kvcheck.watch.recording import RecordedImplementation
from kvfast._implementation import FastImplementation
from kvspec.config import ManagerConfig
from kvspec.interface import Implementation, KVCacheManager

BUILDS = ("compiled", "uncompiled")

TRACE = tuple(
    TraceRecord(number, 0, 20 + 7 * (number % 5), 9, (number % 3,)) for number in range(1, 13)
)
"""Twelve short requests; three prefixes are shared."""

CROWDED = ReplayOptions(num_blocks=24, block_size=4, max_tokens_per_step=64)
"""So few blocks that requests are refused and preempted, and keys are evicted."""


def replay(subject: Implementation, options: ReplayOptions = CROWDED) -> Counts:
    driver = Driver(subject, options, TRACE, trace_name="trace", check_invariants=False)
    return driver.run().counts


def recorded_replay(path: Path, subject: Implementation, options: ReplayOptions = CROWDED) -> Path:
    with RecordedImplementation(subject, path) as recorded:
        replay(recorded, options)
    return path


class MonitoredFast(FastImplementation):
    """kvfast, its last manager under `monitor`."""

    monitor: Monitor

    def __init__(self, name: str, history: int) -> None:
        super().__init__(name)
        self.history = history

    def create(self, config: ManagerConfig, **options: Any) -> KVCacheManager:
        manager = super().create(config, **options | {"check_invariants": False})
        self.monitor = kvcheck.monitor(manager, history=self.history)
        return self.monitor
