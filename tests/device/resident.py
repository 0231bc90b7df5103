"""Random steps of a real manager, and between them runs that the device decides alone."""

from __future__ import annotations

from collections.abc import Iterator
from random import Random
from typing import TypeAlias

import kvfast
from kvcheck.play.batching import append
from kvcheck.play.performing import perform
from kvcheck.play.random_configs import random_config
from kvcheck.play.runner import Runner
from kvcheck.play.scheduler import RUNNING
from kvfast.device import Backend, DeviceStep, DeviceTables, ResidentDecode, ResidentRun
from kvfast.device.resident.plan import check_groups
from kvref.implementation import ReferenceImplementation
from kvspec.config import ManagerConfig
from kvspec.errors import UnsupportedError
from tests.device.tables import TableCheck, steps_of

MAX_BLOCKS = 12
Shown: TypeAlias = tuple[list[list[int]], list[int], list[int], list[list[int]]]
TOKEN = 5


class ResidentCheck(TableCheck):
    """May let the device decode after any step; see `TableCheck`.

    `resident`: runs of at most MAX_BLOCKS blocks. `num_run_steps`, `num_taken`, `num_stopped`: what
    happened in them. `num_short`: runs that were planned shorter than asked for.
    """

    def __init__(
        self, runner: Runner, random: Random, backend: Backend, resident: type[ResidentDecode]
    ) -> None:
        super().__init__(runner, random, DeviceTables, backend)
        self.resident = resident(self.tables, max_blocks=MAX_BLOCKS)
        self.num_run_steps = self.num_taken = self.num_stopped = self.num_short = 0

    def after_step(self, runner: Runner) -> None:
        was_step = self.is_told
        super().after_step(runner)
        if was_step and self.random.random() < 0.6:
            self.run(runner)

    def run(self, runner: Runner) -> None:
        """Some of those that decode, in any order; some are stopped after any step."""
        longest, known = runner.config.max_model_len_tokens, runner.batches.handles
        running = [each for each in runner.requests if each.seat.phase == RUNNING]
        running = [each for each in running if each.name in known]
        idle = [each for each in running if len(each.seat.tokens) == each.seat.num_computed]
        append(runner, {r.name: [0] for r in idle if r.seat.num_computed < longest})
        decoding = [known[each.name] for each in running if each.seat.num_pending == 1]
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
        for each in running:
            request = self.batched.request_of(known[each.name])
            text, computed = tuple(request.token_ids), request.num_computed_tokens
            each.seat = each.seat._replace(tokens=text, num_computed=computed)
        runner.look_again()
        self.num_run_steps += run.num_steps
        self.num_taken += len(run.rows)

    def lists(self, handle: int) -> list[list[int]]:
        return self.batched.manager.get_blocks(self.batched.request_of(handle)).to_lists()

    def copied(self, step: DeviceStep) -> Shown:
        """Slots, positions, lengths and new blocks of a step, which the next one writes over."""
        slots = [one.tolist() for one in step.slots if one is not None]
        groups = range(len(step.slots))
        new = [one.tolist() for g in groups if (one := self.resident.new_blocks(g)) is not None]
        return slots, step.positions.tolist(), step.seq_lens.tolist(), new

    def slots_at(
        self, run: ResidentRun, handle: int, lists: list[list[int]], position: int
    ) -> list[int]:
        """Where the token goes in each group with slots: by the lists before, and what came."""
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
) -> Iterator[ResidentCheck]:
    for seed, config in attention_configs(seeds):
        implementation = kvfast.implementation() if seed % 3 else ReferenceImplementation()
        program = steps_of(seed, config, num_steps)
        runner = Runner(program, implementation)
        check = ResidentCheck(runner, Random(seed), backend, resident)
        runner.checks = [check]
        perform(runner, program.steps)
        yield check
