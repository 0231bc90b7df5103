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
from tests.cases import Case, cases
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


@pytest.mark.parametrize("case", cases(__file__, "agreement.txt"), ids=str)
def test_where_two_answers_part_is_said(case: Case) -> None:
    """Of calls first where ids are a policy, so that their number and null count, then exactly.

    For reports both sides apart, and the place without what other programs have otherwise.
    """
    what, *values = case.given
    expected, *others = (eval(value, {"ONE": ONE, "replace": replace}) for value in values)
    if len(others) > 1:
        same, other = others
        require_same_outcome(what, Outcome(expected), Outcome(same), exact_ids=False)
        case.expect([part(what, expected, other, exact_ids=False), part(what, expected, same)])
        return
    wrong = WrongAnswer("name", "KV-POOL-6", what, expected, others[0])
    assert (wrong.invariant, wrong.rule) == ("name", "KV-POOL-6")
    assert wrong.detail == f"expected {wrong.expected}, got {wrong.observed}"
    case.expect([wrong.expected, wrong.observed, wrong.first_at or "-", wrong.place])
    assert first_difference(expected, expected) is None


def part(name: str, one: Any, other: Any, **how: bool) -> str:
    try:
        require_same_outcome(name, Outcome(one), Outcome(other), **how)
    except WrongAnswer as error:
        return str(error.detail)
    return "the same"
