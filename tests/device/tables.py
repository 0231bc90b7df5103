"""Random steps of a real manager, told to tables: after each the device must be what it answers."""

from __future__ import annotations

from array import array
from collections.abc import Iterator
from dataclasses import replace
from itertools import chain
from os import environ
from random import Random
from typing import Any, TypeAlias

import torch

import kvfast
from kvcheck.play.batching import append
from kvcheck.play.outputs import Outputs
from kvcheck.play.performing import perform
from kvcheck.play.random_configs import random_config
from kvcheck.play.random_programs import Draw, program_of_steps
from kvcheck.play.runner import Check, Performed, Runner
from kvcheck.play.scheduler import RUNNING
from kvcheck.play.steps import Copy, Program, TakeDeltas
from kvfast.device import Backend, DeviceStep, DeviceTables, ResidentDecode, ResidentRun
from kvfast.device.resident.plan import check_groups
from kvref.implementation import ReferenceImplementation
from kvspec.batched import BatchedManager, StepResult
from kvspec.config import ManagerConfig
from kvspec.errors import UnsupportedError
from kvspec.specs import FullAttentionSpec, LayerSpec, MambaSpec
from tests.contract.builders import make_config

MAX_TOKENS = 2000
"""Forty requests of 48 tokens, all in one step, and drafts."""


def kernel_device(backend: str) -> str:
    interpreted = environ.get("TRITON_INTERPRET") == "1"
    is_here = backend == "triton" and torch.cuda.is_available() and not interpreted
    return "cuda" if is_here else "cpu"


FULL = FullAttentionSpec(4, 1, 8, "float16")
MAMBA = MambaSpec(8, ((2,),), ("float32",), mamba_cache_mode="align", num_speculative_blocks=2)


def config_of(*specs: LayerSpec, num_blocks: int = 20, longest: int = 32) -> ManagerConfig:
    members: dict[str, Any] = {"max_model_len_tokens": longest, "enable_caching": False}
    return make_config(num_blocks, specs=specs, **members)


def tables_of(*specs: LayerSpec, backend: Any = "torch", **options: Any) -> DeviceTables:
    sizes = {"max_requests": 2, "max_tokens": 16, **options}
    device = kernel_device(backend)
    return DeviceTables(config_of(*specs), device=device, backend=backend, **sizes)


def rows_of(*rows: tuple[int, int, int, int]) -> torch.Tensor:
    return torch.tensor(rows, dtype=torch.int32).reshape(-1, 4)


class TableCheck(Check):
    """Tells tables each step of a runner, and checks them after it.

    Two requests have rows to begin with, so the tables grow; a message holds 5 entries.
    """

    def __init__(
        self, runner: Runner, random: Random, tables: type[DeviceTables], backend: Backend
    ) -> None:
        self.config, self.runner, self.random = runner.config, runner, random
        self.tables = tables(
            runner.config,
            max_requests=2,
            max_tokens=MAX_TOKENS,
            max_entries=5,
            device=kernel_device(backend),
            backend=backend,
        )
        self.num_steps = self.num_granted = self.num_rewound = 0
        self.is_told = False

    @property
    def batched(self) -> BatchedManager:
        return self.runner.subject.player.batched

    def after_operation(self, runner: Runner, done: Performed) -> None:
        if done.name == "batched_step":
            self.is_told = True
            self.step(done)
        elif done.name == "register":  # some run already
            seats = {each.name: each.seat for each in runner.requests}
            lengths = [seats[name].num_computed for name in done.arguments["names"]]
            self.tables.set_lengths(done.outcome.result, lengths)
        elif done.name == "unregister":  # some were freed by single calls
            self.tables.set_lengths(done.arguments["handles"], [0] * len(done.arguments["handles"]))
        elif done.name == "rewind":
            back = done.arguments["num_tokens"]
            handles = done.arguments["handles"]
            numbers = [back] * len(handles) if isinstance(back, int) else list(back)
            self.num_rewound += sum(number > 0 for number in numbers)
            self.tables.rewind(handles, numbers)

    def after_step(self, runner: Runner) -> None:
        """Set the lengths after single calls, which no step reports."""
        if not self.is_told:
            known = [each for each in runner.requests if each.name in runner.batches.handles]
            handles = [runner.batches.handles[each.name] for each in known]
            self.tables.set_lengths(handles, [each.seat.num_computed for each in known])
        self.is_told = False

    def read_freed_alone(self, others: set[int]) -> None:
        """Set the rows of requests whose reported lengths are of lists before (KV-BATCH-10)."""
        batches = self.runner.batches
        for each in self.runner.requests:
            handle = batches.handles.get(each.name)
            if handle is None or handle in others:
                continue
            if batches.since[each.name] != each.num_preemptions:
                for group, blocks in enumerate(self.runner.subject.blocks(each)):
                    self.tables.set_row(handle, group, blocks)

    def step(self, done: Performed) -> None:
        plan, told = done.arguments["plan"], done.outcome.result
        scheduled, hits = (array("q", told.get(name, ())) for name in ("scheduled", "hits"))
        result = StepResult(scheduled, hits, *told.get("counts", ()))
        handles = [*plan.decoding, *plan.prefilling, *plan.new]
        granted = [h for h, num in zip(handles, result.num_scheduled_tokens, strict=False) if num]
        while self.batched.num_pending_deltas():
            more = Outputs(8)
            assert more.given.block_deltas is not None
            num = self.batched.take_deltas(more.given.block_deltas)
            self.tables.write(torch.tensor(more.rows[: 4 * num].tolist()).int().view(-1, 4))
        self.tables.read_rows(self.batched, granted)
        self.read_freed_alone({*plan.finished, *plan.preempted, *({*plan.new} & {*granted})})
        rows = told.get("rows")
        deltas = memoryview(rows).cast("B").cast("i", [len(rows) // 4, 4]) if rows else None
        step = self.tables.step(plan, result, deltas)
        self.check(step, granted, result, told.get("slots"))
        self.num_steps += 1
        self.num_granted += len(granted)

    def check(
        self,
        step: DeviceStep,
        granted: list[int],
        result: StepResult,
        slots: list[array[int] | None] | None,
    ) -> None:
        counts = [num for num in result.num_scheduled_tokens if num]
        ends = [self.batched.request_of(handle).num_computed_tokens for handle in granted]
        assert step.rows.tolist() == granted
        assert step.query_start.diff().tolist() == counts
        assert step.seq_lens.tolist() == ends
        assert step.max_seq_tokens == max(ends, default=0)
        assert step.max_query_tokens == max(counts, default=0)
        places = list(chain(*([place] * num for place, num in enumerate(counts))))
        assert step.places.tolist() == places
        positions = chain(*(range(e - n, e) for e, n in zip(ends, counts, strict=True)))
        assert step.positions.tolist() == list(positions)
        behind, unused = len(granted), len(places)  # nobody is there
        padded = self.tables.padded
        assert {*padded.rows[behind:].tolist(), *padded.places[unused:].tolist()} <= {-1}
        assert {*padded.query_start[behind:].tolist()} == {unused}
        assert {*padded.seq_lens[behind:].tolist(), *padded.positions[unused:].tolist()} <= {0}
        for group, theirs in enumerate(slots or ()):
            mine = step.slots[group]
            every = padded.slots[group]
            assert every is None or {*every[unused:].tolist()} <= {-1}
            if theirs is not None:
                assert mine is not None
                assert mine.tolist() == theirs[: len(mine)].tolist()
            elif not self.config.managed_specs[group].has_slots:
                assert mine is None
        assert self.tables.difference(self.batched) is None
        for g, spec in enumerate(self.config.managed_specs):
            if spec.is_aligned:
                self.check_rows(g, granted)

    def check_rows(self, group: int, handles: list[int]) -> None:
        for handle in handles:
            blocks = list(
                self.batched.manager.get_blocks(self.batched.request_of(handle)).groups[group]
            )
            assert self.tables.table(group)[handle, : len(blocks)].tolist() == blocks


def steps_of(seed: int, config: ManagerConfig, num_steps: int) -> Program:
    """Whole steps and single calls; on copies the tables would have to be filled anew."""
    program = program_of_steps(Draw(Random(seed), config), num_steps)
    steps = (step for step in program.steps if not isinstance(step, Copy | TakeDeltas))
    return replace(program, steps=tuple(steps))


def engines(
    seeds: range, backend: Backend, tables: type[DeviceTables] = DeviceTables, num_steps: int = 20
) -> Iterator[TableCheck]:
    """Checks of programs on random configurations, every fifth a hybrid with a large pool."""
    for seed in seeds:
        config = random_config(Random(seed), hybrid=seed % 5 == 0)
        program = steps_of(seed, config, num_steps)
        runner = Runner(program, kvfast.implementation())
        check = TableCheck(runner, Random(seed), tables, backend)
        runner.checks = [check]
        perform(runner, program.steps)
        yield check


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
