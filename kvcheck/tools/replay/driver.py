"""Continuous batching on a logical clock: run a trace through a manager, step by step.

spec/replay.md gives the rules, in the order of the methods of `Driver`. Nothing here depends on
time, so equal input gives equal numbers (except the seconds).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from time import perf_counter
from typing import cast

from kvcheck.play.scheduler import admitted, preempted
from kvcheck.tools.replay.explain import Explainer
from kvcheck.tools.replay.options import ReplayOptions
from kvcheck.tools.replay.result import Counts, Moment, ReplayResult
from kvcheck.tools.replay.series import Bucket, Series
from kvcheck.tools.replay.tiered import TieredManager
from kvcheck.tools.replay.tokens import OUTPUT_TOKEN_BASE, output_tokens, prompt_tokens
from kvcheck.tools.replay.trace import TraceError, TraceRecord
from kvcheck.tools.replay.turns import Turns
from kvspec.domains import COUNT_MAX
from kvspec.errors import KVSpecError
from kvspec.events import BlockRemoved, Event
from kvspec.interface import Implementation, KVCacheManager
from kvspec.request import Request, RequestInput


class ReplayError(KVSpecError):
    """The implementation gave a result that no manager may give; the replay cannot continue.

    `step` counts from 0; `line` is the request's line in the trace.
    """

    def __init__(self, step: int, line: int, problem: str) -> None:
        super().__init__(f"step {step}, request of line {line}: {problem}")
        self.step = step
        self.line = line
        self.problem = problem


@dataclass(slots=True, eq=False)
class _Sequence:
    """A request in the driver; its `request` has the id and the computed tokens.

    It has counts instead of a `kvcheck.play.scheduler.Seat`: this loop is timed, and prompts are
    long. `nodes` are its prefixes in the explanation; empty until it is admitted. `output`: the
    tokens to generate, if they are known.
    """

    record: TraceRecord
    request: Request
    num_tokens: int
    output: list[int]
    scheduled: int = 0
    generated: int = 0
    nodes: list[int] = field(default_factory=list)


class Driver:
    """One replay of one trace. `run` may be called once.

    `trace_name` is the trace's name in errors. `check_invariants` is passed to the implementation.
    `on_progress` is called after every step with the driver; `moment` has the details.
    """

    def __init__(
        self,
        implementation: Implementation,
        options: ReplayOptions,
        records: Iterable[TraceRecord],
        *,
        trace_name: str,
        check_invariants: bool = True,
        on_progress: Callable[[Driver], None] | None = None,
    ) -> None:
        self._implementation = implementation
        self._options = options
        self._made: KVCacheManager = implementation.create(
            options.manager_config(), check_invariants=check_invariants
        )
        self._manager = self._made
        self._trace_name = trace_name
        self._on_progress = on_progress
        self._running: list[_Sequence] = []
        self._waiting: deque[_Sequence] = deque()  # preempted ones, then at most one new one
        self._turns = Turns(map(self._checked, records))
        self._clock_ms = self._last_step_ms = 0
        self._counts = Counts()
        if options.num_host_blocks:
            both = TieredManager(implementation, self._made, options.num_host_blocks, self._counts)
            self._manager = cast(KVCacheManager, both)
        self._explainer = Explainer(options.block_size)
        self._series = Series()
        self._step_bucket = Bucket()

    def run(self) -> ReplayResult:
        """Replay the records to the end.

        Raises TraceError for a request larger than the pool, ReplayError when the implementation
        keeps the replay from going on, and whatever the implementation raises.
        """
        began = perf_counter()
        self._turns.read()
        while self._running or self._waiting or self._turns.front is not None:
            self._step()
            if self._on_progress is not None:
                self._on_progress(self)
        seconds = perf_counter() - began
        waterfall = self._explainer.waterfall(self._counts.tokens_hit)
        return ReplayResult(self._options, self._counts, seconds, waterfall, self._series)

    def moment(self) -> Moment:
        """Return the current figures of the replay."""
        preempted = waiting = sum(bool(each.nodes) for each in self._waiting)
        if self._options.arrival == "timestamp":
            waiting = len(self._waiting) + self._turns.num_due(self._clock_ms)
        usage, running = self._step_bucket.usage_sum, len(self._running)
        return Moment(replace(self._counts), self._clock_ms, usage, running, preempted, waiting)

    def moments(self) -> list[Moment]:
        """Return the figures of the only engine."""
        return [self.moment()]

    @property
    def series(self) -> Series:
        """Usage and hits over the steps so far; it grows."""
        return self._series

    def _step(self) -> None:
        """Do one step: schedule, sample the usage, generate, drain the events."""
        if self._options.arrival == "timestamp" and not self._running and not self._waiting:
            self._jump()
        self._step_bucket = Bucket(steps=1)
        passed = (self._clock_ms - self._last_step_ms) // self._options.step_ms
        for _ in range(max(1, min(passed, 2 * self._options.num_steps_to_live))):  # KV-ORD-5
            self._manager.new_step_starts()
        self._last_step_ms = self._clock_ms
        budget, preempted = self._schedule_running()
        if not preempted:
            self._admit(budget)
        self._sample_usage()
        self._generate()
        self._drain_events()
        self._series.add_step(self._step_bucket)
        self._counts.steps += 1
        self._clock_ms += self._options.step_ms

    def _jump(self) -> None:
        """Move the idle clock to the first step at or after the next arrival."""
        record = self._turns.front
        if record is not None and record.timestamp_ms > self._clock_ms:
            step_ms = self._options.step_ms
            self._clock_ms = -(-record.timestamp_ms // step_ms) * step_ms

    def _schedule_running(self) -> tuple[int, bool]:
        """Give running requests their tokens, oldest first.

        Returns the token budget that is left, and whether a request was preempted.
        """
        budget = self._options.max_tokens_per_step
        running = self._running
        preempted = False
        position = 0
        while position < len(running) and budget:
            sequence = running[position]
            num_new = self._portion(sequence, sequence.request.num_computed_tokens, budget)
            while num_new and not self._allocate(sequence, num_new):
                preempted = True
                self._preempt_youngest(sequence)
                if len(running) == position:
                    return budget, preempted
            budget -= num_new
            position += 1
        return budget, preempted

    def _portion(self, sequence: _Sequence, computed: int, budget: int) -> int:
        """Return the tokens that a request computes next: where states are kept at the ends of
        blocks, up to such an end, if there is one."""
        end = min(sequence.num_tokens, computed + budget)
        whole = end - end % self._options.step_multiple
        if whole > computed:
            return whole - computed
        return end - computed if end == sequence.num_tokens else 0

    def _allocate(self, sequence: _Sequence, num_new: int) -> bool:
        """Allocate slots for the next tokens of a running request; False when refused."""
        if self._manager.allocate_slots(sequence.request, num_new) is None:
            return False
        start, record = sequence.request.num_computed_tokens, sequence.record
        if start < record.cached_length:
            end = min(start + num_new, record.cached_length)
            self._explainer.registered(sequence.nodes, start, end)
        sequence.scheduled = num_new
        return True

    def _preempt_youngest(self, refused: _Sequence) -> None:
        """Take everything from the request admitted last; it waits in front of all others."""
        running = self._running
        if len(running) == 1:
            problem = "was refused slots although it is alone and the pool has room for it"
            raise ReplayError(self._counts.steps, refused.record.line, problem)
        victim = running.pop()
        self._manager.free(victim.request)
        victim.scheduled = 0
        preempted(victim.request)
        self._waiting.appendleft(victim)
        self._counts.preemptions += 1
        self._step_bucket.preemptions += 1

    def _admit(self, budget: int) -> None:
        """Take requests from the front of the queue while tokens and places are left."""
        scheduled_any = budget < self._options.max_tokens_per_step
        while budget and len(self._running) < self._options.max_running:
            sequence = self._first_waiting()
            if sequence is None:
                return
            num_new = self._admit_one(sequence, budget, scheduled_any)
            if num_new == 0:
                return
            budget -= num_new
            scheduled_any = True

    def _first_waiting(self) -> _Sequence | None:
        """Return the request at the front of the queue, making it from its record first."""
        if self._waiting:
            return self._waiting[0]
        record = self._turns.front
        if record is None:
            return None
        if self._options.arrival == "timestamp" and record.timestamp_ms > self._clock_ms:
            return None
        priority = 0
        if self._options.policy == "priority":  # a trace's may be negative
            priority = min(max(record.priority + COUNT_MAX // 2, 0), COUNT_MAX)
        request = self._implementation.make_request(
            self._made,
            RequestInput(f"line-{record.place}", prompt_tokens(record), priority=priority),
        )
        self._waiting.append(_Sequence(record, request, record.input_length, output_tokens(record)))
        self._turns.take()
        return self._waiting[0]

    def _checked(self, record: TraceRecord) -> TraceRecord:
        """Return the record, which was just read; refuse one that the whole pool cannot hold."""
        capacity = self._options.max_model_len_tokens
        needed = record.needed_length
        if needed > capacity:
            name = "input_length" if record.input_length > capacity else "output_length"
            lengths = f"{record.input_length} tokens in, {record.output_length} out"
            problem = f"the request needs {self._options.too_long(needed, lengths)}"
            raise TraceError(self._trace_name, record.line, name, problem)
        return record

    def _admit_one(self, sequence: _Sequence, budget: int, scheduled_any: bool) -> int:
        """Look the request up and give it its first tokens; how many, or 0 when refused."""
        request = sequence.request
        prefix = self._manager.get_computed_blocks(request)
        hit = prefix.hit_length_tokens
        if not 0 <= hit < sequence.num_tokens:
            problem = f"a hit of {hit} tokens, of {sequence.num_tokens}; the last is never a hit"
            raise ReplayError(self._counts.steps, sequence.record.line, problem)
        num_new = self._portion(sequence, hit, budget)
        if num_new == 0:
            return 0  # until a step has the tokens of a block
        blocks = self._manager.allocate_slots(
            request,
            num_new,
            num_new_computed_tokens=hit,
            new_computed_blocks=prefix.blocks,
            has_scheduled_reqs=scheduled_any,
        )
        if blocks is None:
            if not self._running:
                problem = "was refused although nothing runs and the pool has room for it"
                raise ReplayError(self._counts.steps, sequence.record.line, problem)
            return 0
        self._waiting.popleft()
        self._running.append(sequence)
        self._count_admission(sequence, hit)
        end = min(hit + num_new, sequence.record.cached_length)
        self._explainer.registered(sequence.nodes, 0, end)
        sequence.scheduled = num_new
        admitted(request, hit)
        return num_new

    def _count_admission(self, sequence: _Sequence, hit: int) -> None:
        """Count the look-up that led to an admission; after a preemption, apart."""
        counts = self._counts
        if sequence.nodes:
            counts.preempted_requests += 1
            counts.preempted_tokens_queried += sequence.num_tokens
            counts.preempted_tokens_hit += hit
            return
        counts.requests += 1
        counts.tokens_queried += sequence.num_tokens
        counts.tokens_hit += hit
        self._step_bucket.queried_tokens += sequence.num_tokens
        self._step_bucket.hit_tokens += hit
        sequence.nodes = self._explainer.admitted(sequence.record, hit)

    def _sample_usage(self) -> None:
        """Sample the used share of the pool, after scheduling and before any release."""
        usage = self._manager.usage
        self._step_bucket.usage_sum = usage
        self._step_bucket.usage_max = usage
        self._counts.usage_sum += usage
        self._counts.peak_usage = max(self._counts.peak_usage, usage)

    def _generate(self) -> None:
        """Count the scheduled tokens as computed; fully computed requests get one more, or end."""
        still_running = []
        computed = 0
        for sequence in self._running:
            computed += sequence.scheduled
            now = sequence.request.num_computed_tokens + sequence.scheduled
            sequence.request.num_computed_tokens = now
            sequence.scheduled = 0
            if now < sequence.num_tokens or not self._finish_or_append(sequence):
                still_running.append(sequence)
        self._running = still_running
        self._counts.tokens_computed += computed

    def _finish_or_append(self, sequence: _Sequence) -> bool:
        """Append one generated token; True when that (or the prompt) was the last and it ended."""
        output_length = sequence.record.output_length
        if sequence.generated < output_length:
            known = sequence.output
            unknown = OUTPUT_TOKEN_BASE + self._counts.tokens_generated
            token = known[sequence.generated] if known else unknown
            self._implementation.append_tokens(self._made, sequence.request, (token,))
            self._counts.tokens_generated += 1
            sequence.generated += 1
            sequence.num_tokens += 1
        if sequence.generated < output_length:
            return False
        self._manager.free(sequence.request)
        self._ended(sequence.record)
        return True

    def _ended(self, record: TraceRecord) -> None:
        """Let the turns go on that repeat the answer."""
        self._turns.ended(record)

    def _drain_events(self) -> Sequence[Event]:
        """Count the keys that left the cache in this step; all that happened in it."""
        evictions = 0
        events = self._manager.take_events()
        for event in events:
            if isinstance(event, BlockRemoved):
                evictions += len(event.block_hashes)
        self._counts.evictions += evictions
        self._step_bucket.evictions = evictions
        return events
