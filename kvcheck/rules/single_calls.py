"""Single calls about registered requests between whole steps, as engines mix both (KV-BATCH-1).

A twin's own data of a registered request must follow the changes that single calls make: the list
that became longer, the request that was freed and admitted again, the count set back.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from random import Random
from typing import Any, Protocol, TypeAlias, cast

from kvcheck.play.keeping import Kept
from kvcheck.rules.batch_sides import Side
from kvspec.config import ManagerConfig
from kvspec.following import FollowingImplementation
from kvspec.interface import Feature
from kvspec.request import Request, RequestStatus
from kvspec.specs import FullAttentionSpec

MOST_BACK = 3


class Engine(Protocol):
    """The part of `random_batches.Engine` that these calls need."""

    config: ManagerConfig
    random: Random
    sides: Sequence[Side]
    freed_alone: set[int]
    kept: dict[int, Kept]

    @property
    def features(self) -> frozenset[Feature]: ...
    def both(self, rule: str, what: str, call: Callable[[Side], Any]) -> Any: ...
    def standing(self) -> tuple[list[int], list[int]]: ...
    def next_tokens(self, handle: int) -> int: ...
    def sample(self, handle: int) -> None: ...
    def forget_rows(self, handle: int) -> None: ...


def free(engine: Engine, handle: int) -> None:
    """Free a request; its reported lengths stay (KV-BATCH-10)."""
    engine.both("KV-MGR-12", f"free {handle}", lambda s: s.manager.free(request_of(s, handle)))
    _gave_back(engine, handle)


def pop(engine: Engine, handle: int) -> None:
    """Forget a request and return its blocks in a later call, made here at once (KV-MGR-13)."""

    def popped(side: Side) -> tuple[int, ...]:
        return side.manager.pop_blocks_for_free(request_of(side, handle))

    blocks = engine.both("KV-MGR-13", f"pop {handle}", popped)
    engine.both("KV-MGR-13", "return", lambda s: s.manager.free_blocks(blocks[::-1]))
    _gave_back(engine, handle)


def _gave_back(engine: Engine, handle: int) -> None:
    for side in engine.sides:
        request = request_of(side, handle)
        request.num_computed_tokens = 0
        request.status = RequestStatus.WAITING
    engine.forget_rows(handle)
    engine.freed_alone.add(handle)


def admit(engine: Engine, handle: int) -> None:
    """Look up a waiting request and admit it with its hit."""
    most = engine.random.randint(1, 9)

    def admitted(side: Side) -> object:
        request = request_of(side, handle)
        hit = side.manager.get_computed_blocks(request)
        length = hit.hit_length_tokens
        num_tokens = min(most, request.num_tokens - length)
        blocks = hit.blocks if length else None
        given = side.manager.allocate_slots(
            request, num_tokens, num_new_computed_tokens=length, new_computed_blocks=blocks
        )
        if given is None:
            return None
        request.num_computed_tokens = length + num_tokens
        request.status = RequestStatus.RUNNING
        return length, given.to_lists()

    engine.both("KV-MGR-7", f"admit {handle} alone", admitted)


def extend(engine: Engine, handle: int) -> None:
    """Allocate for a running request, which computes or only gets slots in advance."""
    num_tokens = engine.next_tokens(handle)
    if num_tokens == 0:
        return
    lookahead = engine.random.choice((0, 1, 4, 9)) * (Feature.DRAFTING in engine.features)
    goes_on = engine.random.random() < 0.7

    def extended(side: Side) -> object:
        request = request_of(side, handle)
        given = side.manager.allocate_slots(request, num_tokens, num_lookahead_tokens=lookahead)
        if given is None:
            return None
        if goes_on:
            request.num_computed_tokens += num_tokens
        return given.to_lists()

    given = engine.both("KV-MGR-7", f"{num_tokens} more for {handle} alone", extended)
    if given is not None and goes_on:
        engine.sample(handle)


def set_back(engine: Engine, handle: int) -> None:
    """Set the computed tokens back by a few, where all that was computed is still present."""
    count = engine.random.randint(1, MOST_BACK)
    for side in engine.sides:
        request = request_of(side, handle)
        request.num_computed_tokens = max(1, request.num_computed_tokens - count)


def withdraw(engine: Engine, handle: int) -> None:
    """Withdraw some of a request, which continues from there or releases its blocks."""
    first = engine.sides[0]
    request = request_of(first, handle)
    if first.manager.get_blocks(request).is_empty:
        return
    tokens = engine.random.randint(0, request.num_computed_tokens)

    def withdrawn(side: Side) -> tuple[str, ...]:
        return side.manager.withdraw(request_of(side, handle), tokens)

    engine.both("KV-MGR-23", f"{handle} withdrawn to {tokens}", withdrawn)
    if tokens == 0 or not can_go_back(engine):
        free(engine, handle)
        return
    for side in engine.sides:
        request_of(side, handle).num_computed_tokens = tokens


def can_go_back(engine: Engine) -> bool:
    """Check that everything ever computed for a request is still in its blocks."""
    return all(type(spec) is FullAttentionSpec for spec in engine.config.managed_specs)


def remove_skipped(engine: Engine, handle: int) -> None:
    """Remove what attention no longer needs."""

    def removed(side: Side) -> None:
        request = request_of(side, handle)
        side.manager.remove_skipped_blocks(request, request.num_computed_tokens)

    engine.both("KV-MGR-14", f"skipped of {handle}", removed)


def hold(engine: Engine, handle: int) -> None:
    """Hold the last blocks of a request and release them at once."""

    def held(side: Side) -> list[int]:
        lists = side.manager.get_blocks(request_of(side, handle)).to_lists()
        blocks = [block for each in lists for block in each[-2:]]
        side.manager.hold_blocks(blocks)
        side.manager.free_blocks(blocks[::-1])
        return blocks

    engine.both("KV-POOL-19", f"blocks of {handle} held", held)


def append_alone(engine: Engine, handles: Sequence[int], tokens: Sequence[int], count: int) -> str:
    """Append `count` tokens to each request, or follow those the engine keeps; return the name."""
    for place, handle in enumerate(handles):
        mine = tokens[count * place : count * (place + 1)]
        kept = engine.kept.get(handle)
        if kept is None:
            engine.both("KV-REQ-5", f"append to {handle}", partial(_append, handle, mine))
        else:
            told = (len(kept.tokens) + count, kept.extend(list(mine)))
            engine.both("KV-REQ-7", f"follow {handle}", partial(_follow, handle, *told))
    return "followed alone" if engine.kept else "appended alone"


def _append(handle: int, tokens: Sequence[int], side: Side) -> None:
    side.implementation.append_tokens(side.manager, request_of(side, handle), tokens)


def _follow(handle: int, num_tokens: int, hashes: Sequence[bytes], side: Side) -> None:
    following = cast(FollowingImplementation, side.implementation)
    following.follow(side.manager, request_of(side, handle), num_tokens, hashes)


def request_of(side: Side, handle: int) -> Request:
    return side.batched.request_of(handle)


Call: TypeAlias = Callable[[Engine, int], None]

OF_RUNNING: Mapping[str, Call] = {
    "freed alone": free,
    "popped alone": pop,
    "extended alone": extend,
    "set back alone": set_back,
    "withdrawn alone": withdraw,
    "skipped alone": remove_skipped,
    "held alone": hold,
}
OF_IDLE: Mapping[str, Call] = {"admitted alone": admit}
NEEDS: Mapping[str, Feature] = {
    "popped alone": Feature.DEFERRED_FREE,
    "skipped alone": Feature.SKIPPED_REMOVAL,
    "held alone": Feature.HOLDING,
    "withdrawn alone": Feature.WITHDRAWAL,
}
OFTEN: Mapping[str, int] = {"extended alone": 4}
"""Calls that engines mix into steps more often than others."""
CALLS = (
    *(*OF_RUNNING, *OF_IDLE, "appended alone", "followed alone"),
    *("saved alone", "saved to a file alone"),
)


def call_alone(engine: Engine) -> str | None:
    """Make one single call about a registered request; return its name, None without a request."""
    idle, running = engine.standing()
    calls = [
        (name, partial(call, engine, handle))
        for among, handles in ((OF_RUNNING, running), (OF_IDLE, idle))
        for name, call in among.items()
        for handle in engine.random.sample(handles, min(1, len(handles)))
        if (name not in NEEDS or NEEDS[name] in engine.features)
        and (can_go_back(engine) or name != "set back alone")
    ]
    if not calls:
        return None
    weights = [OFTEN.get(name, 1) for name, _ in calls]
    ((name, call),) = engine.random.choices(calls, weights)
    call()
    return name
