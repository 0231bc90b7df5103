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
from functools import cached_property
from typing import Any, cast

from kvcheck.tools.replay.driver import Driver
from kvcheck.tools.replay.options import ReplayOptions
from kvcheck.tools.replay.trace import TraceRecord
from kvcheck.watch.forwarding import Forwarding
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


@dataclass(frozen=True)
class Group:
    """`requests`: their numbers. `counts`: tokens to be computed, or the token that is appended.

    `granted`: whether there was room (always, where nothing is asked).
    """

    act: Act
    requests: tuple[int, ...]
    counts: tuple[int, ...]
    granted: tuple[bool, ...]


@dataclass(frozen=True)
class Step:
    """`arrived`: numbers of the requests made before the step. `groups` in the order of the calls.

    A step ends with at most one APPEND and one FINISH.
    """

    arrived: tuple[int, ...]
    groups: tuple[Group, ...]


@dataclass(frozen=True)
class Script:
    """All steps. `prompts[i]`: the tokens of request i; the options are those of the replay."""

    options: ReplayOptions
    prompts: tuple[array[int], ...]
    steps: tuple[Step, ...]

    @property
    def num_blocks(self) -> int:
        return self.options.num_blocks

    @property
    def num_requests(self) -> int:
        return len(self.prompts)

    @property
    def max_new_blocks(self) -> int:
        """More than one step can bring, hits included."""
        return max((self._new_blocks(step) for step in self.steps), default=0)

    def _new_blocks(self, step: Step) -> int:
        """Count the new blocks of a step: all tokens of a new request, the new tokens of others."""
        size = self.options.block_size
        total = 0
        for group in step.groups:
            for number, count in zip(group.requests, group.counts, strict=True):
                if group.act is Act.ADMIT:
                    total += 1 + (len(self.prompts[number]) + self.generated[number]) // size
                elif group.act is Act.RUN:
                    total += 1 + count // size
        return total

    @cached_property
    def generated(self) -> Counter[int]:
        appended = (group for step in self.steps for group in step.groups)
        return Counter(
            number for group in appended if group.act is Act.APPEND for number in group.requests
        )

    def count(self, act: Act, *, granted: bool = True) -> int:
        groups = (group for step in self.steps for group in step.groups if group.act is act)
        return sum(group.granted.count(granted) for group in groups)


def record(
    implementation: Implementation,
    options: ReplayOptions,
    records: Iterable[TraceRecord],
    *,
    trace_name: str,
) -> Script:
    """Replay the records once and write down what was done. Raises what `Driver.run` raises."""
    recorder = _Recorder(implementation)
    driver = Driver(
        cast(Implementation, recorder),
        options,
        records,
        trace_name=trace_name,
        check_invariants=False,
    )
    driver.run()
    return Script(options, tuple(recorder.prompts), tuple(recorder.finished_steps()))


@dataclass
class _Doing:
    act: Act
    request: int
    count: int = 0
    granted: bool = True


class _Recorder:
    """The implementation that the driver sees; `events` by step, `prompts` by request."""

    def __init__(self, inner: Implementation) -> None:
        self.inner = inner
        self.prompts: list[array[int]] = []
        self.steps: list[tuple[list[int], list[_Doing]]] = []
        self._numbers: dict[str, int] = {}

    def create(self, config: ManagerConfig, *, check_invariants: bool) -> KVCacheManager:
        """Make a manager without events and statistics, which are not read here."""
        plain = replace(config, enable_events=False, log_stats=False)
        inner = self.inner.create(plain, check_invariants=check_invariants)
        return Forwarding(inner, self.perform)  # type: ignore[abstract]  # made of the interface

    def make_request(self, manager: Any, given: RequestInput) -> Request:
        number = len(self.prompts)
        self._numbers[given.request_id] = number
        self.prompts.append(array("q", given.prompt_token_ids))
        self.steps[-1][0].append(number)
        return self.inner.make_request(manager.inner, given)

    def append_tokens(self, manager: Any, request: Request, token_ids: Sequence[int]) -> None:
        """Note that a token is generated."""
        self.note(Act.APPEND, request, token_ids[0])
        self.inner.append_tokens(manager.inner, request, token_ids)

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
            self.steps.append(([], []))
        elif name == "allocate_slots" and request is not None:
            act = Act.RUN if arguments["new_computed_blocks"] is None else Act.ADMIT
            self.note(act, request, arguments["num_new_tokens"], granted=answer is not None)
        elif name == "free" and request is not None:
            self.note(Act.FINISH, request)  # whether it was a preemption is known at the end
        return answer

    def note(self, act: Act, request: Request, count: int = 0, *, granted: bool = True) -> None:
        number = self._numbers[request.request_id]
        self.steps[-1][1].append(_Doing(act, number, count, granted))

    def finished_steps(self) -> list[Step]:
        """Return the steps with adjacent acts grouped.

        A release is a preemption if the request is admitted again. Appending a token and ending a
        request are independent: tokens are put first in a step.
        """
        admitted_later: set[int] = set()
        steps = []
        for arrived, doings in reversed(self.steps):
            for doing in reversed(doings):
                if doing.act is Act.ADMIT:
                    admitted_later.add(doing.request)
                elif doing.act is Act.FINISH and doing.request in admitted_later:
                    doing.act = Act.PREEMPT
            ends = (Act.APPEND, Act.FINISH)
            ordered = [each for each in doings if each.act not in ends]
            ordered += [each for act in ends for each in doings if each.act is act]
            steps.append(Step(tuple(arrived), tuple(_grouped(ordered))))
        return steps[::-1]


def _grouped(doings: list[_Doing]) -> list[Group]:
    groups: list[list[_Doing]] = []
    for doing in doings:
        if groups and groups[-1][-1].act is doing.act:
            groups[-1].append(doing)
        else:
            groups.append([doing])
    return [
        Group(
            each[0].act,
            tuple(doing.request for doing in each),
            tuple(doing.count for doing in each),
            tuple(doing.granted for doing in each),
        )
        for each in groups
    ]
