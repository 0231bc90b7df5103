"""One call at a time: what is called from a callback or from another thread is refused."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest

from kvcheck.discovery import find_implementation
from kvcheck.rules.bench import Bench
from kvcheck.rules.steps import Steps, rows_of, slots_of
from kvref.manager import ReferenceManager
from kvspec.batched import StepOutput, StepPlan
from kvspec.blocks import KVCacheBlocks
from kvspec.errors import BusyError, InvalidArgumentError
from kvspec.interface import Implementation, KVCacheManager
from kvspec.invariants import check_snapshot
from kvspec.policy import Policy
from kvspec.turn import Turn
from tests.commands import python
from tests.contract.builders import admit, make_config, new_request
from tests.contract.hostile import Acting, Moody, Tensor

pytestmark = pytest.mark.rule("KV-ERR-7")


def asking(values: Sequence[int], back: Callable[[], None]) -> Moody:
    """Return ints that call `back` whenever they are read."""
    return Moody(values, "acts", back)


class Scene:
    """A manager with a request that holds blocks; `back` makes calls that must be refused."""

    def __init__(self, implementation: Implementation) -> None:
        self.ticks = False
        self.refused = 0
        config = make_config(12, residency_sample_rate=1.0, log_stats=True)
        self.implementation = implementation
        self.manager = implementation.create(config, check_invariants=False, clock=self.clock)
        self.other = new_request(implementation, self.manager, "other", range(9))
        self.request: Any = new_request(implementation, self.manager, "a", range(9))
        admit(self.manager, self.other)

    def clock(self) -> int:
        if self.ticks:
            self.back()
        return 7

    def ticking(self) -> KVCacheManager:
        self.ticks = True
        return self.manager

    def back(self) -> None:
        calls: tuple[Callable[[], object], ...] = (
            lambda: self.manager.free(self.other),
            lambda: self.manager.reset_prefix_cache(),
            lambda: self.manager.allocate_slots(self.other, 4),
            lambda: self.manager.take_events(),
            lambda: self.manager.snapshot(),
            lambda: self.implementation.append_tokens(self.manager, self.other, [1]),
        )
        for call in calls:
            with pytest.raises(BusyError) as caught:
                call()
            assert (caught.value.thing, caught.value.name) == ("manager", None)
            self.refused += 1
        assert isinstance(self.manager.num_free_blocks, int)  # that can be read at any time


CALLS: dict[str, Callable[[Scene], object]] = {
    "evict_blocks": lambda s: s.manager.evict_blocks(asking([1, 2], s.back)),
    "free_blocks": lambda s: s.manager.free_blocks(asking([], s.back)),
    "hold_blocks": lambda s: s.manager.hold_blocks(asking([], s.back)),
    "hits": lambda s: s.manager.allocate_slots(
        s.request, 9, new_computed_blocks=KVCacheBlocks((asking([], s.back),))
    ),
    "tokens": lambda s: s.implementation.append_tokens(
        s.manager, s.request, asking([1, 2], s.back)
    ),
    "tokens of an array": lambda s: s.implementation.append_tokens(
        s.manager,
        s.request,
        Tensor(slots_of(1)[:0], s.back),  # type: ignore[arg-type]  # no sequence by its class
    ),
    "the clock": lambda s: s.ticking().allocate_slots(s.request, 9),
    "the clock again": lambda s: s.ticking().evict_blocks([1]),
}


@pytest.mark.parametrize("name", CALLS)
def test_what_a_callback_calls_is_refused(implementation: Implementation, name: str) -> None:
    scene = Scene(implementation)
    CALLS[name](scene)
    assert scene.refused
    scene.ticks = False
    check_snapshot(scene.manager.config, scene.manager.snapshot())
    scene.manager.free(scene.other)  # no call is under way
    scene.manager.free(scene.request)
    assert scene.manager.num_free_blocks == 11


def test_a_count_runs_no_code_of_its_own(implementation: Implementation) -> None:
    scene = Scene(implementation)
    count = Acting(2, scene.back)
    scene.manager.remove_skipped_blocks(scene.other, count)
    scene.manager.cache_blocks(scene.other, count)
    assert not scene.refused


def test_what_a_callback_raises_ends_the_call_and_changes_nothing(
    implementation: Implementation,
) -> None:
    scene = Scene(implementation)
    before = scene.manager.snapshot()

    def fails() -> None:
        raise ZeroDivisionError

    for call in (
        lambda: scene.manager.evict_blocks(asking([1, 2], fails)),
        lambda: scene.manager.allocate_slots(
            scene.request, 9, new_computed_blocks=KVCacheBlocks((asking([], fails),))
        ),
        lambda: scene.request.append(asking([1], fails)),
    ):
        with pytest.raises(ZeroDivisionError):
            call()
    assert scene.manager.snapshot() == before
    scene.request.append([1])
    scene.manager.free(scene.other)


def batched_calls(steps: Steps, handle: int, back: Callable[[], None]) -> list[Callable[[], Any]]:
    batched = steps.batched
    rows = Tensor(rows_of(9), back)
    slots = StepOutput(slot_mappings=[Tensor(slots_of(9), back)])
    return [
        lambda: batched.decode(asking([handle], back)),
        lambda: batched.decode([handle], output=StepOutput(block_deltas=rows)),
        lambda: batched.step(StepPlan(decoding=[handle]), slots),
        lambda: batched.append([handle], asking([5], back)),
        lambda: batched.rewind([handle], asking([1], back)),
        lambda: batched.lookup(asking([handle], back)),
        lambda: batched.list_lengths(asking([handle], back)),
        lambda: batched.take_deltas(rows),
    ]


@pytest.mark.rule("KV-BATCH-2")
@pytest.mark.parametrize("build", ["kvfast", "kvfast-uncompiled"])
def test_a_batch_and_its_manager_are_refused_during_a_batched_call(build: str) -> None:
    steps = Steps(Bench(find_implementation(build), Policy()), check_invariants=False)
    (handle, other) = steps.admitted(range(8), range(20, 29))
    request: Any = steps.of(handle)
    manager, batched = steps.manager, steps.batched
    refused = []

    def back() -> None:
        for call in (
            lambda: manager.free(request),
            lambda: batched.free([other]),
            lambda: batched.unregister([other]),
            lambda: batched.step(StepPlan(preempted=[handle])),
            lambda: request.append([1]),
            lambda: setattr(request, "num_computed_tokens", 0),
            lambda: setattr(request, "status", None),
        ):
            with pytest.raises(BusyError):
                call()
            refused.append(1)

    for number, call in enumerate(batched_calls(steps, handle, back)):
        del refused[:]
        call()
        assert refused, number
        check_snapshot(manager.config, manager.snapshot())
    batched.free([handle, other])
    batched.unregister([handle, other])
    assert manager.num_free_blocks == 11


@pytest.mark.rule("KV-BATCH-2")
def test_outputs_are_opened_before_it_is_decided_what_is_legal(
    implementation: Implementation,
) -> None:
    steps = Steps(Bench(implementation, Policy()), check_invariants=False)
    (handle,) = steps.admitted(range(8))
    request, manager = steps.of(handle), steps.manager
    slots = slots_of(9)

    def gives_back() -> None:
        try:
            manager.free(request)
        except BusyError:
            raise ZeroDivisionError from None

    output = StepOutput(slot_mappings=[Tensor(slots, gives_back)])
    with pytest.raises((InvalidArgumentError, ZeroDivisionError)):
        steps.batched.decode([handle], output=output)
    check_snapshot(manager.config, manager.snapshot())
    assert list(slots) == list(slots_of(9))
    assert request.num_computed_tokens == 8


def test_a_request_is_appended_to_by_one_caller_at_a_time(implementation: Implementation) -> None:
    scene = Scene(implementation)
    request, refused = scene.request, []

    def back() -> None:
        for call in (
            lambda: request.append([1]),
            lambda: scene.manager.get_computed_blocks(request),
        ):
            with pytest.raises(BusyError) as caught:
                call()
            assert (caught.value.thing, caught.value.name) == ("request", "a")
            refused.append(1)

    request.append(asking([1, 2, 3], back))
    assert refused
    assert list(request.token_ids) == [*range(9), 1, 2, 3]
    again = new_request(implementation, scene.manager, "again", list(request.token_ids))
    assert list(again.block_hashes) == list(request.block_hashes)


def test_a_tier_shares_the_turn_of_its_manager(implementation: Implementation) -> None:
    scene = Scene(implementation)
    tier = implementation.make_tier(scene.manager, 4)  # type: ignore[attr-defined] # both have it
    refused = []

    def back() -> None:
        with pytest.raises(BusyError):
            scene.manager.free(scene.other)
        with pytest.raises(BusyError):
            tier.reset()
        refused.append(1)

    tier.taken(asking([1, 2], back))
    assert refused
    tier.reset()


@pytest.mark.parametrize("program", ["threads_on_a_manager", "threads_on_a_request"])
@pytest.mark.parametrize("build", ["kvref", "kvfast", "kvfast-uncompiled"])
def test_threads_are_refused_and_break_nothing(build: str, program: str) -> None:
    ran = python("-m", "tests.contract.at_once", build, program, timeout=120)
    assert (ran.returncode, ran.stderr[-2000:]) == (0, "")


def test_an_interrupt_at_any_moment_leaves_no_call_under_way() -> None:
    ran = python("-m", "tests.contract.interrupted", "kvref", timeout=120)
    assert (ran.returncode, ran.stderr[-2000:]) == (0, "")


class NobodyWaits(Turn):
    def check_free(self) -> None:
        self.is_taken = False


@pytest.mark.parametrize("name", ["evict_blocks", "hits", "the clock"])
def test_a_manager_that_lets_calls_in_is_found(name: str) -> None:
    scene = Scene(find_implementation("kvref"))
    assert isinstance(scene.manager, ReferenceManager)
    scene.manager.turn = NobodyWaits()
    with pytest.raises(pytest.fail.Exception, match="DID NOT RAISE"):
        CALLS[name](scene)
