"""Two answers, or two states, side by side: what differs is told with its rule and its name."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import pytest

import kvref
from kvcheck.explore.edges import require_agreement
from kvcheck.explore.sides import Seen
from kvcheck.play.agreement import RULE_OF_MEMBER, require_same_outcome, require_same_view
from kvcheck.play.difference import WrongAnswer, first_difference
from kvcheck.play.performing import perform_step
from kvcheck.play.player import Outcome
from kvcheck.play.runner import Runner
from kvcheck.play.state import View
from kvcheck.play.steps import Admit, Arrive, Program
from kvspec.errors import UnknownBlockError
from kvspec.snapshot import RequestState, Snapshot
from tests.programs import CFG, A


def view() -> View:
    """Of a manager with two requests that hold blocks, and a key that two blocks carry."""
    steps = (Arrive(A), Admit(), Arrive(A), Admit(look_up=False))
    runner = Runner(Program(CFG, steps), kvref.implementation())
    for step in steps:
        perform_step(runner, step)
    return runner.view


VIEW = view()
ONE = VIEW.snapshot.requests["r0"]


def with_request(state: RequestState) -> Callable[[Snapshot], Any]:
    return lambda snapshot: {**snapshot.requests, "r0": state}


OTHERWISE: Mapping[str, tuple[str, Callable[[Snapshot], Any], str, str]] = {
    "free_queue": ("free_queue", lambda s: (*s.free_queue, 9), "free_queue", "KV-POOL-6"),
    "ref_cnt": ("ref_counts", lambda s: (9, *s.ref_counts[1:]), "ref_cnt", "KV-POOL-16"),
    "block_hash": ("block_keys", lambda s: s.block_keys[::-1], "block_hash", "KV-POOL-13"),
    "req_blocks": (
        "requests", with_request(replace(ONE, block_ids=((7,),))), "req_blocks", "KV-GRP-1",
    ),
    "num_cached_block": (
        "requests", with_request(replace(ONE, num_cached_blocks=(1,))), "num_cached_block",
        "KV-GRP-11",
    ),
    "copies": (
        "lookup_order", lambda s: {key: blocks[::-1] for key, blocks in s.lookup_order.items()},
        "order of duplicates", "KV-POOL-13",
    ),
    "later keys": (
        "block_keys", lambda s: tuple((*keys, b"") if keys else () for keys in s.block_keys),
        "block_keys", RULE_OF_MEMBER["block_keys"],
    ),
    "a state": (
        "requests", lambda s: {**s.requests, "new": RequestState(((),), (None,))}, "requests",
        RULE_OF_MEMBER["requests"],
    ),
    **{
        member: (member, lambda s: "another", member, RULE_OF_MEMBER[member])
        for member in (
            *("covered_tokens", "popped_blocks", "new_block_ids", "step_keys", "reserved_blocks"),
            "pending_copies",
        )
    },
}  # fmt: skip
"""By what differs: the member of a snapshot, what stands there, its name in a report, its rule."""


def test_every_member_of_a_snapshot_is_among_them() -> None:
    assert set(RULE_OF_MEMBER) <= {member for member, *_ in OTHERWISE.values()}


@pytest.mark.parametrize("which", OTHERWISE)
def test_what_differs_between_two_states_is_named(which: str) -> None:
    member, other, name, rule = OTHERWISE[which]
    differs = replace(VIEW.snapshot, **{member: other(VIEW.snapshot)})
    require_same_view(VIEW, replace(VIEW), "after free")
    with pytest.raises(WrongAnswer) as in_program:
        require_same_view(VIEW, replace(VIEW, snapshot=differs), "after free")
    with pytest.raises(WrongAnswer) as in_exploration:
        require_agreement(seen(VIEW.snapshot), seen(differs))
    for caught in (in_program.value, in_exploration.value):
        assert caught.rule == rule
        assert caught.expected.startswith(f"{name} after free")


def seen(snapshot: Snapshot, result: Any = None, queued: tuple[Any, Any] = ((), ())) -> Seen:
    return Seen("free", Outcome(result), queued, snapshot)


@pytest.mark.parametrize(
    ("other", "what", "rule"),
    [
        (seen(VIEW.snapshot, 1), "free answers", "KV-MGR-12"),
        (seen(VIEW.snapshot, None, ((1,), ())), "queued by free", "KV-EVT-1"),
        (seen(VIEW.snapshot, None, ((), (1,))), "queued by free", "KV-MGR-16"),
        (
            seen(replace(VIEW.snapshot, none_hash=b"")),
            "the state after free.none_hash",
            "KV-MGR-12",
        ),
    ],
    ids=["answer", "events", "to be zeroed", "another member"],
)
def test_an_exploration_compares_answers_queues_and_whatever_else_a_state_has(
    other: Seen, what: str, rule: str
) -> None:
    require_agreement(seen(VIEW.snapshot), seen(VIEW.snapshot))
    with pytest.raises(WrongAnswer) as caught:
        require_agreement(seen(VIEW.snapshot), other)
    assert caught.value.rule == rule
    assert caught.value.expected.startswith(what)


ERROR = Outcome(error=UnknownBlockError(9, 8))


@pytest.mark.parametrize(
    ("expected", "got", "told", "place"),
    [
        (Outcome(1), ERROR, ("with an answer", "with a typed error: "), "UnknownBlockError"),
        (ERROR, Outcome(1), ("with a typed error: ", "with an answer"), "UnknownBlockError"),
        (Outcome(), Outcome(error=KeyError(1)), ("with an answer", "with KeyError: 1"), "KeyError"),
    ],
)
def test_how_a_call_ended_is_told_in_words(
    expected: Outcome, got: Outcome, told: tuple[str, str], place: str
) -> None:
    require_same_outcome("free", ERROR, Outcome(error=KeyError(1)))
    with pytest.raises(WrongAnswer) as caught:
        require_same_outcome("free", expected, got)
    assert caught.value.rule == "KV-MGR-12"
    assert caught.value.expected.startswith(f"free ends: '{told[0]}")
    assert caught.value.observed.startswith(f"'{told[1]}")
    assert caught.value.place == f"free ends with {place}"


@pytest.mark.parametrize(
    ("name", "one", "same", "other"),
    [
        ("get_computed_blocks", {"blocks": [[0, 3]]}, {"blocks": [[0, 4]]}, {"blocks": [[3, 0]]}),
        (
            "find_longest_cache_hit_per_group",
            {"blocks": [[1], []]},
            {"blocks": [[2], []]},
            {"blocks": [[], [1]]},
        ),
        ("allocate_slots", [[1, 0]], [[2, 0]], [[1]]),
        ("allocate_slots", None, None, [[]]),
        (
            "get_block_ids",
            {"blocks": [[1]], "unhashed": [[1]]},
            {"blocks": [[2]], "unhashed": [[2]]},
            {"blocks": [[1]], "unhashed": [[]]},
        ),
        ("pop_blocks_for_free", [1, 2], [3, 4], [1]),
        ("take_new_block_ids", [1, 2], [3, 4], [1]),
        ("get_num_blocks_to_allocate", 1, 1, 2),
    ],
)
def test_where_ids_are_a_policy_their_number_and_null_still_count(
    name: str, one: Any, same: Any, other: Any
) -> None:
    require_same_outcome(name, Outcome(one), Outcome(same), exact_ids=False)
    with pytest.raises(WrongAnswer, match=f"{name} answers"):
        require_same_outcome(name, Outcome(one), Outcome(other), exact_ids=False)
    if one != same:
        with pytest.raises(WrongAnswer, match=f"{name} answers"):
            require_same_outcome(name, Outcome(one), Outcome(same))


HASH = "ab" * 32


@pytest.mark.parametrize(
    ("what", "expected", "observed", "told", "first_at", "place"),
    [
        ("free queue", [1, 2], [2, 1], ("free queue: [1, 2]", "[2, 1]"),
         "[0]: expected 1, got 2", "free queue"),
        ("state", {"r0": [[1, 2], [3]]}, {"r0": [[1, 2], [4]]}, ("state.r0[1]: [3]", "[4]"),
         ".r0[1][0]: expected 3, got 4", "state"),
        ("event 3", {"block_hashes": [HASH, HASH]}, {"block_hashes": [HASH, f"{HASH[1:]}c"]},
         ("event 3.block_hashes: [abababab…, abababab…]", "[abababab…, babababa…]"),
         ".block_hashes[1]: expected abababab…, got babababa…", "event .block_hashes"),
        ("hash", HASH, f"{HASH[:60]}cdef", ("hash: …abababababab", "…ababababcdef"), "", "hash"),
        ("hash", bytes(40), bytes(39) + b"x", ("hash: …0000000000", "…0000000078"), "", "hash"),
        ("one(3) answers", 1, True, ("one(3) answers: 1", "True"), "", "one"),
        ("n", 1, 1.0, ("n: 1", "1.0"), "", "n"),
        ("list", [1, 2], [1], ("list: [1, 2]", "[1]"), "[1]: expected 2, got (absent)", "list"),
        ("list", [[1]], [[1], [2]], ("list: [[1]]", "[[1], [2]]"),
         "[1]: expected (absent), got [2]", "list"),
        ("made", {"a": 1}, {"a": 1, "b": 2}, ("made: {'a': 1}", "{'a': 1, 'b': 2}"),
         ".b: expected (absent), got 2", "made .b"),
        ("made", {"a": 1}, {}, ("made: {'a': 1}", "{}"), ".a: expected 1, got (absent)", "made .a"),
        ("r", ONE, replace(ONE, num_cached_blocks=(9,)), ("r.num_cached_blocks: [2]", "[9]"),
         ".num_cached_blocks[0]: expected 2, got 9", "r .num_cached_blocks"),
        ("deep", {"x": [{"b": [1, 2]}, {"c": 3}]}, {"x": [{"b": [1, 3]}, {"c": 3}]},
         ("deep.x[0].b: [1, 2]", "[1, 3]"), ".x[0].b[1]: expected 2, got 3", "deep .x"),
        ("two", {"x": [[1], [2]], "y": 1}, {"x": [[1], [3]], "y": 2},
         ("two: {'x': [[1], [2]], 'y': 1}", "{'x': [[1], [3]], 'y': 2}"),
         ".x[1][0]: expected 2, got 3", "two .x"),
    ],
)  # fmt: skip
def test_a_wrong_answer_says_where_both_sides_part(
    what: str, expected: Any, observed: Any, told: tuple[str, str], first_at: str, place: str
) -> None:
    """For reports both sides apart, and the place without what other programs have otherwise."""
    wrong = WrongAnswer("name", "KV-POOL-6", what, expected, observed)
    assert (wrong.invariant, wrong.rule) == ("name", "KV-POOL-6")
    assert (wrong.expected, wrong.observed) == told
    assert wrong.detail == f"expected {told[0]}, got {told[1]}"
    assert wrong.first_at == first_at
    assert wrong.place == place
    assert first_difference(expected, expected) is None
