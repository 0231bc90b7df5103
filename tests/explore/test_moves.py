"""Moves: which a request has, and what each asks and leaves."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest

import kvref
from kvcheck.explore.bounds import Admission, Call, Computation, Configuration, Step
from kvcheck.explore.configurations import manager_of
from kvcheck.explore.edges import moves
from kvcheck.explore.play import ILLEGAL, play
from kvcheck.explore.state import BATCHED_STEP, Move, State, World
from kvcheck.play.scheduler import EMPTY, LOADING, PREEMPTED, RUNNING, WAITING, Seat
from kvspec.config import ManagerConfig
from kvspec.snapshot import RequestState
from tests.cases import Case, cases, words
from tests.explore.managers import configuration
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


GROUPS = WHAT.config.kv_cache.groups
NEVER_OF_A_REQUEST = {"illegal", "evict", "reset", "step", "ask"}


@pytest.mark.parametrize(
    ("seat", "expected"),
    [
        (Seat(), {("admit", 0, TOKENS, option, left) for option in range(4) for left in range(3)}
         | {("admit", 0, TOKENS, 4, 0)}),
        (AGAIN, {("admit", 0, None, option, left) for option in range(4) for left in range(3)}
         | {("admit", 0, None, 4, 0), ("give_up", 0)}),
        (LOADS, {("finish_load", 0), ("free", 0), ("preempt", 0), ("pop", 0)}),
        (AT_ALL._replace(num_computed=1), {
            ("compute", 0, None, 0, 0), ("compute", 0, None, 0, 1), ("compute", 0, None, 1, 0),
            ("free", 0), ("preempt", 0), ("pop", 0), ("skip", 0), ("cache", 0),
            ("partial", 0, 0, 1),
        }),
        (AT_ALL, {
            *(("compute", 0, token, option, 0) for token in (0, 1) for option in (0, 1)),
            ("free", 0), ("preempt", 0), ("pop", 0), ("skip", 0), ("cache", 0),
            *(("partial", 0, 0, tokens) for tokens in range(1, 4)),
        }),
        (Seat(RUNNING, (0,) * 6, 3, 6), {
            ("free", 0), ("preempt", 0), ("pop", 0), ("skip", 0), ("cache", 0),
            *(("partial", 0, 0, tokens) for tokens in range(1, 7)),
        }),
    ],
    ids=[EMPTY, PREEMPTED, LOADING, RUNNING, "all computed", "as long as it may be"],
)  # fmt: skip
def test_a_request_has_these_moves(seat: Seat, expected: set[Move]) -> None:
    one = replace(WHAT, num_requests=1)
    every = moves(one, State(SNAPSHOT, World((seat,))))
    found = [move for move in every if move[0] not in NEVER_OF_A_REQUEST]
    assert set(found) == expected
    assert len(found) == len(expected)


OUT_OF_IT = replace(
    SNAPSHOT,
    free_queue=(3, 2, 4, 5),
    block_keys=((), (b"k",), (), (b"l",), (), ()),
    popped_blocks=(2, 1, 2),
)
TWO_GROUPS = replace(WHAT.config, kv_cache=replace(WHAT.config.kv_cache, groups=GROUPS * 2))
HIT = {"num_new_computed_tokens": 2, "new_computed_blocks": [[2]]}
ALWAYS = {
    "free what was not popped": {"block_ids": [2, 1, 3]},
    "evict outside": {"block_ids": [1, 6]},
}
RUNS = {
    "no tokens": AT_TWO.asks(0),
    "computed without slots": AT_TWO._replace(num_computed=6 + 6 * 2).asks(1),
    "cache too much": {"num_computed_tokens": 4},
}
OWN_HIT = AT_TWO.asks(1, num_new_computed_tokens=2, new_computed_blocks=[[1]])


@pytest.mark.parametrize(
    ("config", "seat", "expected"),
    [
        (WHAT.config, AT_TWO, {**RUNS, "hit while running": OWN_HIT}),
        (TWO_GROUPS, AT_TWO, RUNS),
        (WHAT.config, LOADS, {"cache too much": {"num_computed_tokens": 4}}),
        (WHAT.config, AGAIN, {"stale hit": AGAIN.asks(1, **HIT)}),
        (WHAT.config, AGAIN._replace(tokens=TOKENS[:2]), {}),
        (WHAT.config, Seat(), {}),
        (TWO_GROUPS, AGAIN, {}),
    ],
)
def test_what_is_illegal_is_asked_with_these_arguments(
    config: ManagerConfig, seat: Seat, expected: dict[str, object]
) -> None:
    def found(state: State, number: int) -> dict[str, object]:
        asked = {name: call.arguments(config, state, number) for name, call in ILLEGAL.items()}
        return {name: arguments for name, arguments in asked.items() if arguments is not None}

    state = State(OUT_OF_IT, World((seat, seat)))
    assert found(state, 0) == {**expected, **ALWAYS}
    assert found(state, 1) == expected
    full = State(replace(OUT_OF_IT, free_queue=(3,)), World((seat, seat)))
    assert "stale hit" not in found(full, 0)
