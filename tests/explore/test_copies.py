"""How a state serves many moves: by copies, and by a manager that is as it was."""

from __future__ import annotations

import itertools
import pickle
from dataclasses import replace
from typing import Any

import pytest

import kvref
from kvcheck.explore import trace
from kvcheck.explore.search import Pair
from kvcheck.explore.sides import copies
from kvspec.errors import KVSpecError
from kvspec.request import RequestInput
from kvspec.transitions import PURE_CALLS, Transition, check_transition
from tests.explore.exploring import configuration, explored
from tests.explore.managers import IsNoCopy, NeverPickled, RemembersErrors
from tests.stand_ins import WithManager

SMALL = replace(configuration("pool"), name="small", prompts=((0, 1),))


def test_a_copy_is_as_the_manager_was_and_goes_its_own_way() -> None:
    manager = kvref.implementation().create(SMALL.config, check_invariants=False)
    before = manager.snapshot()
    copy = copies(manager)
    assert copy is not None
    first, second = copy(), copy()
    assert first.config is manager.config
    request = kvref.implementation().make_request(first, RequestInput("r0", (0, 1)))
    assert first.allocate_slots(request, 1) is not None
    assert first.snapshot() != before
    assert second.snapshot() == manager.snapshot() == copy().snapshot() == before


def test_managers_that_pickle_cannot_copy_are_restored_and_the_graph_is_the_same() -> None:
    oracle = WithManager(NeverPickled)
    assert copies(oracle.create(SMALL.config, check_invariants=False)) is None
    assert explored(SMALL, oracle=oracle).graph.numbers == explored(SMALL).graph.numbers


def test_copies_that_share_their_state_end_the_exploration() -> None:
    with pytest.raises(KVSpecError, match="share their state"):
        explored(SMALL, oracle=WithManager(IsNoCopy))


def test_what_a_manager_hides_from_its_snapshot_shows_in_the_next_move() -> None:
    subject = WithManager(RemembersErrors)
    violation = explored(SMALL, subject).violation
    assert violation is not None
    assert violation.broken.rule == "KV-MGR-7"
    assert violation.broken.before
    assert "illegal" in {move[0] for move in violation.path[:-1]}
    told = list(trace.lines(violation, Pair(kvref.implementation(), subject)))
    assert "some of which changed nothing to be seen" in told[1]
    assert any("Error, as it must be" in line for line in told)


def test_no_invariant_of_transitions_is_broken_by_what_changes_nothing() -> None:
    config = kvref.implementation().create(SMALL.config).config
    calls = {*PURE_CALLS, "allocate_slots", "free", "evict_blocks", "reset_prefix_cache"}
    snapshots = [pickle.loads(packed).snapshot for packed in level_of(SMALL)]
    assert len(snapshots) > 20
    for snapshot in snapshots:
        for call, outcome in itertools.product(sorted(calls), ("done", "refused", "error")):
            check_transition(config, Transition(call, outcome, snapshot, snapshot))


def level_of(what: Any) -> list[bytes]:
    """Return the states left after some hundred edges."""
    return [item.packed for item in explored(what, max_edges=400).level]
