"""Every named invariant rejects a state, or a call, that no other rejects."""

from __future__ import annotations

import pytest

from kvspec.errors import InvariantViolation
from kvspec.invariants import INVARIANTS, check_snapshot
from kvspec.transitions import TRANSITION_INVARIANTS, Transition, check_transition
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
    """An id outside the pool with the name of its list."""
    is_of_request = not members.keys() <= vars(story().snapshot).keys()
    bad = story().with_request("a", **members) if is_of_request else story().with_(**members)
    with pytest.raises(InvariantViolation) as caught:
        check_snapshot(bad.config, bad.snapshot)
    assert caught.value.invariant == "has_the_right_shape"
    assert (f"a block id in {where} is outside 0 … 5: (" in caught.value.detail) is bool(where)
