"""Which moves there are in a state."""

from __future__ import annotations

from dataclasses import replace

import pytest

from kvcheck.explore.bounds import Configuration
from kvcheck.explore.illegal import ILLEGAL
from kvcheck.explore.moves import moves
from kvcheck.explore.state import Move, State, World
from kvcheck.play.scheduler import EMPTY, LOADING, PREEMPTED, RUNNING, Seat
from kvspec.snapshot import Snapshot
from tests.explore.test_play import AGAIN, AT_ALL, AT_TWO, LOADS, SNAPSHOT, TOKENS, WHAT

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
    """Each once."""
    one = replace(WHAT, num_requests=1)
    every = moves(one, State(SNAPSHOT, World((seat,))))
    found = [move for move in every if move[0] not in NEVER_OF_A_REQUEST]
    assert set(found) == expected
    assert len(found) == len(expected)


def test_a_request_is_asked_about_while_it_holds_blocks_and_illegally_always() -> None:
    world = World((AT_TWO, Seat(), AGAIN, LOADS))
    found = list(moves(replace(WHAT, num_requests=4), State(SNAPSHOT, world)))
    assert [move[1] for move in found if move[0] == "ask"] == [0, 3]
    kinds = [move[1:] for move in found if move[0] == "illegal"]
    assert kinds == [(number, kind) for number in range(4) for kind in ILLEGAL]


def test_the_pool_has_these_moves() -> None:
    """Each cached block and all at once; what was popped, whole or its last block."""
    keys = ((), (b"k",), (), (b"l",), (), ())
    snapshot = replace(SNAPSHOT, block_keys=keys)
    names = {"return", "evict", "reset", "step"}

    def found(what: Configuration, snapshot: Snapshot) -> list[Move]:
        world = World((Seat(),), ((1,), (2, 3)))
        return [move for move in moves(what, State(snapshot, world)) if move[0] in names]

    back = [("return", 0, 1), ("return", 1, 2), ("return", 1, 1)]
    evicted = [("evict", (1,)), ("evict", (3,)), ("evict", (1, 3))]
    assert found(WHAT, snapshot) == [*back, *evicted, ("reset",), ("step",)]
    one = replace(SNAPSHOT, block_keys=((), (b"k",), (), (), (), ()))
    assert found(WHAT, one) == [*back, evicted[0], ("reset",), ("step",)]
    assert found(replace(WHAT, calls=frozenset()), snapshot) == back
