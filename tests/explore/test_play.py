"""Moves: what each asks, and the world behind it."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest

import kvref
from kvcheck.explore.bounds import Admission, Call, Computation, Configuration, Step
from kvcheck.explore.configurations import manager_of
from kvcheck.explore.play import play
from kvcheck.explore.state import BATCHED_STEP, Move, State, World
from kvcheck.play.scheduler import LOADING, PREEMPTED, RUNNING, WAITING, Seat
from kvspec.snapshot import RequestState
from tests.cases import Case, cases, words
from tests.explore.exploring import configuration
from tests.judge.test_performing import arguments_of

EVERYTHING = Admission(
    external_tokens=1, lookahead_tokens=1, reserved_blocks=2, must_fit=True, others_scheduled=True,
    delayed=True,
)  # fmt: skip
WHAT = replace(
    configuration("pool"),
    config=manager_of("6; full of 2; max_model_len_tokens=6"),
    prompts=((0, 1, 0),),
    tokens=(0, 1),
    in_chunks=True,
    calls=frozenset(Call),
    admissions=(
        Admission(),
        EVERYTHING,
        Admission(look_up=False),
        Admission(own_hits=True),
        Admission(external_tokens=2, load_later=True),
    ),
    computations=(Computation(), Computation(2, 1, lookahead_tokens=1, delayed=True)),
)
SNAPSHOT = kvref.implementation().create(WHAT.config).snapshot()
TOKENS = (0, 1, 0)
AT_TWO = Seat(RUNNING, TOKENS, 3, 2)
AT_ALL = Seat(RUNNING, TOKENS, 3, 3)
AGAIN = Seat(PREEMPTED, TOKENS, 3)
LOADS = Seat(LOADING, TOKENS, 3, 2, 2)
CASES = cases(__file__, "moves.txt")


class Asked:
    """Returns results from a table, and lists the calls."""

    def __init__(self, answers: Mapping[str, Any]) -> None:
        self.answers = answers
        self.calls: list[str] = []

    def __call__(
        self,
        name: str,
        request_id: str | None = None,
        arguments: Mapping[str, Any] | None = None,
        *,
        illegal: str | None = None,
    ) -> Any:
        given = ", ".join(arguments_of(name, arguments or {}))
        words = (name, request_id or "-", given, f"!{illegal}" if illegal else "")
        self.calls.append(" ".join(word for word in words if word))
        return self.answers.get(name)


def played(what: Configuration, world: World, move: Move, answers: Any) -> tuple[Any, list[str]]:
    holds = RequestState(((1, 2),), (1,))
    snapshot = replace(SNAPSHOT, requests={"r0": holds, "r1": holds})
    do = Asked(answers)
    return play(what, State(snapshot, world), move, do), do.calls


@pytest.mark.parametrize("case", CASES, ids=str)
def test_a_move_asks_this_and_leaves_the_request_so(case: Case) -> None:
    (_, *seat), move = (words(line)[0] for line in case.given[:2])
    told = (line.partition(" ") for line in case.given[2:])
    answers = {name: json.loads(answer) for name, _, answer in told}
    other = Seat(WAITING, (1,), 1)
    world, calls = played(WHAT, World((Seat(*seat), other), ((5,),)), tuple(move), answers)
    after = "not possible" if world is None else str(tuple(world.seats[0]))
    case.expect([*calls, after])
    assert world is None or world == World((world.seats[0], other), ((5,),))


STEPPED = replace(WHAT, num_requests=6, steps=(Step(9), Step(7, 1, 2, True)))
LONGER = Seat(RUNNING, (*TOKENS, 1), 3, 4)


def test_a_whole_step_is_one_call_and_each_request_goes_on_as_it_was_answered() -> None:
    entries = (
        ("finished", 4, None, 0), ("preempted", 5, None, 0), ("running", 3, 1, 1),
        ("running", 0, None, 1), ("new", 2, TOKENS, 0), ("new", 1, None, 0),
    )  # fmt: skip
    world = World((AT_TWO, AGAIN, Seat(), AT_ALL, AT_TWO, AT_ALL), ((5,),))
    granted = {"num_scheduled_tokens": [1, 0, 1, 3], "hit_tokens": [2, 0]}
    after, calls = played(STEPPED, world, ("batch", 1, entries), {BATCHED_STEP: granted})
    assert calls == [
        "append_tokens r3 token_ids=[1]",
        "new_request r2 prompt_token_ids=[0, 1, 0]",
        "batched_step - finished=['r4'], preempted=['r5'], decoding=['r3', 'r0'],"
        " decode_tokens=[1, 1], new=['r2', 'r1'], token_budget=7, num_lookahead_tokens=1,"
        " reserved_blocks=2, stops_at_refusal=True",
    ]
    assert after == World((AT_TWO, AT_ALL, AT_ALL, LONGER, Seat(), AGAIN), ((5,),))


@pytest.mark.parametrize(
    ("kind", "plan"),
    [
        ("one request twice", "finished=['r2'], decoding=['r0', 'r2'], decode_tokens=[1, 1]"),
        ("too long", "decoding=['r0', 'r2'], decode_tokens=[1, 7]"),
    ],
)
def test_a_step_with_a_wrong_last_entry_is_asked_for_where_somebody_runs(
    kind: str, plan: str
) -> None:
    world = World((AT_TWO, AGAIN, AT_ALL, LOADS))
    after, calls = played(STEPPED, world, ("wrong_batch", kind), {})
    assert (after, calls) == (world, [f"batched_step - {plan}, token_budget=9 !KV-BATCH-2"])
    assert played(STEPPED, World((AGAIN, LOADS)), ("wrong_batch", kind), {}) == (None, [])
