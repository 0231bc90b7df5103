"""Whole engine steps as moves: the requests of the plan, and the world after it (KV-BATCH-*).

A move is `("batch", option, entries)`, where `option` is the number of a `Step` of the
configuration. An entry is `(kind, number, given, count)`, in the order of the plan:

- `finished` and `preempted`: nothing is given.
- `running`: `given` is a token that is appended first, or None; `count` tokens are asked for.
- `new`: `given` is the prompt of an arriving request, None of a returning one.

`("wrong_batch", kind)` is a plan that must be refused, whole (KV-BATCH-2).
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Mapping
from typing import Any, TypeAlias

from kvcheck.explore.bounds import Call, Configuration, Step
from kvcheck.explore.state import BATCHED_STEP, Do, Move, State, World
from kvcheck.play.scheduler import EMPTY, PREEMPTED, RUNNING, Seat
from kvspec.inside import looks_inside

KINDS = ("finished", "preempted", "running", "new")
"""Kinds of entries in the order in which a step handles them (KV-BATCH-1)."""

Entry: TypeAlias = tuple[str, int, Any, int]


def batches(configuration: Configuration, state: State) -> Iterator[Move]:
    """Yield every plan: each request in each role or none, and each order within a role."""
    if not configuration.steps:
        return
    roles = [
        tuple(_roles(configuration, number, seat)) for number, seat in enumerate(state.world.seats)
    ]
    for chosen in itertools.product(*((None, *each) for each in roles)):
        entries = [entry for entry in chosen if entry is not None]
        by_kind = ([entry for entry in entries if entry[0] == kind] for kind in KINDS)
        for orders in itertools.product(*map(itertools.permutations, by_kind)):
            plan = tuple(itertools.chain(*orders))
            if plan:
                yield from (("batch", option, plan) for option in range(len(configuration.steps)))
    if Call.ILLEGAL in configuration.calls:
        yield from (("wrong_batch", kind) for kind in WRONG)


def _roles(configuration: Configuration, number: int, seat: Seat) -> Iterator[Entry]:
    if seat.phase == EMPTY:
        yield from (("new", number, prompt, 0) for prompt in configuration.prompts)
    elif seat.phase == PREEMPTED:
        yield "new", number, None, 0
    elif seat.phase == RUNNING:
        yield "finished", number, None, 0
        yield "preempted", number, None, 0
        pending = seat.num_pending
        if pending:
            yield from (("running", number, None, count) for count in sorted({1, pending}))
        elif len(seat.tokens) < configuration.config.max_model_len_tokens:
            yield from (("running", number, token, 1) for token in configuration.tokens)


def play_batch(configuration: Configuration, state: State, move: Move, do: Do) -> World:
    """Let requests arrive or grow, then make the step."""
    _, option, entries = move
    seats = list(state.world.seats)
    for kind, number, given, _ in entries:
        name = configuration.name_of(number)
        if kind == "new" and given is not None:
            do("new_request", name, {"prompt_token_ids": list(given)})
            seats[number] = Seat.of(given)
        elif kind == "running" and given is not None:
            do("append_tokens", name, {"token_ids": [given]})
            seats[number] = seats[number].appended([given])
    return_copies(configuration, do)
    answer = do(BATCHED_STEP, None, plan_of(configuration, configuration.steps[option], entries))
    scheduled, hits = iter(answer["num_scheduled_tokens"]), iter(answer["hit_tokens"])
    for kind, number, _, _ in entries:
        seat = seats[number]
        if kind == "finished":
            seats[number] = Seat()
        elif kind == "preempted":
            seats[number] = seat.preempted()
        elif kind == "running":
            granted = next(scheduled)
            seats[number] = seat.granted(granted) if granted else seat
        else:
            granted, hit = next(scheduled), next(hits)
            gone = state.world.seats[number]
            seats[number] = seat.granted(granted, num_hit=hit) if granted else gone
    return World(tuple(seats), state.world.popped)


def return_copies(configuration: Configuration, do: Do) -> None:
    """Take the copies of the finished step and return their references (KV-INSIDE-4)."""
    if not looks_inside(configuration.config):
        return
    retained = do("take_block_copies")["retained"]
    if retained:
        do("free_blocks", None, {"block_ids": retained})


def plan_of(configuration: Configuration, step: Step, entries: tuple[Entry, ...]) -> dict[str, Any]:
    """Return the plan with requests by name, without empty members."""
    names: dict[str, list[str]] = {kind: [] for kind in KINDS}
    for kind, number, _, _ in entries:
        names[kind].append(configuration.name_of(number))
    plan = {
        "finished": names["finished"],
        "preempted": names["preempted"],
        "decoding": names["running"],
        "decode_tokens": [count for kind, _, _, count in entries if kind == "running"],
        "new": names["new"],
        **vars(step),
    }
    return {member: value for member, value in plan.items() if value}


def play_wrong_batch(
    configuration: Configuration, state: State, move: Move, do: Do
) -> World | None:
    running = [number for number, seat in enumerate(state.world.seats) if seat.phase == RUNNING]
    if not running:
        return None
    entries = WRONG[move[1]](configuration, running)
    plan = plan_of(configuration, configuration.steps[0], entries)
    do(BATCHED_STEP, None, plan, illegal="KV-BATCH-2")
    return state.world


def _twice(configuration: Configuration, running: list[int]) -> tuple[Entry, ...]:
    """Return a plan that runs all and also finishes the last one."""
    return (("finished", running[-1], None, 0), *(_one(number) for number in running))


def _too_long(configuration: Configuration, running: list[int]) -> tuple[Entry, ...]:
    """Return a plan that runs all, the last one beyond the longest text."""
    count = configuration.config.max_model_len_tokens + 1
    return (*(_one(number) for number in running[:-1]), ("running", running[-1], None, count))


def _one(number: int) -> Entry:
    return "running", number, None, 1


WRONG: Mapping[str, Callable[[Configuration, list[int]], tuple[Entry, ...]]] = {
    "one request twice": _twice,
    "too long": _too_long,
}
"""Plans whose last entry is wrong, so that a manager may have begun before it sees that."""
