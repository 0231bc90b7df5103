"""Random steps of a real manager, passed to tables: the device must always match the manager."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cached_property
from itertools import chain
from os import environ
from random import Random
from typing import Any

import torch

import kvfast
from kvcheck.play.random_configs import random_config
from kvcheck.rules.batch_sides import Outputs
from kvcheck.rules.random_batches import WITHOUT_SLOTS, Engine, listed
from kvfast.device import Backend, DeviceStep, DeviceTables
from kvspec.batched import BatchedManager, StepPlan, StepResult
from kvspec.config import ManagerConfig
from kvspec.interface import Feature, Implementation
from kvspec.sequential import batched_of
from kvspec.specs import FullAttentionSpec, LayerSpec, MambaSpec
from tests.contract.builders import make_config

MAX_TOKENS = 300
"""Six requests of 48 tokens, all in one step, and drafts."""


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


class TableEngine(Engine):
    """An engine, on kvfast by default, that passes its steps to tables, and checks them.

    Two requests have rows to begin with, so the tables grow; a message holds 5 entries.
    """

    is_saved = False  # the tables on the device would have to be filled anew

    def __init__(
        self,
        config: ManagerConfig,
        random: Random,
        tables: type[DeviceTables],
        backend: Backend,
        implementation: Implementation | None = None,
    ) -> None:
        side = (implementation or kvfast.implementation(), batched_of)
        super().__init__(config, [side], random)
        self.batched: BatchedManager = self.sides[0].batched
        self.tables = tables(
            config,
            max_requests=2,
            max_tokens=MAX_TOKENS,
            max_entries=5,
            device=kernel_device(backend),
            backend=backend,
        )
        self.num_steps = self.num_rewound = 0

    @cached_property
    def features(self) -> frozenset[Feature]:
        """Features of the manager, read once, since that is slow."""
        return self.sides[0].implementation.capabilities.features

    def both(self, rule: str, what: str, call):  # type: ignore[no-untyped-def] # as in the base
        return call(self.sides[0])

    def compare(self, rule: str, what: str) -> None:
        """Compare nothing: there is only one side."""

    def try_broken(self, plan: StepPlan) -> None:
        """Try nothing: every plan is legal."""

    def take_deltas(self) -> None:
        """Do nothing: all deltas are taken after each step."""

    def call_alone(self) -> None:
        """Make a single call, and set the lengths and lists that no step sets."""
        super().call_alone()
        requests = [self.batched.request_of(handle) for handle in self.handles]
        self.tables.set_lengths(self.handles, [one.num_computed_tokens for one in requests])
        self.read_freed_alone()

    def read_freed_alone(self) -> None:
        """Set the rows of requests whose reported lengths are of lists before (KV-BATCH-10)."""
        for handle in self.freed_alone & {*self.handles}:
            lists = self.batched.manager.get_blocks(self.batched.request_of(handle)).to_lists()
            for group, blocks in enumerate(lists):
                self.tables.set_row(handle, group, blocks)

    def step(self, plan: StepPlan) -> None:
        outputs = self.new_step_outputs(plan)
        result = self.batched.step(plan, outputs.given)
        handles = [*listed(plan.decoding), *listed(plan.prefilling), *listed(plan.new)]
        granted = [h for h, num in zip(handles, result.num_scheduled_tokens, strict=True) if num]
        while self.batched.num_pending_deltas():
            more = Outputs(8)
            assert more.given.block_deltas is not None
            num = self.batched.take_deltas(more.given.block_deltas)
            self.tables.write(torch.tensor(more.rows[: 4 * num].tolist()).int().view(-1, 4))
        self.tables.read_rows(self.batched, granted)
        new = {*listed(plan.new)} & {*granted}
        self.freed_alone -= {*listed(plan.finished), *listed(plan.preempted), *new}
        self.read_freed_alone()
        step = self.tables.step(plan, result, outputs.given.block_deltas)
        self.check(step, granted, result, outputs)
        self.num_steps += 1
        self.num_granted += len(granted)
        for handle in granted:
            self.sample(handle)
        ended = listed(plan.finished)
        gone = self.some(ended, 0.7)
        self.batched.unregister(gone)
        self.handles = [handle for handle in self.handles if handle not in gone]

    def new_step_outputs(self, plan: StepPlan) -> Outputs:
        lengths = [
            None if isinstance(spec, WITHOUT_SLOTS) else length
            for spec, length in zip(self.config.managed_specs, self.lengths(plan), strict=True)
        ]
        return Outputs(self.random.choice((0, 2, 400)), lengths)

    def sample(self, handle: int) -> None:
        request = self.batched.request_of(handle)
        before = request.num_computed_tokens
        super().sample(handle)
        back = before - request.num_computed_tokens
        if back:
            self.num_rewound += 1
            self.tables.rewind([handle], [back])

    def check(
        self, step: DeviceStep, granted: list[int], result: StepResult, outputs: Outputs
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
        for mine, theirs in zip(step.slots, outputs.slots or (), strict=True):
            if theirs is None:
                assert mine is None
            else:
                assert mine is not None
                assert mine.tolist() == theirs[: len(mine)].tolist()
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


def engines(
    seeds: range, backend: Backend, tables: type[DeviceTables] = DeviceTables, num_steps: int = 20
) -> Iterator[TableEngine]:
    """Yield engines after random configurations, every fifth a hybrid with a large pool."""
    for seed in seeds:
        random = Random(seed)
        engine = TableEngine(random_config(random, hybrid=seed % 5 == 0), random, tables, backend)
        engine.play(num_steps)
        yield engine
