"""Phases are timed apart, rounds are counted, and unequal work is refused: with a fake clock."""

from __future__ import annotations

import gc
from collections.abc import Callable, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from itertools import chain
from typing import Any

import pytest

from kvcheck.tools.bench import measure as measuring
from kvcheck.tools.bench.calls import (
    ADMIT,
    ALLOCATE,
    APPEND,
    DECODE,
    FREE,
    HASH,
    LOOK_UP,
    LOOK_UP_AGAIN,
    Calls,
    UnequalWorkError,
)
from kvcheck.tools.bench.measure import Contestant, Measured, Measurement
from kvcheck.tools.bench.report import document, machine, ratios, spread
from kvcheck.tools.bench.script import (
    BLOCK_SIZE_TOKENS,
    SECTIONS,
    Case,
    Decoding,
    Plan,
    full_plan,
    quick_plan,
)
from kvcheck.tools.bench.turn import Turn
from kvcheck.tools.bench.work import INCLUDES
from kvspec.config import ManagerConfig
from kvspec.errors import KVSpecError
from kvspec.interface import KVCacheManager
from kvspec.policy import Policy
from tests.bench import toy as toys
from tests.bench.toy import COLD, FRESH, PLAN, SMALL, STEPS, FakeClock, Toy, measured
from tests.cases import Case as Told
from tests.cases import cases

FOUND = Measurement(SMALL, "look up", 2, {"b": [10.0, 2.0, 8.0], "a": [20.0, 20.0, 4.0]})

CLOCK = FakeClock()


def single(clock: FakeClock, change: Callable[[Calls], Calls] = lambda calls: calls) -> Toy:
    return Toy(clock, change=change, is_batched=False)


@pytest.mark.parametrize("told", cases(__file__, "times.txt"), ids=str)
def test_a_phase_has_the_time_of_its_own_calls_and_of_nothing_else(told: Told) -> None:
    names = {SMALL.label: "SMALL", FRESH.label: "FRESH", COLD.label: "COLD", STEPS.label: "STEPS"}
    name, clock = told.given[-1], FakeClock()
    found = measured(*PLAN.cases, rounds=3, **{"1": Toy(clock), "3": Toy(clock, 3)})
    told.expect(
        f"{names[each.case.label]}, {each.phase}: {each.units_per_round} units,"
        f" {each.rounds_ns[name]}"
        for each in found.measurements
        if name in each.rounds_ns
    )
    for each in found.measurements:
        slow = each.rounds_ns.get(name.replace("1", "3"), [])
        assert slow == pytest.approx([3 * spent for spent in each.rounds_ns.get(name, [])])
    assert (found.includes["1"], found.includes["1, batched"]) == ("ticks", INCLUDES)


def test_the_first_round_is_not_counted() -> None:
    """Slow it down, as cold caches and code never run before do."""
    toy = Toy(FakeClock(), slowness=1000)

    def warm(name: str) -> None:
        if name == "num_free_blocks":  # read at the end of a round
            toy.slowness = 1

    toy.on_call = warm
    found = measured(SMALL, toy=toy).measurements
    assert [each.rounds_ns["toy"] for each in found if each.phase == LOOK_UP] == [[13.0, 13.0]]


def test_in_each_round_all_have_a_turn_and_the_order_changes() -> None:
    clock, heard = FakeClock(), []

    def named(name: str) -> Toy:
        def on_call(call: str) -> None:
            if call == "make_request":
                heard.append(name)

        return Toy(clock, on_call=on_call, is_batched=False)

    measured(FRESH, rounds=7, a=named("a"), b=named("b"), c=named("c"))
    turns = heard[::6]  # requests of a round
    rounds = [tuple(turns[at : at + 3]) for at in range(0, len(turns), 3)]
    assert len(rounds) == 8
    assert all(sorted(each) == ["a", "b", "c"] for each in rounds)
    assert len(set(rounds)) > 2


@pytest.mark.parametrize(
    ("case", "phase", "less"),
    [
        (SMALL, HASH, single(CLOCK, toys.other_hashes)),
        (STEPS, APPEND, single(CLOCK, toys.other_hashes)),
        (SMALL, LOOK_UP, single(CLOCK, toys.shorter_hits)),
        (SMALL, LOOK_UP_AGAIN, single(CLOCK, toys.forgets)),
        (SMALL, ALLOCATE, single(CLOCK, toys.other_blocks)),
        (SMALL, FREE, single(CLOCK, toys.keeps_blocks)),
        (STEPS, DECODE, single(CLOCK, toys.refuses)),
        (SMALL, LOOK_UP, Toy(CLOCK, change_batched=toys.shorter_lengths)),
        (SMALL, LOOK_UP_AGAIN, Toy(CLOCK, change_batched=toys.forgets_lengths)),
        (SMALL, ADMIT, Toy(CLOCK, change_batched=toys.other_rows)),
        (STEPS, DECODE, Toy(CLOCK, change_batched=toys.no_rows)),
        (STEPS, APPEND, Toy(CLOCK, change_batched=toys.no_hashes)),
        (STEPS, DECODE, Toy(CLOCK, change_batched=toys.grants_less)),
    ],
)
def test_managers_that_answer_differently_are_not_compared(
    case: Case, phase: str, less: Toy
) -> None:
    caught = refused(case, whole=single(CLOCK), less=less)
    assert caught.phase == phase
    assert {caught.first, caught.other} <= {"whole", "less", "less, batched", "the case"}
    assert caught.expected != caught.got
    assert case.label in str(caught)


def refused(case: Case, **playing: Toy) -> UnequalWorkError:
    with pytest.raises(UnequalWorkError) as caught:
        measured(case, rounds=2, **playing)
    return caught.value


def test_what_differed_first_is_told_even_if_the_round_ended_later_for_another_reason() -> None:
    clock = FakeClock()
    less = single(clock, lambda calls: toys.shorter_hits(toys.other_hashes(calls)))
    whole = single(clock)
    orders: list[dict[str, Any]] = [{"whole": whole, "less": less}, {"less": less, "whole": whole}]
    phases = {refused(SMALL, **playing).phase for playing in orders}
    assert phases <= {HASH, LOOK_UP}  # the first of a round differs from none


def test_what_would_take_too_long_is_left_out_with_all_that_is_larger(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    clock = FakeClock()
    slow = Toy(clock, slowness=1000, is_batched=False)
    larger = replace(STEPS, label="larger")
    monkeypatch.setattr(measuring, "PATIENCE_S", 90.0)  # it reads a result in a second
    found = measured(SMALL, STEPS, larger, quick=single(clock), slow=slow)
    playing = {each.case.label: set(each.rounds_ns) for each in found.measurements}
    assert playing == {SMALL.label: {"quick", "slow"}, STEPS.label: {"quick"}, "larger": {"quick"}}
    assert [(case, name) for case, name, _ in found.left_out] == [(STEPS, "slow")]
    assert 100 < found.left_out[0][2] < 120
    monkeypatch.setattr(measuring, "PATIENCE_S", 2.0)  # the preparation ends early
    found = measured(STEPS, larger, quick=single(clock), slow=slow)
    assert [(case, name) for case, name, _ in found.left_out] == [(STEPS, "slow")]
    assert 2 < found.left_out[0][2] < 5
    anew = replace(STEPS, is_anew=True, rounds=lambda number: iter([()] * (number + 1)))
    assert measured(anew, slow=slow).left_out == []


def test_a_case_that_is_not_as_it_says_is_refused_even_alone() -> None:
    caught = refused(SMALL, less=single(FakeClock(), toys.shorter_hits))
    assert (caught.first, caught.expected, caught.got) == ("the case", 32, 16)
    caught = refused(Decoding(3, prompt_tokens=32, num_blocks=8).case(), toy=Toy(FakeClock()))
    assert (caught.first, caught.got) == ("the case", None)


def test_the_collector_is_off_in_every_call_and_on_again_afterwards() -> None:
    clock, states = FakeClock(), set[bool]()
    measured(*PLAN.cases, toy=Toy(clock, on_call=lambda name: states.add(gc.isenabled())))
    assert states == {False}
    assert gc.isenabled()
    with pytest.raises(KVSpecError):
        measured(SMALL, less=single(clock, toys.shorter_hits))
    assert gc.isenabled()


def test_an_allocation_takes_a_hit_that_is_still_valid() -> None:
    heard = list[str]()
    measured(SMALL, toy=Toy(FakeClock(), on_call=heard.append))
    before = {heard[at - 1] for at, name in enumerate(heard) if name == "allocate_with_hit"}
    assert before == {"look_up"}


def test_each_is_measured_under_its_own_choices() -> None:
    class Chosen(Toy):
        bench_policy = Policy(counts_common_prefix=False)

        def create(self, config: ManagerConfig, **options: Any) -> KVCacheManager:
            seen.append(config.policy)
            return super().create(config, **options)

    seen: list[Policy] = []
    measured(SMALL, a=Chosen(FakeClock()), b=Toy(FakeClock()))
    assert set(seen) == {Chosen.bench_policy}


def played(case: Case, num_rounds: int) -> tuple[KVCacheManager, list[Turn]]:
    made: list[KVCacheManager] = []

    class Audited(Toy):
        def create(self, config: ManagerConfig, **options: Any) -> KVCacheManager:
            made.append(super().create(config, check_invariants=True))
            return made[-1]

    work = Contestant("kvref", Audited(FakeClock())).work(case)
    turns = []
    for steps in case.rounds(num_rounds):
        turns.append(Turn("kvref", case.label, work, lambda: 0))
        turns[-1].play(steps)
    return made[0], turns


def kept(turn: Turn, phase: str) -> list[Sequence[Any]]:
    return [found for name, found in turn.kept if name == phase]


def test_a_cold_pool_is_full_of_cached_blocks_in_no_order() -> None:
    manager, _ = played(COLD, 0)
    state = manager.snapshot()
    assert manager.num_free_blocks == COLD.num_blocks - 1
    assert all(state.block_keys[1:])
    pairs = zip(state.free_queue, state.free_queue[1:], strict=False)
    assert sum(right == left - 1 for left, right in pairs) < COLD.num_blocks * 15 // 16 - 1


def test_cold_rounds_ask_for_other_prompts_and_hot_ones_for_the_same() -> None:
    for case, repeats in ((COLD, False), (SMALL, True)):
        _, turns = played(case, 3)
        found = [[ids[:2] for _, ids in kept(turn, ADMIT)[0]] for turn in turns[1:]]
        assert (found[0] == found[1] == found[2]) is repeats


def test_in_each_step_of_decoding_as_many_requests_begin_a_block() -> None:
    _, turns = played(Decoding(num_requests=32, prompt_tokens=64, num_blocks=32 * 8).case(), 2)
    hashes: set[bytes] = set()
    for turn in turns[1:]:
        steps = kept(turn, DECODE)
        assert [sum(map(bool, step)) for step in steps] == [2] * BLOCK_SIZE_TOKENS
        assert [sum(map(len, each)) for each in zip(*steps, strict=True)] == [1] * 32
        hashes.update(last for (last,) in kept(turn, APPEND)[-1])
    assert len(hashes) == 64


@pytest.mark.parametrize("plan", [full_plan(), quick_plan()], ids=["full", "quick"])
def test_every_case_has_room_for_all_its_rounds(plan: Plan) -> None:
    for case in plan.cases:
        tokens = case.prompt_tokens
        if case.kind == "decode":
            tokens += (plan.num_rounds + 2) * BLOCK_SIZE_TOKENS - 1
        assert case.config().max_model_len_tokens >= tokens
        assert case.facts["num_requests"] * -(-tokens // BLOCK_SIZE_TOKENS) < case.num_blocks


def test_a_plan_may_be_reduced_to_a_section() -> None:
    parts = [[each.label for each in full_plan([section]).cases] for section in SECTIONS]
    assert list(chain(*parts)) == [each.label for each in full_plan().cases]
    assert [len(part) for part in parts] == [9, 7, 5, 0]


def test_ratios_are_taken_round_by_round() -> None:
    assert spread([5.0, 1.0, 3.0, 2.0, 4.0]) == {"q1": 2.0, "median": 3.0, "q3": 4.0}
    assert ratios(FOUND, "a", "b") == [2.0, 10.0, 0.5]
    assert ratios(FOUND, "a", "a") == [1.0, 1.0, 1.0]
    assert ratios(FOUND, "c", "b") is None
    nothing = replace(FOUND, rounds_ns={"a": [0.0, 1.0], "b": [0.0, 0.0]})
    assert ratios(nothing, "a", "b") == [1.0, 1000.0]


def test_the_document_has_what_is_needed_to_judge_the_numbers(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    playing = [Contestant(name, single(FakeClock())) for name in ("a", "b")]
    decoding = Measurement(STEPS, "decode step", 48, FOUND.rounds_ns)
    result = Measured(5.0, [FOUND, decoding], {"a": "ticks", "b": "tocks"})
    made = document(playing, result, 3, "kvspec bench", datetime(2026, 1, 2, 3, tzinfo=UTC))
    assert made["started"] == "2026-01-02T03:00:00+00:00"
    assert (made["baseline"], made["rounds"]) == ("a", 3)
    assert [each["includes"] for each in made["implementations"]] == ["ticks", "tocks"]
    first, second = made["measurements"]
    assert (first["phase"], first["unit"], first["units_per_round"]) == ("look up", "request", 2)
    assert first["results"]["b"] == {
        "ns_per_unit": {"q1": 5.0, "median": 8.0, "q3": 9.0},
        "ratio": {"q1": 1.25, "median": 2.0, "q3": 6.0},
        "rounds_ns_per_unit": [10.0, 2.0, 8.0],
    }
    assert (first["case"]["kind"], second["case"]["kind"]) == ("prompt", "decode")
    assert first["case"]["hit_percent"] == 50

    def refuse() -> tuple[float, float, float]:
        raise OSError

    monkeypatch.setattr("os.getloadavg", refuse)  # not on every system
    assert made["machine"].keys() == machine().keys()
    assert machine()["load_1min"] is None
