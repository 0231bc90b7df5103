"""Whole steps with one mistake each, which somebody must see."""

from __future__ import annotations

from array import array
from dataclasses import replace
from typing import Any

from kvref.implementation import ReferenceImplementation
from kvspec._check import COUNT_MAX
from kvspec.batched import BatchedManager, StepOutput, StepPlan, StepResult
from kvspec.errors import InvalidArgumentError
from kvspec.interface import KVCacheManager
from kvspec.request import RequestStatus
from kvspec.sequential import SequentialManager


class Preparing(SequentialManager):
    """A step of another plan than the one that was told."""

    def prepared(self, plan: StepPlan) -> StepPlan:
        """The other plan."""
        raise NotImplementedError

    def step(self, plan: StepPlan, output: StepOutput | None = None) -> StepResult:
        return super().step(self.prepared(plan), output)


class ForgetsTheBudget(Preparing):
    def prepared(self, plan: StepPlan) -> StepPlan:
        return replace(plan, token_budget=COUNT_MAX)


class GoesOnAfterARefusal(Preparing):
    def prepared(self, plan: StepPlan) -> StepPlan:
        return replace(plan, stops_at_refusal=False)


class ForgetsLookahead(Preparing):
    def prepared(self, plan: StepPlan) -> StepPlan:
        return replace(plan, num_lookahead_tokens=0)


class NeverStartsAStep(Preparing):
    def prepared(self, plan: StepPlan) -> StepPlan:
        return replace(plan, starts_step=False)


class ReservesForEverybody(Preparing):
    def prepared(self, plan: StepPlan) -> StepPlan:
        return replace(plan, reserved_blocks=0)


class TakesBoolsForInts(Preparing):
    def prepared(self, plan: StepPlan) -> StepPlan:
        if isinstance(plan.finished, list):
            return replace(plan, finished=[int(handle) for handle in plan.finished])
        return plan


class NamesThePlan(SequentialManager):
    def step(self, plan: StepPlan, output: StepOutput | None = None) -> StepResult:
        try:
            return super().step(plan, output)
        except InvalidArgumentError as error:
            raise InvalidArgumentError("plan", error.value, error.allowed) from error


class ChecksTooLate(SequentialManager):
    def step(self, plan: StepPlan, output: StepOutput | None = None) -> StepResult:
        super().step(StepPlan(finished=plan.finished, starts_step=False))
        return super().step(replace(plan, finished=()), output)


class DecodesBeforeItPreempts(SequentialManager):
    def step(self, plan: StepPlan, output: StepOutput | None = None) -> StepResult:
        result = super().step(replace(plan, preempted=()), output)
        super().step(StepPlan(preempted=plan.preempted, starts_step=False))
        return result


class CountsNoPreemption(SequentialManager):
    def step(self, plan: StepPlan, output: StepOutput | None = None) -> StepResult:
        result = super().step(plan, output)
        for handle in list(plan.preempted):  # type: ignore[arg-type]
            self.requests[handle].num_preemptions -= 1
        return result


class LeavesFinishedRunning(SequentialManager):
    def _release(self, handle: int, status: RequestStatus) -> None:
        super()._release(handle, status)
        self.requests[handle].status = RequestStatus.RUNNING


class SaysNothingNew(SequentialManager):
    """What a request gave back still counts as told."""

    def _release(self, handle: int, status: RequestStatus) -> None:
        told = self.reported[handle]
        super()._release(handle, status)
        self.reported[handle] = told

    def _start(self, handle: int, *rest: Any) -> tuple[int, int]:
        told = self.reported[handle]
        answer = super()._start(handle, *rest)
        self.reported[handle] = told
        return answer


class ComputesLater(SequentialManager):
    def _continue(self, handle: int, num_tokens: int, plan: StepPlan) -> int:
        granted = super()._continue(handle, num_tokens, plan)
        self.requests[handle].num_computed_tokens -= granted
        return granted


class TellsNoHit(SequentialManager):
    def _start(self, *given: Any) -> tuple[int, int]:
        return 0, super()._start(*given)[1]


class StaysWaiting(SequentialManager):
    def _start(self, handle: int, *rest: Any) -> tuple[int, int]:
        status = self.requests[handle].status
        answer = super()._start(handle, *rest)
        self.requests[handle].status = status
        return answer


class LooksUpTwice(SequentialManager):
    def _start(self, handle: int, *rest: Any) -> tuple[int, int]:
        self.manager.get_computed_blocks(self.requests[handle])
        return super()._start(handle, *rest)


class IsAlwaysBesideOthers(SequentialManager):
    def _start(self, handle: int, most: int, plan: StepPlan, beside: bool) -> tuple[int, int]:
        return super()._start(handle, most, plan, True)


class LastReleasedFirst(SequentialManager):
    def unregister(self, handles: Any) -> None:
        before = self.released
        self.released = []
        super().unregister(handles)
        self.released = [*self.released, *before]


class WritesOneSlotTooMany(SequentialManager):
    def step(self, plan: StepPlan, output: StepOutput | None = None) -> StepResult:
        result = super().step(plan, output)
        slots: Any
        for slots in (output.slot_mappings or ()) if output is not None else ():
            if slots is not None and len(slots) > result.num_slots:
                slots[result.num_slots] = -1
        return result


class SlotsBehindTheirPlace(SequentialManager):
    def step(self, plan: StepPlan, output: StepOutput | None = None) -> StepResult:
        result = super().step(plan, output)
        slots: Any
        for slots in (output.slot_mappings or ()) if output is not None else ():
            for place in range(result.num_slots if slots is not None else 0):
                slots[place] += 1
        return result


class TellsEverythingAgain(SequentialManager):
    def report(self, handle: int, rows: memoryview, num_rows: int) -> int:
        self._nothing_reported(handle)
        return super().report(handle, rows, num_rows)


class LeavesOutTheRest(SequentialManager):
    def report(self, handle: int, rows: memoryview, num_rows: int) -> int:
        num_rows = super().report(handle, rows, num_rows)
        lists = self.manager.get_blocks(self.requests[handle]).groups
        self.reported[handle] = [len(blocks) for blocks in lists]
        return num_rows


class CountsNothingPending(SequentialManager):
    def num_pending_deltas(self) -> int:
        return 0


class RewindsTooFar(SequentialManager):
    def rewind(self, handles: Any, num_tokens: Any) -> None:
        super().rewind(handles, num_tokens)
        for handle in handles:
            request = self.requests[handle]
            request.num_computed_tokens = max(0, request.num_computed_tokens - 1)


class AppendsOneEach(SequentialManager):
    def append(self, handles: Any, token_ids: Any, counts: Any = 1) -> None:
        super().append(handles, token_ids[: len(handles)])


class LooksUpInvisibly(SequentialManager):
    def lookup(self, handles: Any) -> array[int]:
        answer = super().lookup(handles)
        self.manager.make_prefix_cache_stats()
        return answer


class ForeseesTheBack(SequentialManager):
    def next_free_blocks(self, num_blocks: int) -> array[int]:
        return super().next_free_blocks(COUNT_MAX)[-num_blocks:]


class LeavesOutNulls(SequentialManager):
    def list_lengths(self, handles: Any) -> array[int]:
        lists = [self.manager.get_blocks(self.request_of(handle)).groups for handle in handles]
        return array("i", [sum(map(bool, blocks)) for groups in lists for blocks in groups])


MISTAKES: tuple[type[SequentialManager], ...] = (
    ForgetsTheBudget, GoesOnAfterARefusal, ForgetsLookahead, NeverStartsAStep, ReservesForEverybody,
    TakesBoolsForInts, NamesThePlan, ChecksTooLate, DecodesBeforeItPreempts, CountsNoPreemption,
    LeavesFinishedRunning, SaysNothingNew, ComputesLater, TellsNoHit, StaysWaiting, LooksUpTwice,
    IsAlwaysBesideOthers, LastReleasedFirst, WritesOneSlotTooMany, SlotsBehindTheirPlace,
    TellsEverythingAgain, LeavesOutTheRest, CountsNothingPending, RewindsTooFar, AppendsOneEach,
    LooksUpInvisibly, ForeseesTheBack, LeavesOutNulls,
)  # fmt: skip


class WithSteps(ReferenceImplementation):
    """The reference with other whole steps."""

    def __init__(self, steps: type[SequentialManager]) -> None:
        super().__init__()
        self.steps = steps

    def batched(self, manager: KVCacheManager) -> BatchedManager:
        """These."""
        return self.steps(self, manager)
