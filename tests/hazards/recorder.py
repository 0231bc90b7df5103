"""A record of copies that is checked as it is made: what the recorded engines of tests share."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from typing import Any

import kvcheck
from kvcheck.hazards.checker import Hazard, HazardChecker
from kvcheck.hazards.lines import Given, Line, Place, Pools
from kvcheck.watch.monitor import Monitor
from kvspec.config import ManagerConfig
from kvspec.interface import Implementation, KVCacheManager


class Recorder:
    """Issues lines; `found` are their hazards. Each pool has blocks of `size` tokens."""

    def __init__(self, size: int, *pools: str) -> None:
        self.checker, self.found = HazardChecker(), list[Hazard]()
        self.size, self.num_lines = size, 0
        self.held: dict[str, set[int]] = {}
        self.issue(Pools(dict.fromkeys(pools, size)))

    def issue(self, line: Line) -> None:
        self.num_lines += 1
        self.found += self.checker.take(line, self.num_lines)

    @property
    def rules(self) -> list[str]:
        return [each.rule for each in self.found]

    def places(self, blocks: Iterable[int], pool: str = "gpu") -> tuple[Place, ...]:
        """Return whole blocks, without the null block."""
        return tuple(Place(pool, block, 0, self.size) for block in dict.fromkeys(blocks) if block)

    def owners(self, holding: Mapping[str, set[int]], new: Iterable[int]) -> None:
        """Issue the changes of owners: blocks returned, new ones, hits on blocks of others."""
        fresh = set(new)
        for name, blocks in self.held.items():
            if gone := (blocks & fresh) | (blocks - holding.get(name, set())):
                self.issue(Given(name, self.places(gone), is_back=True))
        for name, blocks in holding.items():
            given = blocks & fresh
            fresh -= given  # other holders have hit them in this step
            shared = blocks - self.held.get(name, set()) - given
            self.issue(Given(name, self.places(given)))
            self.issue(Given(name, self.places(shared), is_hit=True))
        self.held = dict(holding)


class Live(Recorder):
    """Issues the engine's lines to the monitor of its manager, which knows the owners."""

    def __init__(self, size: int, watched: Monitor) -> None:
        self.watched, self.size, self.num_lines = watched, size, 0
        watched.follow_copies(gpu=size)

    def issue(self, line: Line) -> None:
        self.num_lines += 1
        self.watched.issue(line)

    def owners(self, holding: Mapping[str, set[int]], new: Iterable[int]) -> None:
        """Leave it to the monitor."""

    @property
    def rules(self) -> list[str]:
        found = self.watched.report().violation
        return [] if found is None else [found.rule]


def watched(implementation: Implementation) -> Implementation:
    """Let the implementation make monitored managers."""
    create = implementation.create

    def made(config: ManagerConfig, **options: Any) -> KVCacheManager:
        ignored = list[object]()
        manager = create(config, **options)
        return kvcheck.monitor(manager, 10**9, record=os.devnull, on_violation=ignored.append)

    implementation.create = made  # type: ignore[method-assign]
    return implementation
