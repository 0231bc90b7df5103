"""Moves: which a request has, and what each asks and leaves."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from itertools import product
from typing import Any

import pytest

import kvref
from kvcheck.explore.bounds import Admission, Call, Computation, Configuration, Step
from kvcheck.explore.configurations import manager_of
from kvcheck.explore.edges import moves
from kvcheck.explore.play import ILLEGAL, play
from kvcheck.explore.state import Move, State, World
from kvcheck.play.scheduler import LOADING, PREEMPTED, RUNNING, WAITING, Seat
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


STEPPED = replace(WHAT, num_requests=6, steps=(Step(9), Step(7, 1, 2, True)))


@pytest.mark.parametrize("case", cases(__file__, "moves.txt"), ids=str)
def test_a_move_asks_this_and_leaves_the_requests_so(case: Case) -> None:
    """Add a request that waits to one that is alone; those of several take part in whole steps."""
    seats = [seat_of(line)[0] for line in case.given if line.startswith("seat")]
    move, *told = case.given[len(seats) :]
    named = (line.partition(" ") for line in told)
    answers = {name: json.loads(answer) for name, _, answer in named}
    others = () if seats[1:] else (Seat(WAITING, (1,), 1),)
    before = World((*seats, *others), ((5,),))
    world, calls = played(STEPPED if seats[1:] else WHAT, before, tuple(words(move)[0]), answers)
    if world is None:
        case.expect([*calls, "not possible"])
        return
    after = world.seats[: len(seats)]
    case.expect([*calls, *(str(tuple(seat)) for seat in after)])
    assert world == World((*after, *others), ((5,),))


OUT_OF_IT = replace(
    SNAPSHOT,
    free_queue=(3, 2, 4, 5),
    block_keys=((), (b"k",), (), (b"l",), (), ()),
    popped_blocks=(2, 1, 2),
)
NEVER_OF_A_REQUEST = {"illegal", "evict", "reset", "step", "ask"}


@pytest.mark.parametrize("case", cases(__file__, "choices.txt"), ids=str)
def test_a_request_has_these_moves_and_these_illegal_calls(case: Case) -> None:
    """List moves of one that is alone, and illegal calls of the first and second of two alike."""
    seat, asked = seat_of(case.given[0])
    alone = moves(replace(WHAT, num_requests=1), State(SNAPSHOT, World((seat,))))
    said = [" ".join(map(str, move)) for move in alone if move[0] not in NEVER_OF_A_REQUEST]
    cache = replace(WHAT.config.kv_cache, groups=WHAT.config.kv_cache.groups * asked["groups"])
    state = State(replace(OUT_OF_IT, free_queue=asked["free"]), World((seat, seat)))
    for number, (name, call) in product((0, 1), ILLEGAL.items()):
        arguments = call.arguments(replace(WHAT.config, kv_cache=cache), state, number)
        said += [] if arguments is None else [f"illegal for r{number}: {name}, {arguments}"]
    case.expect(said)


def seat_of(line: str) -> tuple[Seat, Mapping[str, Any]]:
    """Read `seat running [0 1 0] 3 2`, and what is named behind it."""
    (_, *members), named = words(line)
    return Seat(*members), named
