"""Implementations put into any state of the graph, and their results as in records."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from kvcheck.explore.batching import batched_step
from kvcheck.explore.bounds import Configuration
from kvcheck.explore.copies import copies
from kvcheck.explore.play import play
from kvcheck.explore.state import BATCHED_STEP, Move, State, World, start
from kvcheck.play.player import Outcome, Player
from kvcheck.play.scheduler import EMPTY, PREEMPTED, Seat
from kvspec.audit import unwrapped
from kvspec.errors import KVSpecError
from kvspec.interface import Feature, Implementation, KVCacheManager
from kvspec.request import Request, RequestInput, RequestStatus
from kvspec.snapshot import Snapshot


class Seen(NamedTuple):
    """One operation: its outcome, what it queued, and the state after it."""

    name: str
    outcome: Outcome
    queued: tuple[Any, ...]
    snapshot: Snapshot

    @property
    def ending(self) -> str:
        """Return its ending as a transition names it."""
        if self.outcome.error is not None:
            return "error"
        result = self.outcome.result
        is_none = self.name == "allocate_slots" and result is None
        return "refused" if is_none or result is False else "done"


class Side:
    """One implementation. `place` gives it a manager in some state; `do` performs an operation.

    Requests are made once for each content: a manager knows them by name (KV-REQ-1), so they serve
    every state.
    """

    def __init__(self, implementation: Implementation, configuration: Configuration) -> None:
        self.implementation = implementation
        self.configuration = configuration
        self.features = implementation.capabilities.features
        self.names = configuration.names()
        first = implementation.create(configuration.config, check_invariants=False)
        self.config = first.config
        self.player = Player(implementation, first)
        self.made: dict[tuple[str, int, tuple[int, ...]], Request] = {}

    def place(self, manager: KVCacheManager, world: World) -> None:
        """Continue with this manager, and with the requests of its state."""
        self.player.manager = manager
        for name, seat in zip(self.names, world.seats, strict=True):
            if seat.phase == EMPTY:
                self.player.requests.pop(name, None)
                continue
            request = self.player.requests[name] = self.request(name, seat)
            request.num_computed_tokens = seat.num_computed
            request.status = RequestStatus(seat.status)
            request.num_preemptions = int(seat.phase == PREEMPTED)

    def request(self, name: str, seat: Seat) -> Request:
        key = (name, seat.num_prompt, seat.tokens)
        if key not in self.made:
            content = RequestInput(name, seat.tokens[: seat.num_prompt])
            made = self.implementation.make_request(self.player.manager, content)
            for token in seat.tokens[seat.num_prompt :]:
                self.implementation.append_tokens(self.player.manager, made, (token,))
            self.made[key] = made
        return self.made[key]

    def write(self, name: str, request_id: str, arguments: Mapping[str, Any]) -> Outcome:
        """Make or extend a request: no manager changes (KV-REQ-1, KV-REQ-2)."""
        old = None if name == "new_request" else self.player.requests[request_id]
        try:
            if old is None:
                tokens = tuple(arguments["prompt_token_ids"])
                new = self.request(request_id, Seat(tokens=tokens, num_prompt=len(tokens)))
            else:
                tokens = (*old.token_ids, *arguments["token_ids"])
                new = self.request(
                    request_id, Seat(tokens=tokens, num_prompt=old.num_prompt_tokens)
                )
        except Exception as error:  # whatever an implementation does is its result
            return Outcome(error=error)
        new.num_computed_tokens = 0 if old is None else old.num_computed_tokens
        new.num_preemptions = 0 if old is None else old.num_preemptions
        new.status = RequestStatus.WAITING if old is None else old.status
        self.player.requests[request_id] = new
        return Outcome([block_hash.hex() for block_hash in new.block_hashes])

    def do(self, name: str, request_id: str | None, arguments: Mapping[str, Any]) -> Seen:
        """Perform one operation, and empty all queues."""
        outcome = self.perform(name, request_id, arguments)
        manager = self.player.manager
        events = manager.take_events()
        queued = (events, manager.take_new_block_ids())
        return Seen(name, outcome, queued, manager.snapshot())

    def perform(self, name: str, request_id: str | None, arguments: Mapping[str, Any]) -> Outcome:
        if name == BATCHED_STEP:
            return batched_step(self.implementation, self.player, arguments)
        return self.player.perform(name, request_id, arguments)


WRITES = frozenset({"new_request", "append_tokens"})
"""Operations that change no manager."""

Fresh = Callable[[], KVCacheManager]


def restored(side: Side, state: State) -> Fresh:
    """Return managers in this state, made from its snapshot. Unaudited: every edge is checked.

    One is restored, and the others are copies of it where it can be pickled: that is faster.
    """

    def restore() -> KVCacheManager:
        return unwrapped(side.implementation.restore(side.config, state.snapshot))

    return copies(restore()) or restore


def grown(side: Side, path: Sequence[Move]) -> Fresh:
    """Return managers that followed the path from the start, cloned from one where possible."""

    def go() -> KVCacheManager:
        manager = side.implementation.create(side.configuration.config, check_invariants=False)
        follow(side, manager, path)
        return manager

    if Feature.CLONE not in side.features:
        return go
    original = go()
    return lambda: side.implementation.clone(original)


def follow(
    side: Side,
    manager: KVCacheManager,
    path: Sequence[Move],
    heard: Callable[[str, str | None, Mapping[str, Any], Outcome], None] | None = None,
) -> World:
    """Make these moves on the manager, from the start; `heard` receives every operation."""
    configuration = side.configuration
    world = start(configuration.num_requests)

    def do(
        name: str,
        request_id: str | None = None,
        arguments: Mapping[str, Any] | None = None,
        *,
        illegal: str | None = None,
    ) -> Any:
        given = arguments or {}
        if name in WRITES:
            outcome = side.write(name, request_id or "", given)
        else:
            outcome = side.do(name, request_id, given).outcome
        if heard is not None:
            heard(name, request_id, given, outcome)
        return outcome.result

    for move in path:
        side.place(manager, world)
        state = State(manager.snapshot(), world)
        world = play(configuration, state, move, do) or world
    return world


def is_typed(error: Exception | None) -> bool:
    """Check for an error of the contract."""
    return isinstance(error, KVSpecError)
