"""Phases are timed apart, rounds are counted, and unequal work is refused: with a fake clock."""

from __future__ import annotations

import gc
from collections.abc import Callable

import pytest

from kvspec.bench.calls import Calls
from kvspec.bench.cases import DecodeCase, Plan
from kvspec.bench.errors import UnequalWorkError
from kvspec.bench.measure import Measured, Subject, measure, turns
from kvspec.bench.scenarios import ALLOCATE, APPEND, DECODE, FREE, HASH, LOOK_UP
from kvspec.errors import KVSpecError
from tests.bench.toy import (
    COLD,
    PLAN,
    SMALL,
    STEPS,
    FakeClock,
    Toy,
    keeps_blocks,
    other_blocks,
    other_hashes,
    refuses,
    shorter_hits,
)


def measured(*slowness: int) -> Measured:
    """The plan with toys of this slowness, named by it."""
    clock = FakeClock()
    return measure(PLAN, [Subject(str(slow), Toy(clock, slow)) for slow in slowness], clock=clock)


def test_a_phase_has_the_time_of_its_own_calls_and_of_nothing_else() -> None:
    """Reading an answer costs a thousand times as much as any call, and is nowhere in the times."""
    found = {(each.case, each.phase): each for each in measured(1).measurements}
    times = {key: (each.units_per_round, each.rounds_ns["1"]) for key, each in found.items()}
    assert times == {
        (SMALL, HASH): (8, [7 / 4] * 3),
        (SMALL, LOOK_UP): (2, [13.0] * 3),
        (SMALL, ALLOCATE): (8, [19 / 4] * 3),
        (SMALL, FREE): (8, [23 / 4] * 3),
        (COLD, HASH): (16, [7 / 8] * 3),
        (COLD, LOOK_UP): (2, [13.0] * 3),
        (COLD, ALLOCATE): (16, [19 / 8] * 3),
        (COLD, FREE): (16, [23 / 8] * 3),
        (STEPS, APPEND): (3 * 16, [11.0] * 3),
        (STEPS, DECODE): (3 * 16, [17.0] * 3),
    }


def test_every_subject_has_its_own_times() -> None:
    for each in measured(1, 3).measurements:
        fast, slow = each.rounds_ns["1"], each.rounds_ns["3"]
        assert slow == pytest.approx([3 * spent for spent in fast])


def test_the_first_round_is_not_counted() -> None:
    """Here it is slow, as it is where caches are cold and code was never run."""
    clock = FakeClock()
    toy = Toy(clock, slowness=1000)

    def warm(name: str) -> None:
        if name == "num_free_blocks":  # read at the end of a round
            toy.slowness = 1

    toy.on_call = warm
    found = measure(Plan((SMALL,), 2), [Subject("toy", toy)], clock=clock).measurements
    assert [each.rounds_ns["toy"] for each in found if each.phase == LOOK_UP] == [[13.0, 13.0]]


def test_in_each_round_all_have_a_turn_and_the_order_changes() -> None:
    clock, heard = FakeClock(), []

    def named(name: str) -> Subject:
        def on_call(call: str) -> None:
            if call == "num_free_blocks":
                heard.append(name)

        return Subject(name, Toy(clock, on_call=on_call))

    plan, told = Plan((SMALL,), 7), list[str]()
    measure(plan, [named("a"), named("b"), named("c")], clock=clock, on_turn=told.append)
    rounds = [tuple(heard[at : at + 3]) for at in range(0, len(heard), 3)]
    assert len(rounds) == 8
    assert all(sorted(each) == ["a", "b", "c"] for each in rounds)
    assert len(set(rounds)) > 2
    assert told == [SMALL.label] * turns(plan, 3)


@pytest.mark.parametrize(
    ("change", "phase"),
    [
        pytest.param(other_hashes, HASH, id="other_hashes"),
        pytest.param(shorter_hits, LOOK_UP, id="shorter_hits"),
        pytest.param(other_blocks, ALLOCATE, id="other_blocks"),
        pytest.param(keeps_blocks, FREE, id="keeps_blocks"),
    ],
)
def test_managers_that_answer_differently_are_not_compared(
    change: Callable[[Calls], Calls], phase: str
) -> None:
    clock = FakeClock()
    both = [Subject("whole", Toy(clock)), Subject("less", Toy(clock, change=change))]
    with pytest.raises(UnequalWorkError) as caught:
        measure(Plan((SMALL,), 2), both, clock=clock)
    assert caught.value.phase == phase
    assert {caught.value.first, caught.value.other} <= {"whole", "less", "the case"}
    assert caught.value.expected != caught.value.got
    assert SMALL.label in str(caught.value)


def test_a_refusal_to_a_decoding_request_is_unequal_work() -> None:
    clock = FakeClock()
    both = [Subject("whole", Toy(clock)), Subject("full", Toy(clock, change=refuses))]
    with pytest.raises(UnequalWorkError) as caught:
        measure(Plan((STEPS,), 2), both, clock=clock)
    assert caught.value.phase == DECODE


def test_a_case_that_is_not_as_cached_as_it_says_is_refused_even_alone() -> None:
    clock = FakeClock()
    with pytest.raises(UnequalWorkError) as caught:
        measure(Plan((SMALL,), 2), [Subject("less", Toy(clock, change=shorter_hits))], clock=clock)
    assert (caught.value.first, caught.value.expected, caught.value.got) == ("the case", 32, 16)


def test_no_room_is_refused_even_alone() -> None:
    """Or the times would be those of refusals."""
    clock = FakeClock()
    crowded = DecodeCase(num_requests=3, prompt_tokens=32, num_blocks=8)
    with pytest.raises(UnequalWorkError) as caught:
        measure(Plan((crowded,), 2), [Subject("toy", Toy(clock))], clock=clock)
    assert (caught.value.first, caught.value.got) == ("the case", None)


def test_the_collector_is_off_in_every_call_and_on_again_afterwards() -> None:
    clock, states = FakeClock(), set[bool]()
    toy = Toy(clock, on_call=lambda name: states.add(gc.isenabled()))
    measure(PLAN, [Subject("toy", toy)], clock=clock)
    assert states == {False}
    assert gc.isenabled()
    with pytest.raises(KVSpecError):
        measure(PLAN, [Subject("less", Toy(clock, change=shorter_hits))], clock=clock)
    assert gc.isenabled()


def test_what_the_times_include_is_said_by_the_implementation() -> None:
    assert measured(1).includes == {"1": "ticks"}


def test_an_allocation_takes_a_hit_that_is_still_valid() -> None:
    """It is looked up just before: other requests allocate after the look-ups that are timed."""
    clock, heard = FakeClock(), list[str]()
    toy = Toy(clock, on_call=heard.append)
    measure(Plan((SMALL,), 2), [Subject("toy", toy)], clock=clock)
    before = {heard[at - 1] for at, name in enumerate(heard) if name == "allocate_with_hit"}
    assert before == {"look_up"}
