"""A record of copies that is checked as it is made: what the recorded engines of tests share."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import kvcheck
from examples.embed.engine import Engine
from examples.embed.workers import Batch, Store, Workers
from kvcheck.hazards.checker import Hazard, HazardChecker
from kvcheck.hazards.lines import Ended, Given, Line, Place, Pools, Run
from kvcheck.watch.monitor import Monitor
from kvspec.config import ManagerConfig
from kvspec.interface import Implementation, KVCacheManager


class Recorder:
    """Issues lines; `found` are their hazards. The pool has blocks of `size` tokens."""

    def __init__(self, size: int) -> None:
        self.checker, self.found = HazardChecker(), list[Hazard]()
        self.size, self.num_lines = size, 0
        self.held: dict[str, set[int]] = {}
        self.issue(Pools({"gpu": size}))

    def issue(self, line: Line) -> None:
        self.num_lines += 1
        self.found += self.checker.take(line, self.num_lines)

    @property
    def rules(self) -> list[str]:
        return [each.rule for each in self.found]

    def places(self, blocks: Iterable[int]) -> tuple[Place, ...]:
        """Return whole blocks, without the null block."""
        return tuple(Place("gpu", block, 0, self.size) for block in dict.fromkeys(blocks) if block)

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


MAIN, COPIES = "main", "h2d"


class Recorded(Engine):
    """Issues a line for what its workers and its store do; `recorder` has the hazards.

    A step reads all slots of the requests that sample, and writes those of its batch.
    """

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self.size = self.workers.block_size
        self.recorder = Recorder(self.size)
        if isinstance(self.manager, Monitor):
            self.recorder = Live(self.size, self.manager)
        self.num_steps = 0
        self.started: list[Run] = []
        self.names: dict[int, str] = {}
        self.last_step = ""
        self._watch(self.workers, self.store)

    def _watch(self, workers: Workers, store: Store) -> None:
        run, start, take_ended, pass_step = workers.run, store.start, store.take_ended, store.run

        def watched_run(batch: Batch) -> None:
            self.owners(batch.zeroed)
            self.num_steps += 1
            self.last_step = f"step-{self.num_steps}"
            if batch.zeroed:
                places = self.recorder.places(batch.zeroed)
                zero = Run(f"zero-{self.num_steps}", MAIN, writes=places, is_zeroing=True)
                self.recorder.issue(zero)
            run(batch)
            reads = [place for one in self.running for place in self.slots_read(one)]
            writes = self.places(batch.slots.tolist())
            self.recorder.issue(Run(self.last_step, MAIN, tuple(reads), writes))

        def watched_start(
            number: int, token_ids: Sequence[int], blocks: Sequence[int], begin: int
        ) -> None:
            start(number, token_ids, blocks, begin)
            slots = store.loads[-1][1].tolist()
            request = next(one.request.request_id for one in self.loading if one.number == number)
            name = f"load-{number}-{self.num_steps}"
            self.started.append(Run(name, COPIES, (), self.places(slots), request))
            self.names[number] = name

        def watched_pass() -> None:
            self.issue_loads()
            pass_step()

        def watched_ended() -> list[tuple[int, bool]]:
            ended = take_ended()
            for number, is_loaded in ended:
                self.recorder.issue(Ended(self.names[number], is_loaded))
            return ended

        workers.run, store.start = watched_run, watched_start  # type: ignore[method-assign]
        store.run, store.take_ended = watched_pass, watched_ended  # type: ignore[method-assign]

    def issue_loads(self) -> None:
        """Start the loads, behind the step that zeroes their blocks."""
        for run in self.started:
            after = (self.last_step,)
            self.recorder.issue(Run(run.id, run.stream, (), run.writes, run.request, after))
        self.started = []

    def slots_read(self, one: Any) -> Iterable[Place]:
        blocks = self.manager.get_blocks(one.request).groups[0]
        for index in range(-(-one.request.num_computed_tokens // self.size)):
            end = min(one.request.num_computed_tokens - index * self.size, self.size)
            done = min(max(self.before.get(one.number, 0) - index * self.size, 0), end)
            if done:
                yield Place("gpu", blocks[index], 0, done)

    def places(self, slots: Iterable[int]) -> tuple[Place, ...]:
        by_block: dict[int, list[int]] = {}
        for slot in slots:
            by_block.setdefault(slot // self.size, []).append(slot % self.size)
        return tuple(
            Place("gpu", block, min(offsets), max(offsets) + 1)
            for block, offsets in by_block.items()
        )

    def owners(self, new: Iterable[int]) -> None:
        """Issue what changed hands since the step before."""
        holding = {
            one.request.request_id: set(self.manager.get_blocks(one.request).groups[0])
            for one in self.running + self.loading
        }
        self.recorder.owners(holding, new)

    def batch(self, granted: list[Any], result: Any) -> Batch:
        """Note how many tokens each had computed before this step."""
        nums = [num for num in result.num_scheduled_tokens if num]
        self.before = {
            one.number: one.request.num_computed_tokens - num
            for one, num in zip(granted, nums, strict=True)
        }
        return super().batch(granted, result)
