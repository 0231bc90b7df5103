"""Forms of states against renamings by enumeration, and copies of managers."""

from __future__ import annotations

import itertools
import pickle
from dataclasses import fields, replace
from typing import Any

import pytest

import kvref
from kvcheck.explore import trace
from kvcheck.explore.bounds import Call
from kvcheck.explore.edges import Edges
from kvcheck.explore.renaming import renamed_fingerprint
from kvcheck.explore.search import Pair
from kvcheck.explore.sides import copies
from kvcheck.explore.state import State, World, manager_bytes
from kvspec.errors import KVSpecError
from kvspec.request import RequestInput
from kvspec.snapshot import MambaState, RequestState, Snapshot
from kvspec.transitions import PURE_CALLS, Transition, check_transition
from tests.explore.managers import IsNoCopy, NeverPickled, RemembersErrors, configuration, explored
from tests.stand_ins import WithManager

SMALL = replace(configuration("pool"), prompts=((0, 1),), calls=frozenset({Call.POP, Call.EVICT}))
"""Both requests, popped blocks, duplicates and unhashed blocks, in 804 states."""


@pytest.fixture(scope="module")
def whole() -> tuple[list[State], int]:
    """All states with names kept apart, and the number of edges, searched plainly."""
    edges = Edges(replace(SMALL, up_to_names=False), kvref.implementation())
    found = {edges.name_of(edges.first()): edges.first()}
    waiting = list(found.values())
    num_edges = 0
    while waiting:
        at = edges.of(waiting.pop(), ())
        num_edges += at.edges.total()
        for _, name, packed in at.ends:
            if packed is not None and name not in found:
                found[name] = pickle.loads(packed)
                waiting.append(found[name])
    return list(found.values()), num_edges


def renamed(state: State, blocks: dict[int, int], order: tuple[int, ...]) -> State:
    """Rename each member of the state by hand: request n becomes order[n]."""
    old = state.snapshot
    back = {new: before for before, new in blocks.items()}
    ids = range(old.num_blocks)

    def moved(listed: tuple[int, ...]) -> tuple[int, ...]:
        return tuple(blocks[block] for block in listed)

    def of(request: RequestState) -> RequestState:
        return replace(request, block_ids=tuple(map(moved, request.block_ids)))

    new = Snapshot(
        num_blocks=old.num_blocks,
        free_queue=moved(old.free_queue),
        ref_counts=tuple(old.ref_counts[back[block]] for block in ids),
        block_keys=tuple(old.block_keys[back[block]] for block in ids),
        lookup_order={key: moved(listed) for key, listed in old.lookup_order.items()},
        covered_tokens=tuple(old.covered_tokens[back[block]] for block in ids),
        none_hash=old.none_hash,
        requests={
            f"r{order[n]}": of(old.requests[f"r{n}"])
            for n in range(len(order))
            if f"r{n}" in old.requests
        },
        popped_blocks=tuple(sorted(moved(old.popped_blocks))),
        new_block_ids=old.new_block_ids,
        step_keys=old.step_keys,
    )
    seats = sorted(zip(order, state.world.seats, strict=True))
    world = World(tuple(seat for _, seat in seats), tuple(map(moved, state.world.popped)))
    return State(new, world)


def renamings(state: State) -> list[State]:
    blocks = range(1, state.snapshot.num_blocks)
    orders = list(itertools.permutations(range(len(state.world.seats))))
    return [
        renamed(state, {0: 0, **dict(zip(blocks, other, strict=True))}, order)
        for other in itertools.permutations(blocks)
        for order in orders
    ]


def test_states_have_one_form_exactly_when_a_renaming_makes_one_of_the_other(
    whole: tuple[list[State], int],
) -> None:
    states, _ = whole
    edges = Edges(replace(SMALL, up_to_names=False), kvref.implementation())
    orbit_of: dict[bytes, int] = {}
    for number, state in enumerate(states):
        if edges.name_of(state) not in orbit_of:
            for other in renamings(state):
                orbit_of[edges.name_of(other)] = number
    form_of = {
        edges.name_of(state): renamed_fingerprint(state, SMALL.names(), prompt_matters=False)
        for state in states
    }
    pairs = {(orbit_of[name], form) for name, form in form_of.items()}
    assert len(states) > 4 * len(pairs)
    assert len(pairs) == len({orbit for orbit, _ in pairs}) == len({form for _, form in pairs})


def test_the_reduced_graph_has_one_state_for_each_orbit_and_the_edges_of_one_of_its_states(
    whole: tuple[list[State], int],
) -> None:
    states, num_edges = whole
    forms = {
        renamed_fingerprint(state, SMALL.names(), prompt_matters=False): state for state in states
    }
    reduced = explored(SMALL)
    assert set(reduced.graph.numbers) == set(forms)
    edges = Edges(SMALL, kvref.implementation())
    of_others = sum(edges.of(state, ()).edges.total() for state in forms.values())
    assert reduced.counts.edges == of_others
    sizes = (
        len({Edges.name_of(edges, other) for other in renamings(state)})
        for state in itertools.islice(forms.values(), 20)
    )
    assert set(sizes) == {1}
    assert num_edges > 4 * of_others


def test_a_form_that_forgot_a_fact_would_be_noticed(whole: tuple[list[State], int]) -> None:
    states, _ = whole
    names = SMALL.names()
    changed = 0
    for state in states[::5]:
        queue = state.snapshot.free_queue
        if len({state.snapshot.block_keys[block] for block in queue}) < 2:
            continue
        other = state._replace(snapshot=replace(state.snapshot, free_queue=queue[::-1]))
        ours, theirs = (
            renamed_fingerprint(each, names, prompt_matters=False) for each in (state, other)
        )
        palindrome = any(again == other for again in renamings(state))
        assert (ours == theirs) == palindrome
        changed += ours != theirs
    assert changed > 10


HELD = RequestState(((1,),), (0,), (MambaState(False),))
STATE = Snapshot(
    3, (1, 2), (0, 0, 0), ((), (b"k",), ()), {b"k": (1,)}, (0, 2, 0), b"", {"r0": HELD}
)
OTHERWISE: dict[str, tuple[Any, ...]] = {
    "num_blocks": (4,),
    "free_queue": ((2, 1),),
    "ref_counts": ((0, 1, 0),),
    "block_keys": (((), (b"k", b"l"), ()), ((), (), (b"k",))),
    "lookup_order": ({}, {b"k": (1, 2)}),
    "covered_tokens": ((0, 1, 0),),
    "none_hash": (b"n",),
    "requests": (
        {},
        {"r1": HELD},
        {"r0": replace(HELD, block_ids=((2,),))},
        {"r0": replace(HELD, num_cached_blocks=(None,))},
        {"r0": replace(HELD, mamba=(MambaState(True),))},
        {"r0": replace(HELD, mamba=(None,))},
    ),
    "popped_blocks": ((1,),),
    "new_block_ids": (((1,),),),
    "step_keys": ((frozenset({b"k"}),),),
    "reserved_blocks": ((1,),),
    "pending_copies": ((((1, 2),),),),
    "written_from": ({1: 2},),
    "ranks": ((0, 1, 0),),
}


def test_everything_that_a_snapshot_says_is_in_a_fingerprint() -> None:
    assert set(OTHERWISE) == {member.name for member in fields(Snapshot)}
    states = [STATE]
    states += (replace(STATE, **{name: value}) for name, of in OTHERWISE.items() for value in of)
    assert len(set(map(manager_bytes, states))) == len(states)
    assert manager_bytes(STATE) == manager_bytes(replace(STATE, lookup_order={b"k": (1,)}))


SMALL_OF_COPIES = replace(configuration("pool"), name="small", prompts=((0, 1),))


def test_a_copy_is_as_the_manager_was_and_goes_its_own_way() -> None:
    manager = kvref.implementation().create(SMALL_OF_COPIES.config, check_invariants=False)
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
    assert copies(oracle.create(SMALL_OF_COPIES.config, check_invariants=False)) is None
    assert (
        explored(SMALL_OF_COPIES, oracle=oracle).graph.numbers
        == explored(SMALL_OF_COPIES).graph.numbers
    )


def test_copies_that_share_their_state_end_the_exploration() -> None:
    with pytest.raises(KVSpecError, match="share their state"):
        explored(SMALL_OF_COPIES, oracle=WithManager(IsNoCopy))


def test_what_a_manager_hides_from_its_snapshot_shows_in_the_next_move() -> None:
    subject = WithManager(RemembersErrors)
    violation = explored(SMALL_OF_COPIES, subject).violation
    assert violation is not None
    assert violation.broken.rule == "KV-MGR-7"
    assert violation.broken.before
    assert "illegal" in {move[0] for move in violation.path[:-1]}
    told = list(trace.lines(violation, Pair(kvref.implementation(), subject)))
    assert "some of which changed nothing to be seen" in told[1]
    assert any("Error, as it must be" in line for line in told)


def test_no_invariant_of_transitions_is_broken_by_what_changes_nothing() -> None:
    config = kvref.implementation().create(SMALL_OF_COPIES.config).config
    calls = {*PURE_CALLS, "allocate_slots", "free", "evict_blocks", "reset_prefix_cache"}
    snapshots = [pickle.loads(packed).snapshot for packed in level_of(SMALL_OF_COPIES)]
    assert len(snapshots) > 20
    for snapshot in snapshots:
        for call, outcome in itertools.product(sorted(calls), ("done", "refused", "error")):
            check_transition(config, Transition(call, outcome, snapshot, snapshot))


def level_of(what: Any) -> list[bytes]:
    """Return the states left after some hundred edges."""
    return [item.packed for item in explored(what, max_edges=400).level]
