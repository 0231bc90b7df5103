"""One trace through several engines: the hits and the balance of a route.

spec/replay.md, section 9, gives the rules behind the numbers. Each engine is a `Driver` with its
own pool. A router sends requests, and knows the caches from their events (KV-FLEET-*).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

from kvcheck.tools.replay.driver import Driver
from kvcheck.tools.replay.options import ReplayOptions
from kvcheck.tools.replay.report import WIDTH, wrapped
from kvcheck.tools.replay.result import Counts, Moment, summed
from kvcheck.tools.replay.series import Bucket, Series
from kvcheck.tools.replay.tokens import prompt_tokens
from kvcheck.tools.replay.trace import TraceRecord
from kvcheck.tools.replay.turns import Turns
from kvspec.errors import InvalidArgumentError
from kvspec.events import Event, EventHash
from kvspec.fleet import Batch, PrefixIndex
from kvspec.interface import Implementation
from kvspec.request import RequestInput

ROUTES: tuple[str, ...] = ("round-robin", "least-loaded", "prefix", "least-work")
ALONE: tuple[str, ...] = ("one engine", "one, all pools")
"""The same trace through a single engine: with one pool, and with the blocks of all."""
FORMAT = "kvspec-replay-fleet"
FORMAT_VERSION = 1


class _Engine(Driver):
    """A driver that gets records one by one, and whose events go to the index after each step.

    `more`: called for a record when there is room in the line and none is in it. `tell`: called
    with each record that ended.
    """

    def __init__(
        self,
        name: str,
        implementation: Implementation,
        options: ReplayOptions,
        index: PrefixIndex,
        more: Callable[[_Engine], TraceRecord | None],
        tell: Callable[[TraceRecord], None],
        **settings: Any,
    ) -> None:
        self.name, self.line = name, deque[TraceRecord]()
        self._index, self._num_batches, self._tell = index, 0, tell
        super().__init__(implementation, options, _Line(self, more), **settings)

    @property
    def counts(self) -> Counts:
        """Counts so far."""
        return self._counts

    @property
    def is_idle(self) -> bool:
        """Nothing runs, waits or is on its way."""
        return not (self._running or self.has_line)

    @property
    def has_line(self) -> bool:
        """Whether a request is waiting for admission."""
        return bool(self._waiting or self._turns.front or self.line)

    @property
    def load_tokens(self) -> int:
        """Prompt tokens of the requests that were sent here and have not ended."""
        known = [sequence.record for sequence in (*self._running, *self._waiting)]
        known += [] if self._turns.front is None else [self._turns.front]
        return sum(record.input_length for record in (*known, *self.line))

    @property
    def work_tokens(self) -> int:
        """The same without tokens already computed or hit."""
        done = sum(
            min(sequence.request.num_computed_tokens, sequence.record.input_length)
            for sequence in self._running
        )
        return self.load_tokens - done

    def hashes(self, record: TraceRecord) -> Sequence[EventHash]:
        """Return the hashes of the prompt's full blocks as events show them."""
        made = self._implementation.make_request(
            self._manager, RequestInput(f"route-{record.place}", prompt_tokens(record))
        )
        return tuple(made.block_hashes)

    def send(self, record: TraceRecord) -> None:
        """Append a request to the line. TraceError if the pool cannot hold it."""
        self.line.append(record)
        self._turns.read()

    def step(self, clock_ms: int) -> Bucket:
        """Do one step at this time of the fleet; returns its counts."""
        self._clock_ms = clock_ms
        self._step()
        return self._step_bucket

    def moment(self) -> Moment:
        """Return the figures; requests in the line wait, and an idle engine uses nothing."""
        found = super().moment()
        usage = 0.0 if self.is_idle else found.usage
        return replace(found, usage=usage, num_waiting=found.num_waiting + len(self.line))

    def _ended(self, record: TraceRecord) -> None:
        super()._ended(record)
        self._tell(record)

    def _drain_events(self) -> Sequence[Event]:
        events = super()._drain_events()
        if events:
            batch = Batch(self._num_batches, float(self._counts.steps), tuple(events))
            self._index.hear(self.name, batch)
            self._num_batches += 1
        return events


@dataclass(frozen=True)
class _Line(Iterator[TraceRecord]):
    """The line of an engine; it may grow after it was exhausted."""

    engine: _Engine
    more: Callable[[_Engine], TraceRecord | None]

    def __next__(self) -> TraceRecord:
        record = self.engine.line.popleft() if self.engine.line else self.more(self.engine)
        if record is None:
            raise StopIteration
        return record


class Fleet:
    """One replay of one trace through several engines. `run` may be called once.

    `route` is one of `ROUTES`. `index`: an empty one, for the engines' events. `on_progress` is
    called after every step with the fleet; `moments` has the details.
    """

    def __init__(
        self,
        implementation: Implementation,
        options: ReplayOptions,
        records: Iterable[TraceRecord],
        *,
        num_engines: int,
        route: str,
        index: PrefixIndex,
        trace_name: str,
        check_invariants: bool = True,
        on_progress: Callable[[Fleet], None] | None = None,
    ) -> None:
        if num_engines < 1:
            raise InvalidArgumentError("num_engines", num_engines, "1 or more")
        if route not in ROUTES:
            raise InvalidArgumentError("route", route, "one of " + ", ".join(ROUTES))
        self._options, self._turns = options, Turns(records)
        self._is_timed = options.arrival == "timestamp"
        self._route, self._index, self._on_progress = route, index, on_progress
        # Names in the order of their numbers, so that ties go to the first.
        self._engines = [
            _Engine(
                f"engine-{number:05d}",
                implementation,
                options,
                index,
                self._more,
                self._turns.ended,
                trace_name=trace_name,
                check_invariants=check_invariants,
            )
            for number in range(num_engines)
        ]
        self._turns.read()
        self._clock_ms = self._steps = self._sent = 0
        self.series = Series()
        """Mean usage and hits of all engines over the steps so far; it grows."""

    def moments(self) -> list[Moment]:
        """Return the current figures of each engine."""
        return [engine.moment() for engine in self._engines]

    def run(self) -> dict[str, Any]:
        """Run to the end of the trace and return the route's report. Errors are those of
        `Driver.run`.
        """
        while self._turns.front is not None or not all(engine.is_idle for engine in self._engines):
            if self._is_timed:
                self._jump()
            self._send_due()
            step = Bucket()
            for engine in self._engines:
                if not engine.is_idle:
                    step.add(engine.step(self._clock_ms))
            self.series.add_step(
                replace(step, steps=1, usage_sum=step.usage_sum / len(self._engines))
            )
            self._steps += 1
            self._clock_ms += self._options.step_ms
            if self._on_progress is not None:
                self._on_progress(self)
        return self._report()

    def _jump(self) -> None:
        """Move the clock of an idle fleet to the first step at or after the next arrival."""
        record, step_ms = self._turns.front, self._options.step_ms
        if record is not None and all(engine.is_idle for engine in self._engines):
            self._clock_ms = max(self._clock_ms, -(-record.timestamp_ms // step_ms) * step_ms)

    def _send_due(self) -> None:
        """Send the requests that have arrived, in order.

        Where all of them are there at once, one is sent when the engine that the route wants has
        admitted all it has, so that the caches are known that the route looks at.
        """
        while (record := self._turns.front) is not None:
            if self._is_timed and record.timestamp_ms > self._clock_ms:
                return
            engine = self._chosen(record)
            if not self._is_timed and engine.has_line:
                return
            engine.send(self._taken())

    def _more(self, engine: _Engine) -> TraceRecord | None:
        """Return the next request if an engine has room within a step and the route chooses it."""
        record = self._turns.front
        if self._is_timed or record is None or self._chosen(record) is not engine:
            return None
        return self._taken()

    def _taken(self) -> TraceRecord:
        """Take the next request, which is sent to an engine now."""
        self._sent += 1
        return self._turns.take()

    def _chosen(self, record: TraceRecord) -> _Engine:
        """Return the engine that the route chooses; of equal ones the least loaded, then the
        first.
        """
        engines = self._engines
        if self._route == "round-robin":
            return engines[self._sent % len(engines)]
        if self._route == "least-loaded":
            return min(engines, key=lambda engine: engine.load_tokens)
        known = self._index.prefixes(engines[0].hashes(record))
        hit = {engine.name: known.get(engine.name, 0) for engine in engines}
        if self._route == "prefix":
            return min(engines, key=lambda engine: (-hit[engine.name], engine.load_tokens))
        size = self._options.block_size
        return min(  # the prompt itself is the same everywhere
            engines,
            key=lambda one: (one.work_tokens - hit[one.name] * size, one.load_tokens),
        )

    def _report(self) -> dict[str, Any]:
        """Return the report of the whole fleet and of each engine."""
        counts = [engine.counts for engine in self._engines]
        total = summed(counts)
        mean = total.tokens_computed / len(counts)
        of_all = ("requests", "tokens_queried", "tokens_hit", "hit_rate", "tokens_computed")
        of_each = ("requests", "tokens_queried", "tokens_hit", "tokens_computed", "steps")
        return {
            "route": self._route,
            **{name: getattr(total, name) for name in of_all},
            "imbalance": max(each.tokens_computed for each in counts) / mean if mean else 1.0,
            "preemptions": total.preemptions,
            "evictions": total.evictions,
            "steps": self._steps,
            "engines": [{name: getattr(each, name) for name in of_each} for each in counts],
        }


def fleet_report(
    routes: Sequence[dict[str, Any]], options: ReplayOptions, **context: Any
) -> dict[str, Any]:
    """Combine all routes of one trace into a JSON document; equal input gives equal values."""
    return {
        "format": FORMAT,
        "version": FORMAT_VERSION,
        **context,
        "options": asdict(options),
        "routes": list(routes),
    }


def fleet_verdict(content: dict[str, Any]) -> list[str]:
    """Return each route's hit rate, a line each."""
    trace, routes = content["trace"], content["routes"]
    return [f"{trace} by {each['route']}: {each['hit_rate']:.2%} of tokens hit" for each in routes]


def fleet_text(content: dict[str, Any]) -> str:
    """Return the routes as text, a row each."""
    options = content["options"]
    lines = [
        f"{content['trace']} through {content['engines']} engines of {content['implementation']},"
        f" each {options['num_blocks']:,} blocks of {options['block_size']} tokens",
        *wrapped((f"  note: {note}" for note in content["notes"]), WIDTH),
        "",
        f"{'route':<14}{'hit rate':>9}{'computed':>14}{'busiest':>9}{'steps':>9}{'preempted':>11}",
    ]
    for each in (*content["routes"], *content["alone"]):
        lines.append(
            f"{each['route']:<14}{each['hit_rate']:>9.2%}{each['tokens_computed']:>14,}"
            f"{each['imbalance']:>8.2f}×{each['steps']:>9,}{each['preemptions']:>11,}"
        )
    lines += ["", "busiest: tokens that the busiest engine computed, over the mean of all"]
    if content["alone"]:
        lines.append(f"{ALONE[1]}: one engine with the blocks of all")
    return "\n".join(lines) + "\n"
