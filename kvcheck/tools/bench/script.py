"""A replay as a script: the scheduler's actions, recorded once, to be repeated with every manager.

The scheduler follows the rules of `kvspec replay`. Which requests it runs, admits, refuses and
preempts is recorded with one implementation; it would do the same with another that gives the same
results. So a script can be timed without the scheduler around it.
"""

from __future__ import annotations

from array import array
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import Enum, auto
from itertools import groupby
from typing import Any, NamedTuple, cast

from kvcheck.tools.replay.driver import Driver
from kvcheck.tools.replay.options import ReplayOptions
from kvcheck.tools.replay.trace import TraceRecord
from kvcheck.watch.forwarding import Forwarding, ForwardingImplementation
from kvspec.config import ManagerConfig
from kvspec.interface import Implementation, KVCacheManager
from kvspec.request import Request, RequestInput


class Act(Enum):
    """The acts on requests; adjacent equal ones form a group."""

    PREEMPT = auto()
    RUN = auto()
    ADMIT = auto()
    APPEND = auto()
    FINISH = auto()


class Group(NamedTuple):
    """Adjacent equal acts of a step.

    `requests`: their numbers. `counts`: tokens to be computed, or the token that is appended.
    `granted`: whether there was room (always, where nothing is asked).
    """

    act: Act
    requests: tuple[int, ...]
    counts: tuple[int, ...]
    granted: tuple[bool, ...]


class Step(NamedTuple):
    """It ends with at most one APPEND and one FINISH. `num_arrived`: requests made so far."""

    num_arrived: int
    groups: tuple[Group, ...]


@dataclass(frozen=True)
class Script:
    """All steps. `prompts[i]`: the tokens of request i; the options are those of the replay."""

    options: ReplayOptions
    prompts: tuple[array[int], ...]
    steps: tuple[Step, ...]

    def of(self, *acts: Act) -> Iterable[Group]:
        return (group for step in self.steps for group in step.groups if group.act in acts)

    def count(self, act: Act, *, granted: bool = True) -> int:
        return sum(group.granted.count(granted) for group in self.of(act))

    @property
    def max_new_blocks(self) -> int:
        """More than one step can bring: all tokens of a new request, the new tokens of others."""
        generated = Counter(number for group in self.of(Act.APPEND) for number in group.requests)
        most = 0
        for step in self.steps:
            added = 0
            for act, requests, counts, _ in step.groups:
                if act is Act.ADMIT:
                    counts = tuple(len(self.prompts[n]) + generated[n] for n in requests)
                if act in (Act.ADMIT, Act.RUN):
                    added += sum(1 + count // self.options.block_size for count in counts)
            most = max(most, added)
        return most


def record(
    implementation: Implementation,
    options: ReplayOptions,
    records: Iterable[TraceRecord],
    *,
    trace_name: str,
) -> Script:
    """Replay the records once and write down what was done. Raises what `Driver.run` raises."""
    recorder = cast(Any, _Recorder(implementation))
    Driver(recorder, options, records, trace_name=trace_name, check_invariants=False).run()
    return Script(options, tuple(recorder.prompts), tuple(recorder.finished_steps()))


class _Done(NamedTuple):
    act: Act
    request: int
    num_tokens: int = 0
    granted: bool = True


class _Recorder(ForwardingImplementation):
    """The implementation that the driver sees: it writes down arrivals and acts by step."""

    def __init__(self, inner: Implementation) -> None:
        super().__init__(inner)
        self.prompts: list[array[int]] = []
        self.steps: list[tuple[int, list[_Done]]] = []
        self._numbers: dict[str, int] = {}

    def create(self, config: ManagerConfig, *, check_invariants: bool) -> KVCacheManager:
        """Make a manager without events and statistics, which are not read here."""
        plain = replace(config, enable_events=False, log_stats=False)
        inner = self.inner.create(plain, check_invariants=check_invariants)
        return Forwarding(inner, self.perform)  # type: ignore[abstract]  # made of the interface

    def make_request(self, manager: Any, given: RequestInput) -> Request:
        self._numbers[given.request_id] = len(self.prompts)
        self.prompts.append(array("q", given.prompt_token_ids))
        self.steps[-1] = len(self.prompts), self.steps[-1][1]
        return super().make_request(manager, given)

    def append_tokens(self, manager: Any, request: Request, token_ids: Sequence[int]) -> None:
        self.note(Act.APPEND, request, token_ids[0])
        super().append_tokens(manager, request, token_ids)

    def perform(
        self,
        name: str,
        make_call: Callable[[], Any],
        arguments: Mapping[str, Any],
        request: Request | None,
    ) -> Any:
        """Make a call of the driver and record it; an admission has a hit, which may be empty."""
        answer = make_call()
        if name == "new_step_starts":
            self.steps.append((len(self.prompts), []))
        elif name == "allocate_slots" and request is not None:
            act = Act.RUN if arguments["new_computed_blocks"] is None else Act.ADMIT
            self.note(act, request, arguments["num_new_tokens"], granted=answer is not None)
        elif name == "free" and request is not None:
            self.note(Act.FINISH, request)  # whether it was a preemption is known at the end
        return answer

    def note(self, act: Act, request: Request, count: int = 0, *, granted: bool = True) -> None:
        self.steps[-1][1].append(_Done(act, self._numbers[request.request_id], count, granted))

    def finished_steps(self) -> list[Step]:
        """Return the steps with adjacent acts grouped.

        A release is a preemption if the request is admitted again. Appending a token and ending a
        request are independent: tokens are put first in a step.
        """
        admitted_later: set[int] = set()
        steps = []
        for num_arrived, acts in reversed(self.steps):
            done: list[_Done] = []
            for each in reversed(acts):
                if each.act is Act.ADMIT:
                    admitted_later.add(each.request)
                again = each.act is Act.FINISH and each.request in admitted_later
                done.insert(0, each._replace(act=Act.PREEMPT) if again else each)
            ends = (Act.APPEND, Act.FINISH)
            done.sort(key=lambda each: (each.act in ends, each.act is Act.FINISH))
            steps.append(Step(num_arrived, tuple(_grouped(done))))
        return steps[::-1]


def _grouped(done: list[_Done]) -> Iterable[Group]:
    for act, same in groupby(done, key=lambda each: each.act):
        _, requests, counts, granted = zip(*same, strict=True)
        yield Group(act, requests, counts, granted)
