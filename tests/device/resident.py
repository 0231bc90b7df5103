"""Random steps of a real manager, and between them runs that the device decides alone."""

from __future__ import annotations

from collections.abc import Iterator
from random import Random
from typing import TypeAlias

import kvfast
from kvcheck.play.random_configs import random_config
from kvfast.device import Backend, DeviceStep, DeviceTables, ResidentDecode, ResidentRun
from kvfast.device.resident.plan import check_groups
from kvref.implementation import ReferenceImplementation
from kvspec.batched import StepPlan
from kvspec.config import ManagerConfig
from kvspec.errors import UnsupportedError
from kvspec.interface import Implementation
from tests.device.tables import TableEngine

MAX_BLOCKS = 12
Shown: TypeAlias = tuple[list[list[int]], list[int], list[int], list[list[int]]]
TOKEN = 5


class ResidentEngine(TableEngine):
    """An engine that may let the device decode after any step; see `TableEngine`.

    `resident`: runs of at most MAX_BLOCKS blocks. `num_run_steps`, `num_taken`, `num_stopped`: what
    happened in them. `num_short`: runs that were planned shorter than asked for.
    """

    def __init__(
        self,
        config: ManagerConfig,
        random: Random,
        backend: Backend,
        implementation: Implementation,
        resident: type[ResidentDecode] = ResidentDecode,
    ) -> None:
        super().__init__(config, random, DeviceTables, backend, implementation)
        self.resident = resident(self.tables, max_blocks=MAX_BLOCKS)
        self.num_run_steps = self.num_taken = self.num_stopped = self.num_short = 0

    def step(self, plan: StepPlan) -> None:
        super().step(plan)
        if self.random.random() < 0.6:
            self.run()

    def run(self) -> None:
        """Decode some requests, in any order; stop some after any step."""
        requests = [(handle, self.batched.request_of(handle)) for handle in self.handles]
        decoding = [
            handle
            for handle, request in requests
            if request.num_computed_tokens and request.num_tokens - request.num_computed_tokens == 1
        ]
        handles = self.random.sample(decoding, self.random.randint(0, len(decoding)))
        wanted = self.random.choice((1, 3, 9))
        most = [self.random.choice((0, 1, 4, 100)) for _ in handles]
        lists = {handle: self.lists(handle) for handle in handles}
        starts = [self.batched.request_of(handle).num_computed_tokens for handle in handles]
        self.tables.read_rows(self.batched, handles)
        num_steps = self.resident.begin(self.batched, handles, wanted, max_tokens=most)
        self.num_short += num_steps < min(wanted, max(most, default=0))
        if not num_steps:
            return
        shown = []
        room = [self.config.max_model_len_tokens - 1 - start for start in starts]
        granted = [min(*pair, num_steps) for pair in zip(most, room, strict=True)]
        for number in range(num_steps + self.random.choice((0, 0, 2))):
            step = self.resident.step()
            shown.append(self.copied(step))
            for place in range(len(handles)):
                if self.random.random() < 0.2:
                    self.resident.left[place] = 0
                    self.num_stopped += granted[place] > number + 1
                    granted[place] = min(number + 1, granted[place])
        run = self.resident.end()
        assert list(run.granted) == granted
        assert run.num_steps <= num_steps
        assert run.handles == tuple(handles)
        for number, (slots, positions, seq_lens, new) in enumerate(shown):
            goes_on = run.places(number) if number < run.num_steps else []
            for place, handle in enumerate(handles):
                if place not in goes_on:
                    assert positions[place] == seq_lens[place] == 0
                    assert all(of_group[place] == -1 for of_group in slots)
                    assert all(of_group[place] == -1 for of_group in new)
                    continue
                position = starts[place] + number
                assert positions[place] == position
                assert seq_lens[place] == position + 1
                expected = self.slots_at(run, handle, lists[handle], position)
                assert [of_group[place] for of_group in slots] == expected
        tokens = [[TOKEN] * len(handles) for _ in range(run.num_steps)]
        self.resident.replay(run, self.batched, tokens)
        assert self.tables.difference(self.batched) is None
        assert self.batched.manager.take_new_block_ids() == ()
        self.num_run_steps += run.num_steps
        self.num_taken += len(run.rows)

    def lists(self, handle: int) -> list[list[int]]:
        return self.batched.manager.get_blocks(self.batched.request_of(handle)).to_lists()

    def copied(self, step: DeviceStep) -> Shown:
        """Copy a step's slots, positions, lengths and new blocks, which the next one overwrites."""
        slots = [one.tolist() for one in step.slots if one is not None]
        groups = range(len(step.slots))
        new = [one.tolist() for g in groups if (one := self.resident.new_blocks(g)) is not None]
        return slots, step.positions.tolist(), step.seq_lens.tolist(), new

    def slots_at(
        self, run: ResidentRun, handle: int, lists: list[list[int]], position: int
    ) -> list[int]:
        """Return the token's slot in each group with slots, from old lists and new rows."""
        found = []
        for g, group in enumerate(self.tables._geometry.groups):
            if group.has_slots:
                rows = [row for row in run.rows.tolist() if row[:2] == [handle, g]]
                blocks = [*lists[g], *(row[3] for row in rows)]
                span = group.span_tokens
                found.append(blocks[position // span] * span + position % span)
        return found


def attention_configs(seeds: range) -> Iterator[tuple[int, ManagerConfig]]:
    for seed in seeds:
        config = random_config(Random(seed), hybrid=seed % 5 == 0)
        try:
            check_groups(config)
        except UnsupportedError:
            continue
        yield seed, config


def resident_engines(
    seeds: range,
    backend: Backend = "torch",
    resident: type[ResidentDecode] = ResidentDecode,
    num_steps: int = 20,
) -> Iterator[ResidentEngine]:
    for seed, config in attention_configs(seeds):
        implementation = kvfast.implementation() if seed % 3 else ReferenceImplementation()
        engine = ResidentEngine(config, Random(seed), backend, implementation, resident)
        engine.play(num_steps)
        yield engine
