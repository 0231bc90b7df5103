"""Moves: what each asks, and the world behind it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import pytest

import kvref
from kvcheck.explore.bounds import Admission, Call, Computation, Configuration, Step
from kvcheck.explore.managers import cache
from kvcheck.explore.play import play
from kvcheck.explore.state import BATCHED_STEP, Move, State, World
from kvcheck.play.scheduler import LOADING, PREEMPTED, RUNNING, WAITING, Seat
from kvcheck.rules.specs import full
from kvspec.snapshot import RequestState
from tests.explore.exploring import configuration
from tests.judge.test_performing import arguments_of

EVERYTHING = Admission(
    external_tokens=1, lookahead_tokens=1, reserved_blocks=2, must_fit=True, others_scheduled=True,
    delayed=True,
)  # fmt: skip
WHAT = replace(
    configuration("pool"),
    config=cache(6, full(2), max_tokens=6),
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
CAME = "new_request r0 prompt_token_ids=[0, 1, 0]"
LOOKED = "get_computed_blocks r0 num_preemptions=0"
FIRST = "allocate_slots r0 num_computed_tokens=0, status='WAITING', num_new_tokens="
NEXT = "allocate_slots r0 num_computed_tokens=2, status='RUNNING', num_new_tokens="
IDLE = "has_scheduled_reqs=False"
HIT = {"blocks": [[4]], "num_computed_tokens": 2}
MISS = {"blocks": [[]], "num_computed_tokens": 0}
OWN = {"blocks": [[4], []], "hit_lengths": [2, 0]}

Case = tuple[Seat, Move, Mapping[str, Any], Sequence[str], Seat | None]
ADMISSIONS: Mapping[str, Case] = {
    "a request without a hit": (
        Seat(), ("admit", 0, TOKENS, 0, 1), {"get_computed_blocks": MISS, "allocate_slots": [[]]},
        (CAME, LOOKED, f"{FIRST}2, {IDLE}"), AT_TWO,
    ),
    "one with a hit": (
        Seat(), ("admit", 0, TOKENS, 0, 0), {"get_computed_blocks": HIT, "allocate_slots": [[]]},
        (
            CAME, LOOKED,
            f"{FIRST}1, num_new_computed_tokens=2, new_computed_blocks=[[4]], {IDLE}",
        ),
        AT_ALL,
    ),
    "one that comes again": (
        AGAIN, ("admit", 0, None, 0, 2), {"get_computed_blocks": MISS, "allocate_slots": [[]]},
        (
            LOOKED.replace("=0", "=1"),
            f"{FIRST}1, {IDLE}".replace("WAITING", "PREEMPTED"),
        ),
        AT_ALL._replace(num_computed=1),
    ),
    "one that is refused": (
        AGAIN, ("admit", 0, None, 0, 0), {"get_computed_blocks": MISS, "allocate_slots": None},
        (
            LOOKED.replace("=0", "=1"),
            f"{FIRST}3, {IDLE}".replace("WAITING", "PREEMPTED"),
        ),
        AGAIN,
    ),
    "all that may be asked": (
        Seat(), ("admit", 0, TOKENS, 1, 0), {"get_computed_blocks": MISS, "allocate_slots": [[]]},
        (
            CAME, LOOKED,
            f"{FIRST}2, num_external_computed_tokens=1, delay_cache_blocks=True,"
            " num_lookahead_tokens=1, full_sequence_must_fit=True, reserved_blocks=2",
        ),
        AT_ALL,
    ),
    "no look-up": (
        Seat(), ("admit", 0, TOKENS, 2, 0), {"allocate_slots": [[]]},
        (CAME, f"{FIRST}3, {IDLE}"), AT_ALL,
    ),
    "own hits": (
        Seat(), ("admit", 0, TOKENS, 3, 0),
        {"find_longest_cache_hit_per_group": OWN, "allocate_slots": [[], []]},
        (
            CAME, "find_longest_cache_hit_per_group r0 max_cache_hit_length=2",
            f"{FIRST}1, num_new_computed_tokens=2, new_computed_blocks=[[4], []], {IDLE}",
        ),
        AT_ALL,
    ),
    "a load that comes later": (
        Seat(), ("admit", 0, TOKENS, 4, 0), {"get_computed_blocks": MISS, "allocate_slots": [[]]},
        (
            CAME, LOOKED,
            f"{FIRST}0, num_external_computed_tokens=2, delay_cache_blocks=True, {IDLE}",
        ),
        LOADS,
    ),
    "a load beyond the prompt is not possible": (
        Seat(), ("admit", 0, TOKENS, 4, 0), {"get_computed_blocks": HIT}, (CAME, LOOKED), None,
    ),
    "nor is nothing at all": (
        Seat(), ("admit", 0, TOKENS, 0, 1), {"get_computed_blocks": HIT}, (CAME, LOOKED), None,
    ),
}  # fmt: skip

OTHERS: Mapping[str, Case] = {
    "what is pending": (
        AT_TWO, ("compute", 0, None, 0, 0), {"allocate_slots": [[]]}, (f"{NEXT}1",), AT_ALL,
    ),
    "a part of it": (
        AT_ALL._replace(num_computed=0), ("compute", 0, None, 0, 1), {"allocate_slots": [[]]},
        (f"{NEXT}2".replace("tokens=2, s", "tokens=0, s"),), AT_TWO,
    ),
    "refused, a token is there all the same": (
        AT_ALL, ("compute", 0, 1, 0, 0), {"allocate_slots": None},
        ("append_tokens r0 token_ids=[1]", f"{NEXT}1".replace("tokens=2, s", "tokens=3, s")),
        Seat(RUNNING, (*TOKENS, 1), 3, 3),
    ),
    "drafts, one of them right": (
        AT_TWO, ("compute", 0, None, 1, 0), {"allocate_slots": [[]]},
        (
            f"{NEXT}3, num_lookahead_tokens=1, delay_cache_blocks=True",
            "append_tokens r0 token_ids=[0]",
        ),
        Seat(RUNNING, (*TOKENS, 0), 3, 4),
    ),
    "drafts up to the longest sequence": (
        Seat(RUNNING, (0,) * 4, 3, 3), ("compute", 0, None, 1, 0), {"allocate_slots": [[]]},
        (
            f"{NEXT}3, num_lookahead_tokens=1, delay_cache_blocks=True".replace(
                "tokens=2, s", "tokens=3, s"
            ),
            "append_tokens r0 token_ids=[0]",
        ),
        Seat(RUNNING, (0,) * 5, 3, 5),
    ),
    "drafts beyond it are not possible": (
        Seat(RUNNING, (0,) * 5, 3, 4), ("compute", 0, None, 1, 0), {}, (), None,
    ),
    "a load that is done": (
        LOADS, ("finish_load", 0), {}, ("cache_blocks r0 num_computed_tokens=2",), AT_TWO,
    ),
    "the end": (AT_TWO, ("free", 0), {}, ("free r0",), Seat()),
    "the end of one that waits": (AGAIN, ("give_up", 0), {}, ("free r0",), Seat()),
    "preempted": (AT_TWO, ("preempt", 0), {}, ("free r0",), AGAIN),
    "what fell out": (
        AT_TWO, ("skip", 0), {}, ("remove_skipped_blocks r0 total_computed_tokens=2",), AT_TWO,
    ),
    "registered": (
        AT_TWO, ("cache", 0), {}, ("cache_blocks r0 num_computed_tokens=2",), AT_TWO,
    ),
    "evicted": (AT_TWO, ("evict", (1, 3)), {}, ("evict_blocks - block_ids=[1, 3]",), AT_TWO),
    "reset": (AT_TWO, ("reset",), {}, ("reset_prefix_cache -",), AT_TWO),
    "a step": (AT_TWO, ("step",), {}, ("new_step_starts -",), AT_TWO),
    "asked": (
        AT_TWO, ("ask", 0), {},
        (
            "get_block_ids r0",
            "get_num_common_prefix_blocks r0",
            *(
                "get_num_blocks_to_allocate r0 num_tokens=6, total_computed_tokens=2,"
                f" num_tokens_main_model=6{more}"
                for more in ("", ", apply_admission_cap=True")
            ),
        ),
        AT_TWO,
    ),
    "an illegal call": (
        AT_TWO, ("illegal", 0, "no tokens"), {}, (f"{NEXT}0 !KV-MGR-3",), AT_TWO,
    ),
    "one that would be legal": (AGAIN, ("illegal", 0, "no tokens"), {}, (), None),
    "one about nobody": (Seat(), ("illegal", 0, "no tokens"), {}, (), None),
}  # fmt: skip
CASES = {**ADMISSIONS, **OTHERS}


class Asked:
    """Answers from a table, and lists what it was asked."""

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
    """The world behind a move, and the calls."""
    holds = RequestState(((1, 2),), (1,))
    snapshot = replace(SNAPSHOT, requests={"r0": holds, "r1": holds})
    do = Asked(answers)
    return play(what, State(snapshot, world), move, do), do.calls


@pytest.mark.parametrize("name", CASES)
def test_a_move_asks_this_and_leaves_the_request_so(name: str) -> None:
    seat, move, answers, expected, after = CASES[name]
    other = Seat(WAITING, (1,), 1)
    world, calls = played(WHAT, World((seat, other), ((5,),)), move, answers)
    assert calls == list(expected)
    assert world == (None if after is None else World((after, other), ((5,),)))


def test_popped_blocks_come_back_in_reverse_whole_or_in_part() -> None:
    one = replace(WHAT, max_popped=2)
    world = World((AT_TWO, AT_TWO), ((1, 2, 3),))
    after, calls = played(one, world, ("pop", 1), {"pop_blocks_for_free": [4, 5]})
    assert calls == ["pop_blocks_for_free r1"]
    assert after == World((AT_TWO, Seat()), ((1, 2, 3), (4, 5)))
    assert played(one, after, ("pop", 0), {}) == (None, [])  # as many are under way as may be
    assert played(one, world, ("pop", 1), {"pop_blocks_for_free": []})[0] == World(
        (AT_TWO, Seat()), ((1, 2, 3),)
    )
    part, calls = played(one, after, ("return", 0, 1), {})
    assert calls == ["free_blocks - block_ids=[3]"]
    assert part.popped == ((1, 2), (4, 5))
    rest, calls = played(one, part, ("return", 0, 2), {})
    assert calls == ["free_blocks - block_ids=[2, 1]"]
    assert rest == World((AT_TWO, Seat()), ((4, 5),))


@pytest.mark.parametrize(
    ("hash_size", "num_tokens", "is_possible"),
    [(1, 1, True), (1, 3, True), (1, 2, False), (1, 5, False), (2, 3, False), (None, 1, False)],
)
def test_a_boundary_inside_a_block_that_is_there(
    hash_size: int | None, num_tokens: int, is_possible: bool
) -> None:
    """Of two blocks of two tokens."""
    what = replace(WHAT, config=replace(WHAT.config, hash_block_size_tokens=hash_size))
    world = World((AT_TWO, Seat()))
    after, calls = played(what, world, ("partial", 0, 0, num_tokens), {})
    asked = [f"cache_partial_block r0 group=0, num_tokens={num_tokens}"]
    assert (after, calls) == ((world, asked) if is_possible else (None, []))


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


def test_whom_a_step_refuses_stays_as_it_was() -> None:
    """One that came is gone again; a token that was appended stays."""
    world = World((Seat(), AGAIN, AT_ALL))
    entries = (("running", 2, 1, 1), ("new", 0, TOKENS, 0), ("new", 1, None, 0))
    nothing = {"num_scheduled_tokens": [0, 0, 0], "hit_tokens": [0, 0]}
    after, calls = played(STEPPED, world, ("batch", 0, entries), {BATCHED_STEP: nothing})
    assert calls[-1] == (
        "batched_step - decoding=['r2'], decode_tokens=[1], new=['r0', 'r1'], token_budget=9"
    )
    assert after == World((Seat(), AGAIN, LONGER._replace(num_computed=3)))


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
