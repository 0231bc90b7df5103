"""A replay as a script: the scheduler's actions, recorded once, to be repeated with every manager.

The scheduler follows the rules of `kvspec replay`. Which requests it runs, admits, refuses and
preempts is recorded with one implementation; it would do the same with another that gives the same
results. So a script can be timed without the scheduler around it.
"""

from __future__ import annotations

import itertools
from array import array
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, replace
from typing import Any, cast

from kvcheck.tools.bench import calls as phases
from kvcheck.tools.bench.script import ROOM, Act, Case, Do, Step
from kvcheck.tools.replay.driver import Driver
from kvcheck.tools.replay.options import ReplayOptions
from kvcheck.tools.replay.trace import TraceRecord
from kvcheck.watch.calls import Call
from kvcheck.watch.forwarding import Forwarding, ForwardingImplementation
from kvspec.config import ManagerConfig
from kvspec.interface import Implementation, KVCacheManager
from kvspec.request import Request, RequestInput

PHASES: Mapping[Act, str] = {
    Act.MAKE: phases.REPLAY_HASH,
    Act.ADMIT: phases.REPLAY_ADMIT,
    Act.RUN: phases.REPLAY_RUN,
    Act.APPEND: phases.REPLAY_APPEND,
    Act.PREEMPT: phases.REPLAY_FREE,
    Act.FREE: phases.REPLAY_FREE,
}

ARRIVE_TOGETHER = 64
"""Requests are made in batches of this size, when the first of a batch arrives: making one fills
the processor's caches with its prompt, which would affect the timing of the next step.
"""


def recorded(
    implementation: Implementation,
    options: ReplayOptions,
    records: Iterable[TraceRecord],
    *,
    trace_name: str,
) -> Case:
    """Replay the records once and write down what was done. Raises what `Driver.run` raises."""
    recorder = _Recorder(implementation)
    made = cast(Any, recorder)
    driver = Driver(made, options, records, trace_name=trace_name, check_invariants=False)
    counts = driver.run().counts
    steps = recorder.steps()
    facts = {
        "trace": trace_name,
        "num_requests": counts.requests,
        "options": asdict(options),
        "steps": counts.steps,
        "preemptions": counts.preemptions,
        "generated_tokens": counts.tokens_generated,
    }
    return Case(
        "replay",
        f"{trace_name}, {counts.requests} requests",
        phases.REPLAY_PHASES,
        options.num_blocks,
        options.max_model_len_tokens,
        facts,
        lambda num_rounds: itertools.chain([()], itertools.repeat(steps, num_rounds)),
        is_anew=True,
    )


class _Recorder(ForwardingImplementation):
    """The implementation that the driver sees: it writes down the acts of each step."""

    def __init__(self, inner: Implementation) -> None:
        super().__init__(inner)
        self.prompts: list[array[int]] = []
        self.done: list[list[Do]] = []
        self._numbers: dict[str, int] = {}
        self._released: dict[int, tuple[list[Do], int]] = {}

    def create(self, config: ManagerConfig, **options: Any) -> KVCacheManager:
        """Make a manager without events and statistics, which are not read here."""
        plain = replace(config, enable_events=False, log_stats=False)
        inner = self.inner.create(plain, **options)
        return Forwarding(inner, self.perform)  # type: ignore[abstract]  # made of the interface

    def make_request(self, manager: Any, given: RequestInput) -> Request:
        self._numbers[given.request_id] = len(self.prompts)
        self.prompts.append(array("q", given.prompt_token_ids))
        return super().make_request(manager, given)

    def append_tokens(self, manager: Any, request: Request, token_ids: Sequence[int]) -> None:
        self._note(Act.APPEND, request, token_ids[0])
        super().append_tokens(manager, request, token_ids)

    def perform(self, call: Call, make: Callable[[], Any]) -> Any:
        """Make a call of the driver and record it; an admission has a hit, which may be empty."""
        answer, name, request, arguments = make(), call.name, call.request, call.arguments
        if name == "new_step_starts":
            self.done.append([])
        elif name == "allocate_slots" and request is not None:
            act, want = Act.RUN, ROOM
            if arguments["new_computed_blocks"] is not None:
                act, want = Act.ADMIT, arguments["num_new_computed_tokens"]
            self._note(act, request, arguments["num_new_tokens"], None if answer is None else want)
        elif name == "free" and request is not None:
            self._note(Act.FREE, request)
        return answer

    def _note(self, act: Act, request: Request, given: int = 0, want: Any = None) -> None:
        """Note an act; a release is a preemption if the request is admitted again."""
        number, acts = self._numbers[request.request_id], self.done[-1]
        if act is Act.ADMIT and number in self._released:
            then, at = self._released.pop(number)
            then[at] = then[at]._replace(act=Act.PREEMPT)
        if act is Act.FREE:
            self._released[number] = acts, len(acts)
        acts.append(Do(act, (number,), (given,), wants=(want,)))

    def steps(self) -> list[Step]:
        """Return the steps with adjacent equal acts as one.

        Appending a token and ending a request are independent: tokens are put first.
        """
        made, steps = 0, list[Step]()
        for acts in self.done:
            step: list[Do] = []
            while any(made in do.requests for do in acts):
                lot = range(made, min(made + ARRIVE_TOGETHER, len(self.prompts)))
                step.append(Do(Act.MAKE, lot, self.prompts[made : lot.stop], PHASES[Act.MAKE]))
                made = lot.stop
            acts.sort(key=lambda do: (do.act in (Act.APPEND, Act.FREE), do.act is Act.FREE))
            groups = itertools.groupby(acts, lambda do: do.act)
            steps.append([*step, *(_together(act, list(same)) for act, same in groups)])
        return steps


def _together(act: Act, acts: Sequence[Do]) -> Do:
    requests, given, wants = (
        tuple(each for part in parts for each in part)
        for parts in zip(*((do.requests, do.given, do.wants) for do in acts), strict=True)
    )
    allocates = act in (Act.ADMIT, Act.RUN)
    return Do(act, requests, given, PHASES[act], wants=wants if allocates else ())
