"""Every named invariant rejects a state, or a call, that no other rejects."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

import kvref
from kvspec.errors import InvariantViolation
from kvspec.invariants import INVARIANTS, check_snapshot
from kvspec.transitions import PURE_CALLS, TRANSITION_INVARIANTS, Transition, check_transition
from tests.contract.builders import new_manager
from tests.invariants.cases import (
    CASES,
    TRANSITION_CASES,
    Case,
    State,
    TransitionCase,
    story,
    two_copies,
    two_groups,
)


@pytest.mark.parametrize("case", CASES, ids=str)
def test_only_one_invariant_rejects_the_state(case: Case) -> None:
    bad = case.spoil(case.good())
    offences = {i: i.first_offence(bad.config, bad.snapshot) for i in INVARIANTS}
    ((invariant, detail),) = [(i, offence) for i, offence in offences.items() if offence]
    assert invariant.name == case.invariant
    with pytest.raises(InvariantViolation) as caught:
        check_snapshot(bad.config, bad.snapshot)
    assert (caught.value.invariant, caught.value.rule) == (invariant.name, invariant.rule)
    assert (caught.value.detail, caught.value.state) == (detail, bad.snapshot.describe())


@pytest.mark.parametrize("case", TRANSITION_CASES, ids=str)
def test_only_one_invariant_rejects_the_transition(case: TransitionCase) -> None:
    config, transition = case.transition()
    offences = {i.name: i.first_offence(config, transition) for i in TRANSITION_INVARIANTS}
    assert [name for name, offence in offences.items() if offence] == [case.invariant]
    with pytest.raises(InvariantViolation) as caught:
        check_transition(config, transition)
    assert caught.value.invariant == case.invariant
    assert caught.value.detail.startswith(f"{case.call}: ")
    assert "-- before --" in caught.value.state


def test_every_invariant_has_a_case() -> None:
    assert {case.invariant for case in CASES} == {i.name for i in INVARIANTS}
    named = {i.name for i in TRANSITION_INVARIANTS}
    assert {case.invariant for case in TRANSITION_CASES} == named


def test_names_are_unique() -> None:
    names = [i.name for i in INVARIANTS] + [i.name for i in TRANSITION_INVARIANTS]
    assert len(set(names)) == len(names)


@pytest.mark.parametrize("good", [story(), two_groups(), two_copies()])
def test_real_states_pass(good: State) -> None:
    check_snapshot(good.config, good.snapshot)
    for outcome in ("done", "refused", "error"):
        check_transition(
            good.config, Transition("allocate_slots", outcome, good.snapshot, good.snapshot)
        )


@pytest.mark.parametrize(
    ("where", "members"),
    [
        *(("", {"num_blocks": 7}), ("", {"ref_counts": (0,)}), ("", {"block_keys": ((),)})),
        *(("", {"block_ids": ()}), ("", {"num_cached_blocks": (1, 2)})),
        *((name, {name: (6,)}) for name in ("free_queue", "popped_blocks", "reserved_blocks")),
        *(
            ("reserved_blocks", {"reserved_blocks": (-1,)}),
            ("new_block_ids[0]", {"new_block_ids": ((6,),)}),
            ("lookup_order", {"lookup_order": {bytes(36): (6,)}}),
        ),
    ],
    ids=str,
)
def test_a_wrong_shape_is_found_first(where: str, members: dict[str, object]) -> None:
    is_of_request = not members.keys() <= vars(story().snapshot).keys()
    bad = story().with_request("a", **members) if is_of_request else story().with_(**members)
    with pytest.raises(InvariantViolation) as caught:
        check_snapshot(bad.config, bad.snapshot)
    assert caught.value.invariant == "has_the_right_shape"
    assert (f"a block id in {where} is outside 0 … 5: (" in caught.value.detail) is bool(where)


def test_every_block_may_leak_also_the_first_and_the_last() -> None:
    manager = new_manager(kvref.implementation(), 4)
    fresh = State(manager.config, manager.snapshot())
    for block in (1, 2, 3):
        queue = tuple(free for free in fresh.snapshot.free_queue if free != block)
        leaked = fresh.with_(free_queue=queue)
        with pytest.raises(InvariantViolation, match=f"block {block} has no reference") as caught:
            check_snapshot(leaked.config, leaked.snapshot)
        assert caught.value.invariant == "free_means_unreferenced"


@pytest.mark.parametrize("call", sorted(PURE_CALLS))
def test_every_question_is_a_pure_call(call: str) -> None:
    good = story()
    assert callable(getattr(kvref.implementation().create(good.config), call))
    changed = Transition(call, "done", good.snapshot, replace(good.snapshot, new_block_ids=((),)))
    with pytest.raises(InvariantViolation) as caught:
        check_transition(good.config, changed)
    assert caught.value.invariant == "pure_calls_change_nothing"


def without(state: State, name: str) -> State:
    requests = {other: r for other, r in state.snapshot.requests.items() if other != name}
    return state.with_(requests=requests)


SECOND_OF_TWO: dict[str, tuple[str, Callable[[State], State]]] = {
    "a_list_only_grows_or_turns_null": (
        "remove_skipped_blocks",
        lambda s: s.with_request("b", block_ids=((1, 2),)),
    ),
    "blocks_that_stay_keep_their_keys": ("allocate_slots", lambda s: s.with_key(2)),
}
"""Faults that only request b, which comes second, has."""


@pytest.mark.parametrize("name", SECOND_OF_TWO)
def test_a_request_that_is_gone_hides_none_behind_it(name: str) -> None:
    call, spoil = SECOND_OF_TWO[name]
    good = story()
    assert list(good.snapshot.requests) == ["a", "b"]
    after = spoil(without(good, "a"))
    (invariant,) = (i for i in TRANSITION_INVARIANTS if i.name == name)
    transition = Transition(call, "done", good.snapshot, after.snapshot)
    assert invariant.first_offence(good.config, transition)
