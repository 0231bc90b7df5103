"""Every named invariant rejects a state, or a call, that no other rejects."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

import kvref
from kvcheck.rules.specs import full
from kvref.manager import ReferenceManager
from kvspec.audit import audited
from kvspec.config import CustomSpec, SpecRegistry
from kvspec.errors import InvalidArgumentError, InvariantViolation
from kvspec.interface import KVCacheManager
from kvspec.invariants import INVARIANTS, check_snapshot
from kvspec.snapshot import Snapshot
from kvspec.specs import LayerSpec
from kvspec.transitions import PURE_CALLS, TRANSITION_INVARIANTS, Transition, check_transition
from tests.cases import Case, cases
from tests.contract.builders import admit, make_config, new_manager, new_request
from tests.invariants.cases import State, spoilt, state

CASES = cases(__file__, "spoilt.txt")
OF_STATES = [case for case in CASES if " " not in case.given[0]]
OF_TRANSITIONS = [case for case in CASES if case not in OF_STATES]


@pytest.mark.parametrize("case", OF_STATES, ids=str)
def test_only_one_invariant_rejects_the_state(case: Case) -> None:
    bad = spoilt(state(case.given[0]), case.given[1])
    offences = {i: i.first_offence(bad.config, bad.snapshot) for i in INVARIANTS}
    ((invariant, detail),) = [(i, offence) for i, offence in offences.items() if offence]
    assert invariant.name == case.name.partition(":")[0]
    with pytest.raises(InvariantViolation) as caught:
        check_snapshot(bad.config, bad.snapshot)
    assert (caught.value.invariant, caught.value.rule) == (invariant.name, invariant.rule)
    assert (caught.value.detail, caught.value.state) == (detail, bad.snapshot.describe())


@pytest.mark.parametrize("case", OF_TRANSITIONS, ids=str)
def test_only_one_invariant_rejects_the_transition(case: Case) -> None:
    name, call, outcome = case.given[0].split()
    good = state(name)
    after = spoilt(good, case.given[1]).snapshot
    transition = Transition(call, outcome, good.snapshot, after)
    offences = {i.name: i.first_offence(good.config, transition) for i in TRANSITION_INVARIANTS}
    name = case.name.partition(":")[0]
    assert [each for each, offence in offences.items() if offence] == [name]
    with pytest.raises(InvariantViolation) as caught:
        check_transition(good.config, transition)
    assert caught.value.invariant == name
    assert caught.value.detail.startswith(f"{call}: ")
    assert "-- before --" in caught.value.state


def test_every_invariant_has_a_case() -> None:
    named = {i.name for i in INVARIANTS} | {i.name for i in TRANSITION_INVARIANTS}
    assert {case.name.partition(":")[0] for case in CASES} == named


def test_names_are_unique() -> None:
    names = [i.name for i in INVARIANTS] + [i.name for i in TRANSITION_INVARIANTS]
    assert len(set(names)) == len(names)


@pytest.mark.parametrize("good", [state(name) for name in ("story", "two_groups", "two_copies")])
def test_real_states_pass(good: State) -> None:
    check_snapshot(good.config, good.snapshot)
    for outcome in ("done", "refused", "error"):
        check_transition(
            good.config, Transition("allocate_slots", outcome, good.snapshot, good.snapshot)
        )


@pytest.mark.parametrize("case", cases(__file__, "shapes.txt"), ids=str)
def test_a_wrong_shape_is_found_first(case: Case) -> None:
    bad = spoilt(state("story"), case.name)
    with pytest.raises(InvariantViolation) as caught:
        check_snapshot(bad.config, bad.snapshot)
    assert caught.value.invariant == "has_the_right_shape"
    case.expect(caught.value.detail.splitlines())


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
    good = state("story")
    assert callable(getattr(kvref.implementation().create(good.config), call))
    changed = Transition(call, "done", good.snapshot, replace(good.snapshot, new_block_ids=((),)))
    with pytest.raises(InvariantViolation) as caught:
        check_transition(good.config, changed)
    assert caught.value.invariant == "pure_calls_change_nothing"


def without(good: State, name: str) -> State:
    requests = {other: r for other, r in good.snapshot.requests.items() if other != name}
    return good.with_(requests=requests)


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
    good = state("story")
    assert list(good.snapshot.requests) == ["a", "b"]
    after = spoil(without(good, "a"))
    (invariant,) = (i for i in TRANSITION_INVARIANTS if i.name == name)
    transition = Transition(call, "done", good.snapshot, after.snapshot)
    assert invariant.first_offence(good.config, transition)


class Sloppy(ReferenceManager):
    """A manager with two bugs: a query that changes state, and an error raised too late."""

    def get_unhashed_block_ids(self, request: object) -> tuple[tuple[int, ...], ...]:
        self.take_new_block_ids()
        return ()

    def free_blocks(self, block_ids: object) -> None:
        self.take_new_block_ids()
        raise InvalidArgumentError("block_ids", block_ids, "better ones")


@pytest.fixture
def sloppy() -> tuple[Sloppy, KVCacheManager]:
    bare = Sloppy(make_config())
    manager = audited(bare)
    admit(manager, new_request(kvref.implementation(), bare, "r", range(4)))
    return bare, manager


def test_answers_and_properties_pass_through(sloppy: tuple[Sloppy, KVCacheManager]) -> None:
    bare, manager = sloppy
    assert manager.num_free_blocks == bare.num_free_blocks == 4
    assert manager.usage == bare.usage
    assert manager.config is bare.config
    assert manager.snapshot() == bare.snapshot()
    assert manager.take_new_block_ids() == (1,)


def test_a_broken_state_is_found_at_the_next_call(sloppy: tuple[Sloppy, KVCacheManager]) -> None:
    bare, manager = sloppy
    bare.pool.ref_counts[1] += 1
    for _ in range(2):
        with pytest.raises(InvariantViolation) as caught:
            manager.new_step_starts()
        assert caught.value.invariant == "references_are_accounted_for"
    with pytest.raises(InvariantViolation):
        audited(bare)


class ShowsItsOwn(ReferenceManager):
    """A snapshot that shares a list with the manager instead of copying it."""

    def snapshot(self) -> Snapshot:
        own: Any = self.pool.ref_counts
        return replace(super().snapshot(), ref_counts=own)


def test_a_broken_state_is_found_where_it_shows_in_earlier_snapshots_too() -> None:
    bare = ShowsItsOwn(make_config())
    manager = audited(bare)
    bare.pool.ref_counts[1] += 1
    with pytest.raises(InvariantViolation) as caught:
        manager.new_step_starts()
    assert caught.value.invariant == "free_means_unreferenced"


def test_a_question_that_changes_state_is_found(sloppy: tuple[Sloppy, KVCacheManager]) -> None:
    bare, manager = sloppy
    with pytest.raises(InvariantViolation) as caught:
        manager.get_unhashed_block_ids(new_request(kvref.implementation(), bare, "r", [1]))
    assert caught.value.invariant == "pure_calls_change_nothing"


def test_a_late_error_is_found(sloppy: tuple[Sloppy, KVCacheManager]) -> None:
    _, manager = sloppy
    with pytest.raises(InvariantViolation) as caught:
        manager.free_blocks([1])
    assert caught.value.invariant == "errors_change_nothing"
    assert isinstance(caught.value.__context__, InvalidArgumentError)


def test_a_refusal_is_no_violation(sloppy: tuple[Sloppy, KVCacheManager]) -> None:
    bare, manager = sloppy
    large = new_request(kvref.implementation(), bare, "large", range(50, 99))
    assert manager.allocate_slots(large, 49) is None
    assert manager.reset_prefix_cache() is False


def test_an_audit_asks_for_custom_specs_once() -> None:
    asked: list[LayerSpec] = []

    def managed(spec: LayerSpec) -> LayerSpec:
        asked.append(spec)
        return full(spec.block_size)

    registry = SpecRegistry((CustomSpec(LayerSpec, managed),))
    bare = ReferenceManager(make_config(specs=[LayerSpec(4)], registry=registry))
    manager = audited(bare)
    when_made = len(asked)
    admit(manager, new_request(kvref.implementation(), bare, "r", range(4)))
    for _ in range(3):
        manager.new_step_starts()
    assert len(asked) <= when_made + 1
