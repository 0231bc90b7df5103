"""Run a script on a manager, from an empty pool to the last request.

With single calls: one call after another, timed by act. With batched calls: one `step` for each
step of the script, or more if a request is preempted in the middle, as in an engine.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from kvcheck.tools.bench.cases import ReplayCase
from kvcheck.tools.bench.script import Act, Group, Step
from kvcheck.tools.bench.stopwatch import Stopwatch
from kvcheck.tools.bench.work import BatchedWork, Part, Work
from kvspec.batched import StepPlan

REPLAY_HASH = "replay: hash"
REPLAY_APPEND = "replay: append"
REPLAY_ADMIT = "replay: admit"
REPLAY_RUN = "replay: running requests"
REPLAY_FREE = "replay: free"
REPLAY_STEP = "replay: step"
MANAGER = "replay: manager, in all"

IN_ALL = (REPLAY_ADMIT, REPLAY_RUN, REPLAY_FREE, REPLAY_STEP)
"""The phases that `MANAGER` adds up: everything but hashing."""

REPLAY_PHASES = (MANAGER, *IN_ALL, REPLAY_HASH, REPLAY_APPEND)

ANSWERS = "replay"
"""The name under which the results of a step are compared, whatever the call style."""

FIELDS: Mapping[Act, tuple[str, ...]] = {
    Act.PREEMPT: ("preempted",),
    Act.RUN: ("decoding", "decode_tokens"),
    Act.ADMIT: ("new", "max_new_tokens"),
}
"""Fields of a plan for each act, in the order in which a step handles them."""

ARRIVE_TOGETHER = 64
"""Requests are made in batches of this size, when the first of a batch arrives: making one fills
the processor's caches with its prompt, which would affect the timing of the next step.
"""

MakeWork = Callable[[], Work]


class ReplayScenario:
    """The scenario of a `ReplayCase`. Every round begins with a new manager, made by `new_work`."""

    phases = REPLAY_PHASES

    def __init__(self, work: Work, new_work: MakeWork, case: ReplayCase) -> None:
        self.work = work
        self.new_work = new_work
        self.case = case

    def prepare(self) -> None:
        """Do nothing: the pool is empty at first."""

    def run_round(self, timed: Stopwatch) -> None:
        work, script = self.new_work(), self.case.script
        player: Single | Batched = Single(work, timed)
        if isinstance(work, BatchedWork):
            player = Batched(work, timed)
        made = 0
        for step in script.steps:
            if step.arrived and step.arrived[-1] >= made:
                made = self._arrive(player, made)
            player.step(step)
        player.end()
        timed.add_up(MANAGER, IN_ALL, 0)

    def _arrive(self, player: Single | Batched, first: int) -> int:
        prompts = self.case.script.prompts[first : first + ARRIVE_TOGETHER]
        make_input = player.work.calls.make_input
        for number, prompt in enumerate(prompts, first):
            player.arrive(number, make_input(f"request-{number}", list(prompt)))
        return first + len(prompts)


class Single:
    """Call by call. `requests[i]`: request i."""

    def __init__(self, work: Work, timed: Stopwatch) -> None:
        self.work = work
        self.timed = timed
        self.requests: dict[int, Any] = {}

    def arrive(self, number: int, given: Any) -> None:
        (self.requests[number],), _ = self.timed(REPLAY_HASH, 0, self.work.make([given]))

    def step(self, step: Step) -> None:
        """Do the groups of a step in turn; granted tokens are computed once the step is planned."""
        self.work.calls.new_step_starts()
        answers: list[Any] = []
        computed: list[tuple[Any, int]] = []
        for group in step.groups:
            requests = [self.requests[number] for number in group.requests]
            if group.act is Act.APPEND:
                _compute(computed)
                part = self.work.append(requests, group.counts)
                self.timed(REPLAY_APPEND, 0, part)
            elif group.act in (Act.PREEMPT, Act.FINISH):
                self.timed(REPLAY_FREE, 0, self.work.free(requests))
                self._restart(group, requests)
            else:
                granted = self._grant(group, requests)
                answers += granted
                computed += _progress(requests, group.counts, granted)
        _compute(computed)
        self.timed.keep(ANSWERS, answers)
        self.work.calls.end_step()

    def _grant(self, group: Group, requests: list[Any]) -> Sequence[Any]:
        if group.act is Act.ADMIT:
            return self.timed(REPLAY_ADMIT, 0, self.work.admit(requests, group.counts))[1]
        return self.timed(REPLAY_RUN, 0, self.work.run(requests, group.counts))[1]

    def _restart(self, group: Group, requests: list[Any]) -> None:
        for number, request in zip(group.requests, requests, strict=True):
            if group.act is Act.FINISH:
                del self.requests[number]
            else:
                request.num_computed_tokens = 0

    def end(self) -> None:
        """Do nothing: no request is left."""


def _progress(
    requests: list[Any], counts: Sequence[int], answers: Sequence[Any]
) -> Iterator[tuple[Any, int]]:
    """Yield each granted request with the tokens it has then computed, including a hit."""
    for request, count, answer in zip(requests, counts, answers, strict=True):
        if answer is not None:
            yield request, count + (answer[0] if isinstance(answer, tuple) else 0)


def _compute(computed: list[tuple[Any, int]]) -> None:
    for request, count in computed:
        request.num_computed_tokens += count
    computed.clear()


class Batched:
    """Step by step. `handles[i]`: that of request i; `ended`: released by the next step."""

    def __init__(self, work: BatchedWork, timed: Stopwatch) -> None:
        self.work = work
        self.timed = timed
        self.handles: dict[int, int] = {}
        self.ended: list[int] = []

    def arrive(self, number: int, given: Any) -> None:
        (self.handles[number],), _ = self.timed(REPLAY_HASH, 0, self.work.make([given]))

    def step(self, step: Step) -> None:
        """Plan the granted tokens; then append tokens, and end requests."""
        answers: list[Any] = []
        for index, groups in enumerate(_plans(step.groups)):
            answers += self._plan(groups, starts_step=index == 0)
        for group in step.groups:
            handles = [self.handles[number] for number in group.requests]
            if group.act is Act.APPEND:
                part = self.work.append(self.work.group(handles), group.counts)
                self.timed(REPLAY_APPEND, 0, part)
            elif group.act is Act.FINISH:
                self.ended += handles
                for number in group.requests:
                    del self.handles[number]
        self.timed.keep(ANSWERS, answers)
        self.work.calls.end_step()

    def _plan(self, groups: dict[Act, Group], *, starts_step: bool) -> Sequence[Any]:
        """Make one call; returns results as single calls do."""
        batched, output = self.work.batched, self.work.rows.output
        finished, self.ended = array("q", self.ended), []
        kept = self.work.requests(finished)
        fields = self._fields(groups)
        if finished:
            fields["finished"] = finished
        decoding, new = fields.get("decoding", ()), fields.get("new", ())

        def work() -> Any:
            result = batched.step(StepPlan(**fields, starts_step=starts_step), output)
            if finished:
                batched.unregister(finished)
            return result

        def read(result: Any) -> list[Any]:
            kept.clear()
            came = self.work.came([*decoding, *new], result)
            admitted = zip(came[len(decoding) :], result.hit_tokens, strict=True)
            return [
                *came[: len(decoding)],
                *(None if ids is None else (hit, ids) for ids, hit in admitted),
            ]

        return self.timed(REPLAY_STEP, 0, Part(work, read))[1]

    def _fields(self, groups: dict[Act, Group]) -> dict[str, Any]:
        """Return the handles and counts of each group for a plan, without empty groups."""
        fields = {}
        for act, group in groups.items():
            handles, *counts = FIELDS[act]
            fields[handles] = array("q", [self.handles[number] for number in group.requests])
            fields |= {name: array("q", group.counts) for name in counts}
        return fields

    def end(self) -> None:
        if self.ended:
            self.timed(REPLAY_STEP, 0, self.work.free(array("q", self.ended)))


def _plans(groups: Sequence[Group]) -> list[dict[Act, Group]]:
    """Split groups into plans, each in the order in which a plan handles them; at least one."""
    order = tuple(FIELDS)
    plans: list[dict[Act, Group]] = [{}]
    last = -1
    for group in groups:
        if group.act not in order:
            continue
        rank = order.index(group.act)
        if rank <= last:
            plans.append({})
        plans[-1][group.act] = group
        last = rank
    return plans
