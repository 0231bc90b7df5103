"""Run a program: perform every operation and check its result.

The seats of the scheduler (`kvcheck.play.scheduler`) follow the results of the *subject*;
`kvcheck.play.performing` makes operations of steps. With an
*oracle* the same operations run on it too; block ids in arguments (hits, popped blocks, evicted
blocks) are then each side's own.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from kvcheck.play import steps as st
from kvcheck.play.agreement import (
    require_same,
    require_same_copies,
    require_same_outcome,
    require_same_view,
    rule_of,
)
from kvcheck.play.elsewhere import foresee
from kvcheck.play.left_out import LeftOut, created
from kvcheck.play.outside import look_from_outside
from kvcheck.play.player import Outcome, Player
from kvcheck.play.scheduler import Seat
from kvcheck.play.state import View, look
from kvspec.config import ManagerConfig
from kvspec.errors import InvariantViolation, KVSpecError, RemoteError
from kvspec.inside import looks_inside
from kvspec.interface import Feature, Implementation
from kvspec.transitions import PURE_CALLS


@dataclass(eq=False)
class Tracked:
    """A request of a program: its current seat, and its content (`arrival`).

    `fresh_load`: the first and the end of the external tokens of an admission that nothing has
    followed yet. `num_lost`: tokens that were computed when it was preempted. `junction_tokens`:
    from its last look-up, where the manager returns it.
    """

    name: str
    arrival: st.Arrive
    seat: Seat
    num_preemptions: int = 0
    fresh_load: tuple[int, int] | None = None
    num_lost: int = 0
    junction_tokens: int = 0

    @property
    def caching_arguments(self) -> dict[str, int]:
        """Return the arguments that its scheduler adds to calls that cache (KV-RET-7)."""
        return {"junction_tokens": self.junction_tokens} if self.junction_tokens else {}


@dataclass(frozen=True)
class Planned:
    """A request's part of a plan: its computed tokens before it, hits included.

    `may_stay`: whether it can continue from there if the step does not run.
    """

    num_computed: int
    may_stay: bool


@dataclass
class Batches:
    """The engine's knowledge of whole steps.

    `handles`: of registered requests, by name. `table`: for each handle its block lists, by group
    and index, as rows have reported them (KV-BATCH-10). `since`: how often each request had been
    preempted when its table began; a single call that frees it is not reported.
    """

    handles: dict[str, int] = field(default_factory=dict)
    table: dict[int, dict[tuple[int, int], int]] = field(default_factory=dict)
    since: dict[str, int] = field(default_factory=dict)


GO_ON = PURE_CALLS | {
    "get_block_ids", "new_request", "append_tokens", "allocate_slots", "take_block_copies",
    "withdraw", "recent_hits",
}  # fmt: skip
"""Calls that keep a plan valid; any other ends it."""


@dataclass
class Side:
    """An implementation that the operations run on.

    `popped`, `retained`: references to return, from popped lists and from copies.
    """

    player: Player
    popped: list[int] = field(default_factory=list)
    retained: list[int] = field(default_factory=list)
    features: frozenset[Feature] = frozenset(Feature)

    @classmethod
    def of(
        cls,
        implementation: Implementation,
        program: st.Program,
        *,
        clock: Callable[[], int] | None,
        audit: bool,
        loops: bool = False,
    ) -> Side:
        """Create a manager for the program's configuration. Raises LeftOut if it is unsupported.

        `clock`: of residency samples, if the manager takes one: a remote one cannot.
        """
        config, options = program.config, {"check_invariants": audit}
        is_timed = clock is not None and config.residency_sample_rate > 0
        try:
            more = {"clock": clock} if is_timed else {}
            manager = created(implementation, config, **options, **more)
        except LeftOut:
            is_timed = False
            manager = created(implementation, config, **options)
        player = Player(implementation, manager, loops=loops, is_timed=is_timed)
        return cls(player, features=implementation.capabilities.features)

    def blocks(self, request: Tracked) -> list[list[int]]:
        return self.player.manager.get_blocks(self.player.requests[request.name]).to_lists()

    def perform(self, name: str, request_id: str | None, asked: Mapping[str, Any]) -> Outcome:
        """Perform one operation and note what it popped, before any look at the state."""
        outcome = self.player.perform(name, request_id, asked)
        if name == "pop_blocks_for_free" and outcome.error is None:
            self.popped.extend(outcome.result)
        elif name == "take_block_copies" and outcome.error is None:
            self.retained.extend(outcome.result["retained"])
        elif name == "hold_blocks" and outcome.error is None:
            self.popped.extend(asked["block_ids"])
        elif name == "free_blocks" and outcome.error is None:
            if self.retained and list(asked["block_ids"]) == self.retained:
                self.retained.clear()
            else:  # the last popped ones
                del self.popped[len(self.popped) - len(asked["block_ids"]) :]
        return outcome

    def will_look(self) -> None:
        """Announce a look at the state after the next operation: both may be sent together."""
        if Feature.SNAPSHOT in self.features:
            foresee(self.player.manager, "snapshot", "get_usage")

    def look(self) -> View:
        """Return the current state; without Feature.SNAPSHOT what is seen of it from outside."""
        if Feature.SNAPSHOT in self.features:
            return look(self.player.manager)
        owed = [*self.popped, *self.retained]
        return look_from_outside(self.player.manager, self.player.requests, owed)


@dataclass(frozen=True)
class Performed:
    """An operation on the subject: its arguments, its outcome, and the state around it.

    `lost`: the subject's blocks whose content never arrived, as the scheduler knows. `copies`:
    those requested after it, by the subject and by the oracle.
    """

    name: str
    request: Tracked | None
    arguments: Mapping[str, Any]
    outcome: Outcome
    before: View
    after: View
    oracle: Outcome | None = None
    oracle_after: View | None = None
    lost: Sequence[int] = ()
    copies: Mapping[str, Any] | None = None
    oracle_copies: Mapping[str, Any] | None = None


Copies: TypeAlias = tuple[Mapping[str, Any] | None, Mapping[str, Any] | None]


class Check:
    """A check of every operation, or after every step; raises InvariantViolation."""

    def after_operation(self, runner: Runner, done: Performed) -> None:
        """Check an operation after it was performed."""

    def after_step(self, runner: Runner) -> None:
        """Check after a whole step: what was scheduled is now computed."""


class Runner:
    """Performs steps. `operations` lists the calls made, for a record.

    `looks_every`: at production sizes a state is large; with a number here the subject's is
    compared with the oracle's after so many operations, and the checks follow steps alone.
    `ends_inside`: hits may end inside a block; `scheduled`: then, the requests of the step.
    `planned`: the requests that got slots in the current plan.
    """

    def __init__(
        self,
        program: st.Program,
        subject: Implementation,
        oracle: Implementation | None = None,
        checks: Sequence[Check] = (),
        *,
        audit: bool = False,
        looks_every: int | None = None,
    ) -> None:
        self.looks_every = looks_every
        self.operations: list[tuple[str, str | None, dict[str, Any]]] = []

        def clock() -> int:
            return len(self.operations)

        self.subject = Side.of(subject, program, clock=clock, audit=audit)
        self.oracle = None
        if oracle is not None:
            same = clock if self.subject.player.is_timed else None
            self.oracle = Side.of(oracle, program, clock=same, audit=False, loops=True)
        self.config: ManagerConfig = self.subject.player.manager.config
        factor = self.config.dcp_world_size * self.config.pcp_world_size
        self.specs = self.config.managed_specs
        self.block_sizes = tuple(spec.block_size * factor for spec in self.specs)
        self.checks = checks
        has_copies = Feature.HITS_INSIDE_BLOCKS in self.subject.features
        self.ends_inside = has_copies and looks_inside(self.config)
        self.scheduled: set[str] = set()
        self.planned: dict[str, Planned] = {}
        self.batches = Batches()
        self.requests: list[Tracked] = []
        self.num_made = 0
        self._view: View | None = self.subject.look()

    @property
    def view(self) -> View:
        if self._view is None:
            self._view = self.subject.look()
        return self._view

    @property
    def has_view(self) -> bool:
        """Whether the state was read since the last operation."""
        return self._view is not None

    def look_again(self) -> None:
        """Drop the view after the subject changed outside of `do`."""
        self._view = None

    def state_of(self, side: Side) -> View:
        """Return the current state of one side; the subject's was mostly seen already."""
        return self.view if side is self.subject else side.look()

    def do(
        self,
        name: str,
        request: Tracked | None = None,
        arguments: Mapping[str, Any] | None = None,
        own: Callable[[Side], Mapping[str, Any]] = lambda side: {},
        *,
        may_fail: bool = False,
        lost: Sequence[int] = (),
    ) -> tuple[Any, Any]:
        """Perform one operation on both sides; return the subject's result and the oracle's.

        `own` gives the arguments that hold block ids, for each side. An error that the scheduler
        did not ask for is the implementation's fault.
        """
        sees_all = self.looks_every is None
        before = self.view if sees_all else None
        if sees_all:
            self.subject.will_look()
        asked, outcome, expected = self.ask(name, request, arguments or {}, own)
        copies, expected_copies = self.copies_after(name, request, outcome)
        after = self.view if sees_all else None
        expected_after = self.oracle.look() if sees_all and self.oracle is not None else None
        if outcome.error is not None and not may_fail:
            raise_as_violation(name, outcome.error)
        if before is None or after is None:
            if expected is not None:
                self._compare(name, (expected, outcome), (expected_copies, copies))
            return outcome.result, None if expected is None else expected.result
        done = Performed(
            name, request, asked, outcome, before, after, expected, expected_after, lost, copies,
            expected_copies,
        )  # fmt: skip
        for check in self.checks:
            check.after_operation(self, done)
        return outcome.result, None if expected is None else expected.result

    def _compare(self, name: str, outcomes: tuple[Outcome, Outcome], copies: Copies) -> None:
        """Compare what an operation returned, the oracle's first, and if it is due the state."""
        require_same_outcome(name, *outcomes)
        require_same_copies(*copies)
        oracle = self.subject if self.oracle is None else self.oracle
        free, got = (side.player.manager.num_free_blocks for side in (oracle, self.subject))
        require_same(rule_of(name), f"free blocks after {name}", free, got)
        if len(self.operations) % (self.looks_every or 1) == 0:
            self.compare_states(f"after {name}")

    def compare_states(self, when: str = "at the end") -> None:
        if self.oracle is not None:
            require_same_view(self.oracle.look(), self.view, when)

    def copies_after(self, name: str, request: Tracked | None, outcome: Outcome) -> Copies:
        """Take the copies to make before the step, before any look at the references.

        Returns those of the subject and of the oracle.
        """
        if not self.ends_inside or name != "allocate_slots" or outcome.result is None:
            return None, None
        if request is not None:
            self.scheduled.add(request.name)
        _, taken, expected = self.ask("take_block_copies", None, {}, lambda side: {})
        if taken.error is not None:
            raise_as_violation("take_block_copies", taken.error)
        return taken.result, None if expected is None else expected.result

    def ask(
        self,
        name: str,
        request: Tracked | None,
        arguments: Mapping[str, Any],
        own: Callable[[Side], Mapping[str, Any]],
    ) -> tuple[Mapping[str, Any], Outcome, Outcome | None]:
        """Return the subject's arguments, its outcome and the oracle's, and look at no state."""
        request_id = request.name if request is not None else None
        if name not in GO_ON or (name == "allocate_slots" and request_id in self.planned):
            self.planned.clear()  # no plan asks twice
        asked = {**arguments, **own(self.subject)}
        self.operations.append((name, request_id, asked))  # first: it may never return
        outcome, expected = self.subject.perform(name, request_id, asked), None
        self.look_again()
        if self.oracle is not None:
            expected = self.oracle.perform(name, request_id, {**arguments, **own(self.oracle)})
        return asked, outcome, expected

    def end_step(self) -> None:
        for check in self.checks:
            check.after_step(self)

    def plan(self, request: Tracked, num_computed: int, *, may_stay: bool) -> None:
        """Note that the request got slots."""
        self.planned[request.name] = Planned(num_computed, may_stay)

    def pick(self, who: int, *phases: str) -> Tracked | None:
        """Return request number `who` among those in one of these phases."""
        fitting = [request for request in self.requests if request.seat.phase in phases]
        return fitting[who % len(fitting)] if fitting else None


def raise_as_violation(name: str, error: Exception) -> None:
    """Raise a violation: a legal call that ends with an error is the implementation's fault."""
    if isinstance(error, InvariantViolation):
        raise error
    if isinstance(error, RemoteError) and error.is_of_protocol:
        raise error  # no result to judge
    kind = "a typed error" if isinstance(error, KVSpecError) else type(error).__name__
    raise InvariantViolation(
        "legal_calls_succeed", "KV-ERR-1", f"{name} raised {kind}: {error}"
    ) from error
