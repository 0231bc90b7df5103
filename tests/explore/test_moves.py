"""Which moves there are in a state."""

from __future__ import annotations

from dataclasses import replace

import pytest

from kvcheck.explore.edges import moves
from kvcheck.explore.play import ILLEGAL
from kvcheck.explore.state import Move, State, World
from kvcheck.play.scheduler import EMPTY, LOADING, PREEMPTED, RUNNING, Seat
from kvspec.config import ManagerConfig
from tests.explore.test_play import AGAIN, AT_ALL, AT_TWO, LOADS, SNAPSHOT, TOKENS, WHAT

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
