"""Phases are timed apart, rounds are counted, and unequal work is refused: with a fake clock."""

from __future__ import annotations

import gc
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from kvcheck.tools.bench.calls import Calls, UnequalWorkError
from kvcheck.tools.bench.cases import Case, DecodeCase, Plan, PromptCase
from kvcheck.tools.bench.measure import (
    PREPARE_FACTOR,
    Contestant,
    Measured,
    Subject,
    measure,
    scenario_of,
)
from kvcheck.tools.bench.scenarios import (
    ADMIT,
    ALLOCATE,
    APPEND,
    DECODE,
    FREE,
    HASH,
    LOOK_UP,
    LOOK_UP_AGAIN,
)
from kvcheck.tools.bench.stopwatch import Turn
from kvcheck.tools.bench.work import INCLUDES
from kvspec.batched import BatchedManager
from kvspec.config import ManagerConfig
from kvspec.errors import KVSpecError
from kvspec.interface import KVCacheManager
from kvspec.policy import Policy
from tests.bench.toy import (
    COLD,
    FRESH,
    PLAN,
    SMALL,
    STEPS,
    FakeClock,
    Toy,
    forgets,
    forgets_lengths,
    grants_less,
    keeps_blocks,
    no_hashes,
    no_rows,
    other_blocks,
    other_hashes,
    other_rows,
    refuses,
    shorter_hits,
    shorter_lengths,
)
from tests.cases import Case as Told
from tests.cases import cases


def measured(*slowness: int) -> Measured:
    clock = FakeClock()
    return measure(PLAN, [Subject(str(slow), Toy(clock, slow)) for slow in slowness], clock=clock)


@pytest.mark.parametrize("told", cases(__file__, "times.txt"), ids=str)
def test_a_phase_has_the_time_of_its_own_calls_and_of_nothing_else(told: Told) -> None:
    names = {SMALL: "SMALL", FRESH: "FRESH", COLD: "COLD", STEPS: "STEPS"}
    name = told.given[-1]
    told.expect(
        f"{names[each.case]}, {each.phase}: {each.units_per_round} units, {each.rounds_ns[name]}"
        for each in measured(1).measurements
        if name in each.rounds_ns
    )


def test_every_subject_has_its_own_times() -> None:
    for each in measured(1, 3).measurements:
        for way in ("", ", batched"):
            if f"1{way}" in each.rounds_ns:
                fast, slow = each.rounds_ns[f"1{way}"], each.rounds_ns[f"3{way}"]
                assert slow == pytest.approx([3 * spent for spent in fast])


def test_the_first_round_is_not_counted() -> None:
    """Slow it down, as cold caches and code never run before do."""
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

    measure(Plan((SMALL,), 7), [named("a"), named("b"), named("c")], clock=clock)
    rounds = [tuple(heard[at : at + 6]) for at in range(0, len(heard), 6)]
    assert len(rounds) == 8
    assert all(sorted(each) == ["a", "a", "b", "b", "c", "c"] for each in rounds)  # and batched
    assert len(set(rounds)) > 2


def named(value: object) -> str:
    return value if isinstance(value, str) else getattr(value, "__name__", type(value).__name__)


@pytest.mark.parametrize(
    ("change", "case", "phase"),
    [
        (other_hashes, SMALL, HASH),
        (other_hashes, STEPS, APPEND),
        (shorter_hits, SMALL, LOOK_UP),
        (forgets, SMALL, LOOK_UP_AGAIN),
        (other_blocks, SMALL, ALLOCATE),
        (keeps_blocks, SMALL, FREE),
        (refuses, STEPS, DECODE),
    ],
    ids=named,
)
def test_managers_that_answer_differently_are_not_compared(
    change: Callable[[Calls], Calls], case: Case, phase: str
) -> None:
    clock = FakeClock()
    whole, less = Toy(clock, is_batched=False), Toy(clock, change=change, is_batched=False)
    caught = refused(clock, case, whole=whole, less=less)
    assert caught.phase == phase
    assert {caught.first, caught.other} <= {"whole", "less", "the case"}
    assert caught.expected != caught.got
    assert case.label in str(caught)


@pytest.mark.parametrize(
    ("change", "case", "phase"),
    [
        (shorter_lengths, SMALL, LOOK_UP),
        (forgets_lengths, SMALL, LOOK_UP_AGAIN),
        (other_rows, SMALL, ADMIT),
        (no_rows, STEPS, DECODE),
        (no_hashes, STEPS, APPEND),
        (grants_less, STEPS, DECODE),
    ],
    ids=named,
)
def test_batched_calls_that_answer_differently_are_not_compared(
    change: Callable[[BatchedManager], Any], case: Case, phase: str
) -> None:
    clock = FakeClock()
    caught = refused(clock, case, less=Toy(clock, change_batched=change))
    assert caught.phase == phase
    assert "less, batched" in (caught.first, caught.other)


def refused(clock: FakeClock, case: Case, **toys: Toy) -> UnequalWorkError:
    with pytest.raises(UnequalWorkError) as caught:
        measure(Plan((case,), 2), [Subject(*each) for each in toys.items()], clock=clock)
    return caught.value


def test_what_differed_first_is_told_even_if_the_round_ended_later_for_another_reason() -> None:
    clock = FakeClock()
    less = Toy(clock, change=lambda calls: shorter_hits(other_hashes(calls)), is_batched=False)
    whole = Toy(clock, is_batched=False)
    orders = ({"whole": whole, "less": less}, {"less": less, "whole": whole})
    phases = {refused(clock, SMALL, **toys).phase for toys in orders}
    assert phases == {HASH, LOOK_UP}  # the first of a round differs from none


def test_one_that_names_blocks_in_its_own_way_is_held_to_lengths_only() -> None:
    clock = FakeClock()

    def named(name: str, change: Callable[[Calls], Calls]) -> Subject:
        def own(calls: Calls) -> Calls:
            return replace(change(calls), has_own_names=True)

        return Subject(name, Toy(clock, change=own, is_batched=False))

    whole = Subject("whole", Toy(clock))
    renamed = named("renamed", lambda calls: other_blocks(other_hashes(calls)))
    found = measure(Plan((SMALL,), 2), [whole, renamed], clock=clock).measurements
    assert all("renamed" in each.rounds_ns for each in found)
    for change, phase in ((shorter_hits, LOOK_UP), (keeps_blocks, FREE)):
        with pytest.raises(UnequalWorkError) as caught:
            measure(Plan((SMALL,), 2), [whole, named("less", change)], clock=clock)
        assert caught.value.phase in (phase, f"{phase}, lengths")


def test_who_would_take_too_long_is_left_out_of_a_case_and_that_is_said() -> None:
    clock, labels = FakeClock(), list[str]()
    slow = Subject("slow", Toy(clock, slowness=1000, is_batched=False))
    quick = Subject("quick", Toy(clock, is_batched=False))
    plan = Plan((SMALL, STEPS), 2)
    # The slow one reads a result in a second: 51 in STEPS.
    found = measure(plan, [quick, slow], clock=clock, patience_s=80.0, on_case=labels.append)
    assert {
        case.label: {
            name for each in found.measurements if each.case is case for name in each.rounds_ns
        }
        for case in plan.cases
    } == {SMALL.label: {"quick", "slow"}, STEPS.label: {"quick"}}
    assert [(each.case, each.name) for each in found.left_out] == [(STEPS, "slow")]
    assert found.left_out[0].seconds == pytest.approx(102, rel=0.01)
    assert labels == [SMALL.label, STEPS.label]


def test_a_pool_that_would_take_too_long_to_fill_is_not_filled() -> None:
    clock, heard = FakeClock(), list[str]()
    toy = Toy(clock, on_call=heard.append, is_batched=False)
    larger = replace(COLD, num_blocks=1000 * COLD.num_blocks)
    alone = measure(Plan((COLD,), 2), [Subject("toy", toy)], clock=clock)
    calls = len(heard)
    filling_s = 1000 * fill_s(COLD)
    patience_s = 0.9 * filling_s / PREPARE_FACTOR
    both = measure(
        Plan((COLD, larger), 2), [Subject("toy", toy)], clock=clock, patience_s=patience_s
    )
    assert len(heard) == 2 * calls
    assert len(both.measurements) == len(alone.measurements)
    (left_out,) = both.left_out
    assert left_out.case is larger
    assert left_out.seconds == pytest.approx(filling_s)


def fill_s(case: PromptCase) -> float:
    clock = FakeClock()
    scenario = scenario_of(Contestant(Subject("toy", Toy(clock))), case, 3)
    scenario.prepare(Turn("toy", case.label, scenario.work.calls, clock))
    return clock.now / 1e9


def test_a_case_that_is_not_as_cached_as_it_says_is_refused_even_alone() -> None:
    clock = FakeClock()
    caught = refused(clock, SMALL, less=Toy(clock, change=shorter_hits, is_batched=False))
    assert (caught.first, caught.expected, caught.got) == ("the case", 32, 16)


def test_no_room_is_refused_even_alone() -> None:
    """Raise an error: otherwise refusals would be timed."""
    clock = FakeClock()
    crowded = DecodeCase(num_requests=3, prompt_tokens=32, num_blocks=8)
    caught = refused(clock, crowded, toy=Toy(clock))
    assert (caught.first, caught.got) == ("the case", None)


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
    assert measured(1).includes == {"1": "ticks", "1, batched": INCLUDES}


def test_an_allocation_takes_a_hit_that_is_still_valid() -> None:
    clock, heard = FakeClock(), list[str]()
    toy = Toy(clock, on_call=heard.append)
    measure(Plan((SMALL,), 2), [Subject("toy", toy)], clock=clock)
    before = {heard[at - 1] for at, name in enumerate(heard) if name == "allocate_with_hit"}
    assert before == {"look_up"}


def test_each_is_measured_under_its_own_choices() -> None:
    class Chosen(Toy):
        bench_policy = Policy(counts_common_prefix=False)

        def create(self, config: ManagerConfig, **options: Any) -> KVCacheManager:
            seen.append(config.policy)
            return super().create(config, **options)

    seen: list[Policy] = []
    clock = FakeClock()
    measure(Plan((SMALL,), 1), [Subject("a", Chosen(clock)), Subject("b", Toy(clock))], clock=clock)
    assert set(seen) == {Chosen.bench_policy}
