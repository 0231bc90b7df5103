"""Implementations put into any state of the graph, and their results as in records."""

from __future__ import annotations

import pickle
from collections.abc import Callable, Mapping, Sequence
from io import BytesIO
from typing import Any, NamedTuple

from kvcheck.explore.bounds import Configuration
from kvcheck.explore.play import play
from kvcheck.explore.state import BATCHED_STEP, Move, State, World, start
from kvcheck.play.outputs import Outputs
from kvcheck.play.player import Outcome, Player
from kvcheck.play.scheduler import EMPTY, PREEMPTED, Seat
from kvspec.audit import unwrapped
from kvspec.batched import StepPlan, StepResult
from kvspec.config import ManagerConfig
from kvspec.errors import KVSpecError
from kvspec.interface import Feature, Implementation, KVCacheManager
from kvspec.request import Request, RequestInput, RequestStatus
from kvspec.sequential import batched_of
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
    return isinstance(error, KVSpecError)


class _Pickler(pickle.Pickler):
    """`shared`: objects that are not copied."""

    def __init__(self, file: BytesIO) -> None:
        super().__init__(file, pickle.HIGHEST_PROTOCOL)
        self.shared: list[Any] = []

    def persistent_id(self, value: Any) -> int | None:
        """Return the index of a shared value, None for one that is copied."""
        if not isinstance(value, type) and not _is_frozen(value):
            return None
        self.shared.append(value)
        return len(self.shared) - 1


class _Unpickler(pickle.Unpickler):
    def __init__(self, packed: bytes, shared: list[Any]) -> None:
        super().__init__(BytesIO(packed))
        self.shared = shared

    def persistent_load(self, place: int) -> Any:
        return self.shared[place]


def copies(manager: KVCacheManager) -> Callable[[], KVCacheManager] | None:
    """Return a function that makes a manager in this state, or None if pickle cannot copy it.

    That is several times faster than restoring it: values that cannot change are shared.
    """
    file = BytesIO()
    pickler = _Pickler(file)
    try:
        pickler.dump(manager)
    except (pickle.PicklingError, TypeError, AttributeError):  # pickle cannot copy it
        return None
    packed, shared = file.getvalue(), pickler.shared

    def copy() -> KVCacheManager:
        made: KVCacheManager = _Unpickler(packed, shared).load()
        return made

    return copy


def _is_frozen(value: Any) -> bool:
    parameters = getattr(value, "__dataclass_params__", None)
    return parameters is not None and bool(parameters.frozen)


def batched_step(
    implementation: Implementation, player: Player, given: Mapping[str, Any]
) -> Outcome:
    """Make the step with the fields of `given`; register requests for it, by their names.

    So nothing of them is reported before (KV-BATCH-10): the rows are the whole lists.
    """
    try:
        batched = batched_of(implementation, player.manager)
        requests = sorted(player.requests.items())
        handles = {name: batched.register(request) for name, request in requests}
        named = {
            field: [handles[name] for name in given.get(field, ())]
            for field in ("finished", "preempted", "decoding", "new")
        }
        output = outputs(player.manager.config, len(handles))
        result = batched.step(StepPlan(**{**given, **named}), output.given)
        told = {
            name: [request.num_computed_tokens, str(request.status), request.num_preemptions]
            for name, request in requests
        }
        return Outcome({**answer(output, result), "requests": told})
    except Exception as error:  # whatever an implementation does is its result
        return Outcome(error=error)


def outputs(config: ManagerConfig, num_requests: int) -> Outputs:
    num_tokens = num_requests * config.max_model_len_tokens
    num_rows = num_requests * len(config.managed_specs) * (config.max_model_len_tokens + ROOM)
    lengths = [num_tokens if spec.has_slots else None for spec in config.managed_specs]
    return Outputs(num_rows, lengths)


def answer(output: Outputs, result: StepResult) -> dict[str, Any]:
    slots = [
        None if each is None else list(each[: result.num_slots]) for each in output.slots or ()
    ]
    return {
        "num_scheduled_tokens": list(result.num_scheduled_tokens),
        "hit_tokens": list(result.hit_tokens),
        "slots": slots,
        "rows": [list(output.row(number)) for number in range(result.num_deltas)],
        "num_rows_left": result.num_deltas_left,
    }


ROOM = 4
"""Entries of a list beyond one for each token: lookahead, speculative blocks."""
