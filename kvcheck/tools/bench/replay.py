"""Run a script on a manager, from an empty pool to the last request.

With single calls: one call after another, timed by act. With batched calls: one `step` for each
step of the script, or more if a request is preempted in the middle, as in an engine.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from kvcheck.tools.bench.cases import ReplayCase
from kvcheck.tools.bench.script import Act, Group, Step
from kvcheck.tools.bench.stopwatch import Turn
from kvcheck.tools.bench.work import BatchedWork, Part, Work
from kvspec.batched import StepPlan, StepResult

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

RESULTS = "replay"
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


class ReplayScenario:
    """The scenario of a `ReplayCase`. Every round begins with a new manager, made by `new_work`."""

    phases = REPLAY_PHASES

    def __init__(self, work: Work, new_work: Callable[[], Work], case: ReplayCase) -> None:
        self.work = work
        self.new_work = new_work
        self.case = case

    def prepare(self, timed: Turn) -> None:
        """Do nothing: the pool is empty at first."""

    def run_round(self, timed: Turn) -> None:
        work = self.new_work()
        player = Batched(work, timed) if isinstance(work, BatchedWork) else Single(work, timed)
        prompts, made = self.case.script.prompts, 0
        for step in self.case.script.steps:
            if step.num_arrived > made:
                for prompt in prompts[made : made + ARRIVE_TOGETHER]:
                    given = work.calls.make_input(f"request-{made}", list(prompt))
                    (player.requests[made],), _ = timed(REPLAY_HASH, 0, work.make([given]))
                    made += 1
            timed.keep(RESULTS, player.step(step))
            work.calls.end_step()
        player.end()
        timed.add_up(MANAGER, IN_ALL, 0)


class Single:
    def __init__(self, work: Work, timed: Turn) -> None:
        self.work = work
        self.timed = timed
        self.requests: dict[int, Any] = {}

    def step(self, step: Step) -> list[Any]:
        """Do the groups of a step in turn; granted tokens are computed once the step is planned."""
        self.work.calls.new_step_starts()
        results: list[Any] = []
        computed: list[tuple[Any, int]] = []
        for group in step.groups:
            requests = [self.requests[number] for number in group.requests]
            if group.act is Act.APPEND:
                _compute(computed)
                self.timed(REPLAY_APPEND, 0, self.work.append(requests, group.counts))
            elif group.act in (Act.PREEMPT, Act.FINISH):
                self.timed(REPLAY_FREE, 0, self.work.free(requests))
                for number, request in zip(group.requests, requests, strict=True):
                    request.num_computed_tokens = 0
                    if group.act is Act.FINISH:
                        del self.requests[number]
            else:
                granted = self._grant(group, requests)
                results += granted
                for request, count, got in zip(requests, group.counts, granted, strict=True):
                    if got is not None:
                        hit = got[0] if isinstance(got, tuple) else 0
                        computed.append((request, count + hit))
        _compute(computed)
        return results

    def _grant(self, group: Group, requests: list[Any]) -> Sequence[Any]:
        if group.act is Act.ADMIT:
            return self.timed(REPLAY_ADMIT, 0, self.work.admit(requests, group.counts))[1]
        return self.timed(REPLAY_RUN, 0, self.work.run(requests, group.counts))[1]

    def end(self) -> None:
        """Do nothing: no request is left."""


def _compute(computed: list[tuple[Any, int]]) -> None:
    for request, count in computed:
        request.num_computed_tokens += count
    computed.clear()


class Batched:
    """Step by step. `requests[i]`: the handle of request i; `ended`: released by the next step."""

    def __init__(self, work: BatchedWork, timed: Turn) -> None:
        self.work = work
        self.timed = timed
        self.requests: dict[int, int] = {}
        self.ended: list[int] = []

    def step(self, step: Step) -> list[Any]:
        """Plan the granted tokens; then append tokens, and end requests."""
        results: list[Any] = []
        for index, groups in enumerate(_plans(step.groups)):
            results += self._plan(groups, starts_step=index == 0)
        for group in step.groups:
            handles = [self.requests[number] for number in group.requests]
            if group.act is Act.APPEND:
                self.timed(REPLAY_APPEND, 0, self.work.append(handles, group.counts))
            elif group.act is Act.FINISH:
                self.ended += handles
                for number in group.requests:
                    del self.requests[number]
        return results

    def _plan(self, groups: Mapping[Act, Group], *, starts_step: bool) -> Sequence[Any]:
        """Make one call; returns results as single calls do."""
        batched, output = self.work.batched, self.work.output
        finished, self.ended = array("q", self.ended), []
        kept = [*map(self.work.request, finished)]  # destroying requests is not timed
        fields: dict[str, Any] = {"finished": finished} if finished else {}
        for act, group in groups.items():
            handles, *counts = FIELDS[act]
            fields[handles] = array("q", [self.requests[number] for number in group.requests])
            fields |= {name: array("q", group.counts) for name in counts}

        def work() -> StepResult:
            result = batched.step(StepPlan(**fields, starts_step=starts_step), output)
            if finished:
                batched.unregister(finished)
            return result

        def read(result: StepResult) -> list[Any]:
            kept.clear()
            return self.work.came(result, fields.get("decoding", ()), fields.get("new", ()))

        return self.timed(REPLAY_STEP, 0, Part(work, read))[1]

    def end(self) -> None:
        if self.ended:
            self.timed(REPLAY_STEP, 0, self.work.free(self.ended))


def _plans(groups: Sequence[Group]) -> list[dict[Act, Group]]:
    """Split groups into plans, each in the order in which a plan handles them; at least one."""
    order = tuple(FIELDS)
    plans: list[dict[Act, Group]] = [{}]
    for group in groups:
        if group.act in order:
            if any(order.index(act) >= order.index(group.act) for act in plans[-1]):
                plans.append({})
            plans[-1][group.act] = group
    return plans
