"""examples/embed: the same tokens and steps over every manager, and what finds a wrong engine."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest

import kvcheck
import kvfast
from examples.embed.engine import Engine
from examples.embed.workers import Batch
from kvspec.audit import unwrapped
from kvspec.batched import BatchedManager, StepOutput, StepPlan, StepResult
from kvspec.blocks import KVCacheBlocks
from kvspec.errors import InvalidArgumentError, MonitorViolation
from kvspec.interface import Implementation
from kvspec.request import Request, RequestInput
from tests.examples.serving import (
    CONFIG,
    MAX_RUNNING,
    SIZE,
    Served,
    WatchedWorkers,
    expect_own_slots,
    of_kvfast,
    of_kvfast_uncompiled,
    of_kvref,
    serve,
    watched,
)

EMBEDDED = (of_kvfast, of_kvfast_uncompiled, of_kvref, watched)


@pytest.fixture(scope="module")
def served_by_reference() -> Served:
    return serve(*of_kvref())


@pytest.mark.parametrize("embedded", EMBEDDED, ids=lambda made: made.__name__)
def test_every_manager_gives_the_same_tokens_in_the_same_steps(
    embedded: Callable[[], tuple[Implementation, BatchedManager]], served_by_reference: Served
) -> None:
    assert serve(*embedded()) == served_by_reference


def test_the_prompts_bring_about_all_that_the_engine_is_for() -> None:
    """Require hits, preemptions, chunks, accepted and rejected drafts, free rows, a full pool."""
    implementation, batched = of_kvfast()
    seen = Seen(batched)
    serve(implementation, passed(seen))
    assert seen.hits > 0
    assert seen.preempted > 0
    assert seen.chunks > 0
    assert seen.refused > 0
    assert seen.rejected > 0
    assert seen.accepted > 0
    assert seen.rows_left > 0
    stats = batched.manager.make_prefix_cache_stats()
    assert stats is not None
    assert stats.preempted_hits_tokens > 0
    assert batched.manager.take_events()


class Through:
    """A batched manager that passes every call on."""

    def __init__(self, inner: BatchedManager) -> None:
        self.inner = inner

    def __getattr__(self, name: str) -> Any:
        return getattr(self.inner, name)


def passed(through: Through) -> BatchedManager:
    """Cast to the class it wraps: mypy sees no method behind `__getattr__`."""
    return cast(BatchedManager, through)


class Seen(Through):
    hits = preempted = chunks = refused = rejected = accepted = rows_left = 0

    def step(self, plan: StepPlan, output: StepOutput) -> StepResult:
        result: StepResult = self.inner.step(plan, output)
        self.hits += sum(result.hit_tokens)
        self.preempted += len(plan.preempted)
        self.chunks += len(plan.prefilling)
        self.refused += 0 in result.num_scheduled_tokens
        self.rows_left += result.num_deltas_left
        return result

    def rewind(self, handles: Sequence[int], num_tokens: Sequence[int]) -> None:
        self.rejected += sum(num_tokens)
        self.inner.rewind(handles, num_tokens)

    def append(
        self, handles: Sequence[int], token_ids: Sequence[int], counts: Sequence[int]
    ) -> None:
        self.accepted += len(token_ids) - len(counts)
        self.inner.append(handles, token_ids, counts)


# Engines with one mistake each, and what finds it.


class ForgetsDrafts(Through):
    """Rejected drafts stay computed."""

    def rewind(self, handles: Sequence[int], num_tokens: Sequence[int]) -> None:
        pass


class ForgetsWhatIsLeft(Through):
    """Rows that did not fit are never fetched."""

    def take_deltas(self, rows: object) -> int:
        return 0


class KeepsThePreempted(Through):
    """The youngest returns to the queue, but keeps its blocks."""

    def step(self, plan: StepPlan, output: StepOutput) -> StepResult:
        result: StepResult = self.inner.step(replace(plan, preempted=()), output)
        return result


class AppliesNoDeltas(WatchedWorkers):
    """The table stays as it was made."""

    def run(self, batch: Batch) -> None:
        super().run(replace(batch, deltas=batch.deltas[:0]))


class ZeroesTooLate(WatchedWorkers):
    """New blocks are zeroed behind the step that writes them."""

    def run(self, batch: Batch) -> None:
        super().run(replace(batch, zeroed=()))
        super().run(replace(batch, tokens=batch.tokens[:0], slots=batch.slots[:0]))


class WritesOneSlotOn(WatchedWorkers):
    """Every token is written to the slot behind its own."""

    def run(self, batch: Batch) -> None:
        super().run(replace(batch, slots=(batch.slots + 1) % len(self.memory)))


class SwapsHandles(Engine):
    """Two requests go by each other's handle from some step on."""

    def batch(self, granted: list[Any], result: StepResult) -> Batch:
        batch = super().batch(granted, result)
        if len(granted) > 1:
            granted[0].handle, granted[1].handle = granted[1].handle, granted[0].handle
        return batch


@pytest.mark.parametrize(
    ("mistake", "seen"),
    [
        (ForgetsDrafts, "no progress"),
        (ForgetsWhatIsLeft, "table"),
        (KeepsThePreempted, "no progress"),
    ],
)
def test_an_engine_that_makes_a_wrong_call_is_found(mistake: type[Through], seen: str) -> None:
    implementation, batched = of_kvfast()
    with pytest.raises((AssertionError, InvalidArgumentError), match=seen):
        serve(implementation, passed(mistake(batched)))


@pytest.mark.parametrize(
    ("mistake", "seen"),
    [
        (AppliesNoDeltas, "table"),
        (ZeroesTooLate, "other tokens than without a cache"),
        (WritesOneSlotOn, "a block is written that nobody holds"),
    ],
)
def test_workers_that_do_otherwise_than_told_are_found(
    mistake: type[WatchedWorkers], seen: str
) -> None:
    with pytest.raises(AssertionError, match=seen):
        serve(*of_kvfast(), mistake())


def test_an_engine_that_mixes_handles_up_is_found() -> None:
    with pytest.raises(AssertionError, match="table"):
        serve(*of_kvfast(), engine_class=SwapsHandles)


def test_a_block_shared_for_other_content_and_a_slot_written_twice_are_found() -> None:
    """Construct both states, since no engine above reaches them."""
    manager = SimpleNamespace(get_blocks=lambda request: KVCacheBlocks(([1],)))
    first, second = (
        SimpleNamespace(request=SimpleNamespace(token_ids=[token] * SIZE)) for token in (1, 2)
    )
    batch = Batch(np.empty((0, 4), np.int32), (), np.zeros(2, np.int64), np.array([4, 4]))
    both = SimpleNamespace(manager=manager, running=[first, second])
    with pytest.raises(AssertionError, match="with other content"):
        expect_own_slots(both, batch)  # type: ignore[arg-type]  # what is read of an engine
    one = SimpleNamespace(manager=manager, running=[first])
    with pytest.raises(AssertionError, match="written twice"):
        expect_own_slots(one, batch)  # type: ignore[arg-type]  # what is read of an engine


def test_a_monitor_sees_what_whole_steps_do(tmp_path: Path) -> None:
    """Free a request without the monitor, so that its blocks get two owners."""
    implementation = kvfast.implementation()
    watched = kvcheck.monitor(implementation.create(CONFIG), record=tmp_path)
    batched = implementation.batched(watched)
    inputs = [RequestInput("a", range(9)), RequestInput("b", range(100, 150))]
    requests = implementation.make_requests(watched, inputs)
    a, b = [batched.register(request) for request in requests]
    batched.step(StepPlan(new=[a]))
    unwrapped(watched).free(requests[0])
    with pytest.raises(MonitorViolation):
        batched.step(StepPlan(new=[b]))


def test_requests_may_be_made_beside_the_engine() -> None:
    """Make requests in another thread, over the same manager."""
    implementation = kvfast.implementation()
    manager = implementation.create(CONFIG, check_invariants=False)
    long = RequestInput("long", range(5000))
    made: list[list[Request]] = []
    ended = threading.Event()

    def make() -> None:
        while not ended.is_set() or not made:
            made.append(implementation.make_requests(manager, [long, long], num_threads=2))

    beside = threading.Thread(target=make)
    beside.start()
    try:
        served = serve(implementation, implementation.batched(manager))
    finally:
        ended.set()
        beside.join()
    assert served == serve(*of_kvref())
    expected = list(implementation.make_request(manager, long).block_hashes)
    assert all(one.block_hashes == expected for requests in made for one in requests)


def test_what_would_never_fit_is_refused_when_it_comes() -> None:
    implementation, batched = of_kvfast()
    workers = WatchedWorkers()
    engine = Engine(batched, workers, max_running=MAX_RUNNING, max_tokens=12)
    request = implementation.make_request(batched.manager, RequestInput("r", range(50)))
    with pytest.raises(InvalidArgumentError, match=r"max_new_tokens = 7: must be an int in 1 … 6"):
        engine.add(request, 7)
    engine.add(request, 6)
    while engine.running or engine.waiting:
        engine.step()
    assert request.num_tokens == 56
