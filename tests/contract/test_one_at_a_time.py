"""One call at a time: what is called from a callback or from another thread is refused."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any

import pytest

from kvcheck.discovery import find_implementation
from kvcheck.rules.steps import rows_of, slots_of
from kvspec.batched import StepOutput, StepPlan
from kvspec.blocks import KVCacheBlocks
from kvspec.errors import BusyError, InvalidArgumentError, KVSpecError
from kvspec.interface import Implementation
from kvspec.invariants import check_snapshot
from kvspec.sequential import SequentialManager
from kvspec.turn import Turn
from tests.commands import python
from tests.contract.builders import new_request
from tests.contract.hostile import Acting, Moody, Tensor
from tests.contract.test_illegal import ARGUMENTS, Argument, World

pytestmark = pytest.mark.rule("KV-ERR-7")

READ = ("Sequence", "Ints", "KVCacheBlocks", "Array", "tokens")
ACTING = [each for each in ARGUMENTS if each.annotation.startswith(READ)]
acting_arguments = pytest.mark.parametrize(
    "argument", ACTING, ids=lambda a: f"{a.owner}.{a.call}-{a.name}"
)


def asking(values: Sequence[int], back: Callable[[], None]) -> Moody:
    """Return ints that call `back` whenever they are read."""
    return Moody(values, "acts", back)


def acting(argument: Argument, world: World, back: Callable[[], None]) -> Any:
    """Return a value of the argument's type that calls `back` whenever it is read."""
    match argument.annotation:
        case "Array" | "Array | None":
            return Tensor(rows_of(9), back)
        case "Sequence[Array | None] | None":
            return [Tensor(slots_of(9), back), *[None] * (world.num_groups - 1)]
        case "KVCacheBlocks" | "KVCacheBlocks | None":
            return KVCacheBlocks((asking([], back),))
        case "Ints" if argument.name != "token_ids":
            handles = world.waiting if argument.field == "new" else world.running
            return asking(handles[:1], back)
    return asking([1], back)


class Callback:
    """Makes calls of the world that must be refused as busy; counts them."""

    def __init__(self, world: World, *, is_batched: bool = False) -> None:
        self.world, self.num_refused = world, 0
        manager, batched, request = world.manager, world.batched, world.requests[1]
        of_batch: list[Callable[[], object]] = [
            lambda: batched.free([1]),
            lambda: batched.unregister([2]),
            lambda: batched.step(StepPlan(preempted=[1])),
        ]
        of_manager: list[Callable[[], object]] = [
            lambda: manager.free(request),
            lambda: manager.reset_prefix_cache(),
            lambda: manager.allocate_slots(request, 4),
            lambda: manager.take_events(),
            lambda: manager.snapshot(),
            lambda: world.tier.reset(),
            lambda: world.made.append_tokens(manager, request, [1]),
        ]
        is_of_single_calls = isinstance(batched, SequentialManager)  # the manager is free between
        self.calls = of_batch if is_batched and is_of_single_calls else of_manager
        if is_batched and not is_of_single_calls:
            self.calls = of_batch + of_manager

    def __call__(self) -> None:
        for call in self.calls:
            with pytest.raises(BusyError) as caught:
                call()
            assert (caught.value.thing, caught.value.name) == ("manager", None)
            self.num_refused += 1
        assert isinstance(self.world.manager.num_free_blocks, int)  # that can always be read


def let_in(world: World, argument: Argument) -> int:
    """Make the call with a value that calls back; return how many calls were refused."""
    back = Callback(world, is_batched=argument.owner in ("batched", "plan", "output"))
    with suppress(KVSpecError):
        argument.make(world, acting(argument, world, back))
    check_snapshot(world.manager.config, world.manager.snapshot())
    world.batched.step(StepPlan(finished=world.running))  # no call is under way
    return back.num_refused


@pytest.mark.rule("KV-BATCH-2")
@acting_arguments
def test_what_is_called_from_inside_is_refused(
    implementation: Implementation, argument: Argument
) -> None:
    assert let_in(World(implementation), argument)


@acting_arguments
def test_what_a_callback_raises_ends_the_call_and_changes_nothing(
    implementation: Implementation, argument: Argument
) -> None:
    def fails() -> None:
        raise ZeroDivisionError

    world = World(implementation)
    before = world.state()
    with pytest.raises(ZeroDivisionError):
        argument.make(world, acting(argument, world, fails))
    assert world.state() == before
    world.batched.step(StepPlan(finished=world.running))


def test_what_the_clock_calls_is_refused(implementation: Implementation) -> None:
    ticks: list[Callable[[], None]] = []
    world = World(implementation, clock=lambda: ([tick() for tick in ticks] and 7) or 7)
    back = Callback(world)
    ticks.append(back)
    world.manager.allocate_slots(world.requests[2], 9)
    refused = back.num_refused
    world.manager.evict_blocks([1])
    assert 0 < refused < back.num_refused


def test_a_count_runs_no_code_of_its_own(implementation: Implementation) -> None:
    world = World(implementation)
    back = Callback(world)
    world.manager.remove_skipped_blocks(world.requests[0], Acting(2, back))
    world.manager.cache_blocks(world.requests[0], Acting(2, back))
    assert not back.num_refused


@pytest.mark.rule("KV-BATCH-2")
def test_outputs_are_opened_before_it_is_decided_what_is_legal(
    implementation: Implementation,
) -> None:
    world, slots = World(implementation), slots_of(9)

    def gives_back() -> None:
        try:
            world.manager.free(world.requests[0])
        except BusyError:
            raise ZeroDivisionError from None

    output = StepOutput(slot_mappings=[Tensor(slots, gives_back)])
    with pytest.raises((InvalidArgumentError, ZeroDivisionError)):
        world.batched.decode(world.running[:1], output=output)
    check_snapshot(world.manager.config, world.manager.snapshot())
    assert list(slots) == list(slots_of(9))
    assert world.requests[0].num_computed_tokens == 9


def test_a_request_is_appended_to_by_one_caller_at_a_time(implementation: Implementation) -> None:
    world = World(implementation)
    request: Any = new_request(implementation, world.manager, "a", range(9))
    refused = []

    def back() -> None:
        for call in (
            lambda: request.append([1]),
            lambda: world.manager.get_computed_blocks(request),
        ):
            with pytest.raises(BusyError) as caught:
                call()
            assert (caught.value.thing, caught.value.name) == ("request", "a")
            refused.append(1)

    request.append(asking([1, 2, 3], back))
    assert refused
    assert list(request.token_ids) == [*range(9), 1, 2, 3]
    again = new_request(implementation, world.manager, "again", list(request.token_ids))
    assert list(again.block_hashes) == list(request.block_hashes)


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


@pytest.mark.parametrize("call", ["evict_blocks", "allocate_slots", "append_tokens"])
def test_a_manager_that_lets_calls_in_is_found(call: str) -> None:
    world: Any = World(find_implementation("kvref"))
    world.manager.turn = NobodyWaits()
    argument = next(each for each in ACTING if each.call == call)
    with pytest.raises(pytest.fail.Exception, match="DID NOT RAISE"):
        let_in(world, argument)
