"""A walk as a record: its moves as operations, with everything that the reference answered."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from kvcheck.explore.bounds import Configuration
from kvcheck.explore.play import play
from kvcheck.explore.state import Move, State, start
from kvcheck.explore.vectors.graph import Graph, in_state, named
from kvcheck.play.recorder import Recorder
from kvcheck.play.text import DEFAULT_ARGUMENTS
from kvspec.errors import KVSpecError
from kvspec.interface import Implementation
from kvspec.record import Header, Operation

GENERATOR = "kvspec.vectors"
GENERATOR_VERSION = 1
"""Another one writes other bytes for the same graph."""

STATS_MOVES = 25
"""After so many moves the statistics are taken, so that a wrong one is seen soon."""


def record_of(
    configuration: Configuration,
    graph: Graph,
    walk: Sequence[Move],
    oracle: Implementation,
    scenario: str,
) -> tuple[Header, tuple[Operation, ...], Mapping[str, int]]:
    """The header, the operations and the counters of a walk.

    Raises KVSpecError where the oracle does not come to the states that the graph says: what it
    does depends on something that is in no snapshot.
    """
    recorder = Recorder(oracle, configuration.config, scenario=scenario, check_invariants=False)
    walker = _Walker(configuration, recorder)
    here = 0
    for number, move in enumerate(walk, 1):
        here = graph.edges[here][move]
        walker.go(move)
        if graph.numbers.get(named(configuration, walker.state).fingerprint) != here:
            raise KVSpecError(f"move {number} of a walk in {configuration.name!r} leads elsewhere")
        if number % STATS_MOVES == 0 or number == len(walk):
            recorder.play("make_prefix_cache_stats")
    header = replace(recorder.header, source=f"{GENERATOR} {GENERATOR_VERSION}")
    plain = tuple(replace(operation, message=None) for operation in recorder.operations)
    return header, plain, recorder.coverage()


class _Walker:
    """Makes moves on the manager of a recorder."""

    def __init__(self, configuration: Configuration, recorder: Recorder) -> None:
        self.configuration = configuration
        self.recorder = recorder
        self.world = start(configuration.num_requests)

    @property
    def state(self) -> State:
        """Where the walk is."""
        return State(self.recorder.snapshot, self.world)

    def go(self, move: Move) -> None:
        """One move; what it queued is taken, so that the next begins with empty queues."""
        before = self.state
        real = in_state(move, named(self.configuration, before))
        self.world = play(self.configuration, before, real, self._do) or self.world
        if self.recorder.snapshot != before.snapshot:
            self.recorder.play("take_events")
            if self.recorder.snapshot.new_block_ids:
                self.recorder.play("take_new_block_ids")

    def _do(
        self,
        name: str,
        request_id: str | None = None,
        arguments: Mapping[str, Any] | None = None,
        *,
        illegal: str | None = None,
    ) -> Any:
        said = {
            key: value
            for key, value in (arguments or {}).items()
            if key not in DEFAULT_ARGUMENTS or value != DEFAULT_ARGUMENTS[key]
        }
        return self.recorder.play(name, request_id, **said)
