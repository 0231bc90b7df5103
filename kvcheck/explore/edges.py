"""Every edge of a state: make each move, check it, and identify the state it ends in."""

from __future__ import annotations

import pickle
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from kvcheck.explore.batches import batches
from kvcheck.explore.bounds import Call, Configuration
from kvcheck.explore.play import ILLEGAL, play
from kvcheck.explore.renaming import renamed_fingerprint
from kvcheck.explore.sides import WRITES, Fresh, Seen, Side, grown, is_typed, restored
from kvcheck.explore.state import (
    BATCHED_STEP,
    Move,
    State,
    World,
    fingerprint,
    manager_bytes,
    start,
)
from kvcheck.play.agreement import (
    require_same,
    require_same_members,
    require_same_outcome,
    require_same_state,
    rule_of,
)
from kvcheck.play.scheduler import EMPTY, LOADING, PREEMPTED, RUNNING, Seat
from kvcheck.play.state import abstract_state, duplicate_order
from kvcheck.play.text import shown
from kvspec.errors import InvariantViolation, KVSpecError
from kvspec.inside import looks_inside
from kvspec.interface import Implementation
from kvspec.invariants import check_snapshot
from kvspec.snapshot import Snapshot
from kvspec.transitions import Transition, check_transition


@dataclass(frozen=True)
class Broken:
    """A rule that does not hold after the last of `operations`, which are those of one move.

    `before`: moves of the same state that have no visible effect but must be made first.
    """

    rule: str
    name: str
    detail: str
    move: Move
    operations: tuple[tuple[str, str | None, dict[str, Any]], ...]
    before: tuple[Move, ...] = ()


@dataclass
class Found:
    """The edges of one state, or of several.

    `ends`: the move and the fingerprint of each edge that leads to another state, with that state
    (pickled) if it was not returned before.
    """

    edges: Counter[str] = field(default_factory=Counter)
    refused: int = 0
    errors: int = 0
    ends: list[tuple[Move, bytes, bytes | None]] = field(default_factory=list)
    broken: Broken | None = None


class Edges:
    """Makes the moves of states on one implementation, or on two side by side.

    The state is the oracle's, restored from its snapshot wherever a move has changed it. A subject
    beside it follows every path from the start, so its own `restore` is not needed.
    """

    def __init__(
        self,
        configuration: Configuration,
        oracle: Implementation,
        subject: Implementation | None = None,
    ) -> None:
        self.configuration = configuration
        self.oracle = Side(oracle, configuration)
        self.subject = None if subject is None else Side(subject, configuration)
        self.config = self.oracle.config
        keeps_tails = configuration.config.retention_interval_tokens is not None
        self.prompt_matters = keeps_tails or looks_inside(configuration.config)
        self.sound: set[bytes] = set()
        self.told: set[bytes] = set()

    def first(self) -> State:
        return State(self.oracle.player.manager.snapshot(), start(self.configuration.num_requests))

    def name_of(self, state: State) -> bytes:
        if self.configuration.up_to_names:
            names = self.configuration.names()
            return renamed_fingerprint(state, names, prompt_matters=self.prompt_matters)
        manager = manager_bytes(state.snapshot)
        return fingerprint(manager, state.world, prompt_matters=self.prompt_matters)

    def of(self, state: State, path: Sequence[Move]) -> Found:
        """Return all edges of a state that this path leads to, up to the first broken rule."""
        found = Found()
        turn = Turn(self, state)
        own = self.name_of(state)
        try:
            fresh = restored(self.oracle, state)
            beside = None if self.subject is None else grown(self.subject, path)
        except Exception as error:  # a subject may fail at what it did before
            found.broken = Broken("KV-ERR-1", "goes_the_path_again", repr(error), path[-1], ())
            return found
        for move in moves(self.configuration, state):
            world = turn.attempt(move, fresh, beside)
            if isinstance(world, Broken):
                alone = Turn(self, state).attempt(move, fresh, beside)
                found.broken = alone if isinstance(alone, Broken) else world
                break
            if world is not None:
                self._count(found, turn, move, own, world)
        if fresh().snapshot() != state.snapshot:
            raise KVSpecError("managers that were copied by pickle share their state")
        return found

    def _count(self, found: Found, turn: Turn, move: Move, own: bytes, world: World) -> None:
        found.edges[str(move[0])] += 1
        found.refused += turn.ending == "refused"
        found.errors += turn.ending == "error"
        if not turn.has_changed and world == turn.state.world:
            return
        after = State(turn.after, world)
        name = self.name_of(after)
        if name == own:
            return
        packed = None
        if name not in self.told:
            self.told.add(name)
            packed = pickle.dumps(after, pickle.HIGHEST_PROTOCOL)
        found.ends.append((move, name, packed))


class Turn:
    def __init__(self, edges: Edges, state: State) -> None:
        self.edges = edges
        self.state = state
        self.after = state.snapshot
        self.ending = "done"
        self.has_changed = True
        self.operations: list[tuple[str, str | None, dict[str, Any]]] = []
        self.before: list[Move] = []

    def attempt(self, move: Move, fresh: Fresh, beside: Fresh | None) -> World | Broken | None:
        """Make the move; return the rule that it shows to be broken, if any."""
        try:
            return self.make(move, fresh, beside)
        except InvariantViolation as error:
            return self._broken(move, error.rule, error.invariant, error.detail)
        except Exception as error:  # outside of operations: a snapshot, a copy
            return self._broken(move, "KV-ERR-1", "answers", repr(error))

    def _broken(self, move: Move, rule: str, name: str, detail: str) -> Broken:
        """Return what was wrong after the last operation."""
        return Broken(rule, name, detail, move, tuple(self.operations), tuple(self.before[:-1]))

    def make(self, move: Move, fresh: Fresh, beside: Fresh | None) -> World | None:
        edges, oracle, subject = self.edges, self.edges.oracle, self.edges.subject
        # An unchanged manager serves the next move too.
        is_old = not self.has_changed
        oracle.place(oracle.player.manager if is_old else fresh(), self.state.world)
        if subject is not None and beside is not None:
            subject.place(subject.player.manager if is_old else beside(), self.state.world)
        if not is_old:
            self.before.clear()
        self.before.append(move)
        self.after, self.ending, self.has_changed = self.state.snapshot, "done", False
        self.operations.clear()
        return play(edges.configuration, self.state, move, self.do)

    def do(
        self,
        name: str,
        request_id: str | None = None,
        arguments: Mapping[str, Any] | None = None,
        *,
        illegal: str | None = None,
    ) -> Any:
        given = dict(arguments or {})
        self.operations.append((name, request_id, given))
        oracle, subject = self.edges.oracle, self.edges.subject
        if name in WRITES:
            outcome = oracle.write(name, request_id or "", given)
            if subject is not None:
                require_same_outcome(name, outcome, subject.write(name, request_id or "", given))
            return outcome.result
        before, had_changed = self.after, self.has_changed
        self.has_changed = True  # as far as is known
        expected = oracle.do(name, request_id, given)
        if subject is not None:
            seen = subject.do(name, request_id, given)
            if seen != expected or seen.outcome.error is not None:
                self._check(before, seen, illegal)
                require_agreement(expected, seen)
        self.has_changed = had_changed
        if self._check(before, expected, illegal):
            self.after = expected.snapshot
            self.has_changed = self.after != self.state.snapshot
        self.ending = expected.ending
        return expected.outcome.result

    def _check(self, before: Snapshot, seen: Seen, illegal: str | None) -> bool:
        """Check the outcome, the transition, and the state unless it is known to be sound.

        Returns whether anything has changed. If not, the state was checked before, and no invariant
        of transitions can be broken: each is about a difference.
        """
        name, error = seen.name, seen.outcome.error
        if isinstance(error, InvariantViolation):
            raise error
        if illegal is None and error is not None:
            raise InvariantViolation("legal_calls_succeed", "KV-ERR-1", f"{name} raised {error!r}")
        if illegal is not None and not is_typed(error):
            got = "was accepted" if error is None else f"raised {error!r}"
            raise InvariantViolation("illegal_calls_raise", illegal, f"{name} {got}")
        if error is not None and any(seen.queued):
            told = f"{name} raised, but queued {shown(seen.queued)}"
            raise InvariantViolation("errors_change_nothing", "KV-ERR-2", told)
        after = seen.snapshot
        if after == before:
            return False
        if name != BATCHED_STEP or error is not None:
            # What holds of one call need not hold of many.
            call = PURE.get(name, name)
            check_transition(self.edges.config, Transition(call, seen.ending, before, after))
        data = manager_bytes(after)
        if data not in self.edges.sound:
            check_snapshot(self.edges.config, after)
            self.edges.sound.add(data)
        return True


def require_agreement(expected: Seen, got: Seen) -> None:
    """Require the same result, state, events and blocks to be zeroed."""
    name, when = got.name, f"after {got.name}"
    require_same_outcome(name, expected.outcome, got.outcome)
    theirs, ours = expected.snapshot, got.snapshot
    if theirs != ours:
        copies = duplicate_order(theirs), duplicate_order(ours)
        require_same_state(abstract_state(theirs), abstract_state(ours), copies, when)
        require_same_members(theirs, ours, when)
        require_same(rule_of(name), f"the state {when}", theirs, ours)
    for rule, one, other in zip(RULES_OF_QUEUES, expected.queued, got.queued, strict=True):
        require_same(rule, f"queued by {name}", one, other)


RULES_OF_QUEUES = ("KV-EVT-1", "KV-MGR-16")
"""The rules of events, and of blocks to be zeroed."""

PURE: Mapping[str, str] = {"get_block_ids": "get_blocks"}
"""Record operations, mapped to the call that they are."""


def moves(configuration: Configuration, state: State) -> Iterator[Move]:
    """Yield all moves, first those that change nothing, since the manager serves the next too."""
    calls = configuration.calls
    for number, seat in enumerate(state.world.seats):
        if Call.ASK in calls and seat.phase in (RUNNING, LOADING):
            yield "ask", number
        if Call.ILLEGAL in calls:
            yield from (("illegal", number, kind) for kind in ILLEGAL)
    for number, seat in enumerate(state.world.seats):
        yield from _of_request(configuration, number, seat)
    yield from batches(configuration, state)
    yield from _of_pool(configuration, state)


def _of_request(configuration: Configuration, number: int, seat: Seat) -> Iterator[Move]:
    """Yield the next moves of one request."""
    if seat.phase == EMPTY:
        for prompt in configuration.prompts:
            yield from _admissions(configuration, number, prompt, len(prompt))
    elif seat.phase == PREEMPTED:
        yield from _admissions(configuration, number, None, len(seat.tokens))
        yield "give_up", number
    elif seat.phase == LOADING:
        yield "finish_load", number
        yield from _ends(configuration, number)
    else:
        yield from _computations(configuration, number, seat)
        yield from _ends(configuration, number)
        yield from _registrations(configuration, number, seat)


def _admissions(
    configuration: Configuration, number: int, prompt: tuple[int, ...] | None, num_tokens: int
) -> Iterator[Move]:
    """Yield admissions; `left`: the number of tokens left for later steps."""
    for option, admission in enumerate(configuration.admissions):
        in_chunks = configuration.in_chunks and not admission.load_later
        for left in range(num_tokens if in_chunks else 1):
            yield "admit", number, prompt, option, left


def _computations(configuration: Configuration, number: int, seat: Seat) -> Iterator[Move]:
    pending = seat.num_pending
    if pending > 0:
        for option, computation in enumerate(configuration.computations):
            in_chunks = configuration.in_chunks and not computation.num_drafts
            for left in range(pending if in_chunks else 1):
                yield "compute", number, None, option, left
    elif len(seat.tokens) < configuration.config.max_model_len_tokens:
        for token in configuration.tokens:
            for option in range(len(configuration.computations)):
                yield "compute", number, token, option, 0


def _ends(configuration: Configuration, number: int) -> Iterator[Move]:
    yield "free", number
    if Call.PREEMPT in configuration.calls:
        yield "preempt", number
    if Call.POP in configuration.calls:
        yield "pop", number


def _registrations(configuration: Configuration, number: int, seat: Seat) -> Iterator[Move]:
    """Yield what a running request may register or release between two allocations."""
    if Call.SKIP in configuration.calls:
        yield "skip", number
    if Call.CACHE in configuration.calls:
        yield "cache", number
    if Call.PARTIAL in configuration.calls:
        for group in range(len(configuration.config.kv_cache.groups)):
            for num_tokens in range(1, seat.num_computed + 1):
                yield "partial", number, group, num_tokens


def _of_pool(configuration: Configuration, state: State) -> Iterator[Move]:
    calls, snapshot = configuration.calls, state.snapshot
    for number, blocks in enumerate(state.world.popped):
        yield "return", number, len(blocks)
        if len(blocks) > 1:
            yield "return", number, 1
    if Call.EVICT in calls:
        cached = cached_blocks(snapshot)
        yield from (("evict", (block,)) for block in cached)
        if len(cached) > 1:
            yield "evict", cached
    if Call.RESET in calls:
        yield ("reset",)
    if Call.STEP in calls:
        yield ("step",)


def cached_blocks(snapshot: Snapshot) -> tuple[int, ...]:
    """Return every block that a look-up could return."""
    return tuple(block for block, keys in enumerate(snapshot.block_keys) if keys)
