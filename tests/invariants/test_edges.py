"""At its bounds an invariant is neither too strict nor silent, and it names what it found."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

import kvref
from kvcheck.rules.specs import full, mamba
from kvspec.errors import InvariantViolation
from kvspec.invariants import check_snapshot
from kvspec.transitions import PURE_CALLS, TRANSITION_INVARIANTS, Transition, check_transition
from tests.contract.builders import new_manager, new_request
from tests.invariants.cases import State, story

GOOD: dict[str, Callable[[State], State]] = {
    "no zeroing queue": lambda s: s.with_(new_block_ids=()),
    "null in a list that is no list of a request": lambda s: s.with_(new_block_ids=((0, 1),)),
    "the last block id": lambda s: s.with_(new_block_ids=((5,),)),
    "no step keys": lambda s: s.with_(step_keys=()),
    "no state of Mamba": lambda s: s.with_request("a", mamba=()),
    "nothing handed to the cache": lambda s: s.with_request("a", num_cached_blocks=(0,)),
    "the whole list handed to the cache": lambda s: s.with_request("a", num_cached_blocks=(3,)),
    "not counted": lambda s: s.with_request("a", num_cached_blocks=(None,)),
}


@pytest.mark.parametrize("change", GOOD.values(), ids=GOOD.keys())
def test_a_state_at_a_bound_is_a_good_one(change: Callable[[State], State]) -> None:
    good = change(story())
    check_snapshot(good.config, good.snapshot)


def test_every_block_may_leak_also_the_first_and_the_last() -> None:
    manager = new_manager(kvref.implementation(), 4)
    fresh = State(manager.config, manager.snapshot())
    for block in (1, 2, 3):
        queue = tuple(free for free in fresh.snapshot.free_queue if free != block)
        leaked = fresh.with_(free_queue=queue)
        with pytest.raises(InvariantViolation, match=f"block {block} has no reference") as caught:
            check_snapshot(leaked.config, leaked.snapshot)
        assert caught.value.invariant == "free_means_unreferenced"


def test_a_block_twice_in_a_list_is_said_to_be_that() -> None:
    bad = story().with_request("b", block_ids=((1, 2, 4, 4),)).with_(ref_counts=(0, 2, 2, 1, 2, 0))
    with pytest.raises(InvariantViolation, match="request 'b' lists block 4 twice"):
        check_snapshot(bad.config, bad.snapshot)


@pytest.mark.parametrize("call", sorted(PURE_CALLS))
def test_every_question_is_a_pure_call(call: str) -> None:
    good = story()
    assert callable(getattr(kvref.implementation().create(good.config), call))
    changed = Transition(call, "done", good.snapshot, replace(good.snapshot, new_block_ids=((),)))
    with pytest.raises(InvariantViolation) as caught:
        check_transition(good.config, changed)
    assert caught.value.invariant == "pure_calls_change_nothing"


def test_what_is_left_out_keeps_none_behind_it_from_being_asked() -> None:
    good = story()
    changed = replace(good.snapshot, new_block_ids=((),))
    late_error = Transition("get_blocks", "error", good.snapshot, changed)
    found = []
    for left_out in (frozenset[str](), frozenset({"errors_change_nothing"})):
        with pytest.raises(InvariantViolation) as caught:
            check_transition(good.config, late_error, left_out=left_out)
        found.append((caught.value.invariant, caught.value.rule))
    assert found == [
        ("errors_change_nothing", "KV-ERR-2"),
        ("pure_calls_change_nothing", "KV-MGR-2"),
    ]


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


def test_a_group_of_states_hides_none_behind_it() -> None:
    implementation = kvref.implementation()
    manager = new_manager(implementation, 9, specs=[mamba(4), full(4)])
    manager.allocate_slots(new_request(implementation, manager, "a", range(8)), 8)
    good = State(manager.config, manager.snapshot())
    states, lists = good.snapshot.requests["a"].block_ids
    shrunk = good.with_request("a", block_ids=(states, lists[:-1]))
    transition = Transition("free", "done", good.snapshot, shrunk.snapshot)
    (invariant,) = (i for i in TRANSITION_INVARIANTS if i.name == "a_list_only_grows_or_turns_null")
    assert invariant.first_offence(good.config, transition)
