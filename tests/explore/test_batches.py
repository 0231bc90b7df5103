"""Whole steps as moves: every plan is made, and mistakes of a batched manager are found."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, cast

import pytest

import kvref
from kvcheck.explore import trace
from kvcheck.explore.bounds import Step
from kvcheck.explore.configurations import manager_of
from kvcheck.explore.search import Pair
from kvspec.batched import StepOutput, StepPlan, StepResult
from kvspec.interface import Feature
from kvspec.sequential import SequentialManager
from tests.explore.exploring import configuration, explored
from tests.stand_ins import Lacks

SMALL = replace(configuration("batched"), prompts=((0, 0),), steps=(Step(1),))


class ForgetsTheBudget(SequentialManager):
    """Every new request gets all it may have."""

    def step(self, plan: StepPlan, output: StepOutput | None = None) -> StepResult:
        return super().step(replace(plan, token_budget=99), output)


class AdmitsBeforeOthersGo(SequentialManager):
    """New requests are handled first, so the blocks of those that end do not serve them."""

    def step(self, plan: StepPlan, output: StepOutput | None = None) -> StepResult:
        if not plan.new or not plan.finished:
            return super().step(plan, output)
        result = super().step(replace(plan, finished=()), output)
        super().step(StepPlan(finished=plan.finished, starts_step=False))
        return result


class ChecksOneAfterAnother(SequentialManager):
    """A request that ends is removed before a wrong entry behind it is seen."""

    def step(self, plan: StepPlan, output: StepOutput | None = None) -> StepResult:
        if set(cast(list[int], plan.decoding)) & set(cast(list[int], plan.finished)):
            super().step(StepPlan(finished=plan.finished, starts_step=False))
        return super().step(plan, output)


class SlotsOneBlockLate(SequentialManager):
    """Each token is written where the next one belongs."""

    def step(self, plan: StepPlan, output: StepOutput | None = None) -> StepResult:
        result = super().step(plan, output)
        if output is not None and output.slot_mappings is not None:
            slots: Any = output.slot_mappings[0]
            for place in range(result.num_slots):
                slots[place] += 1
        return result


class KeepsThePreemptionToItself(SequentialManager):
    """A preempted request is freed, and its preemption is not counted."""

    def step(self, plan: StepPlan, output: StepOutput | None = None) -> StepResult:
        result = super().step(plan, output)
        for handle in cast(list[int], plan.preempted):
            self.requests[handle].num_preemptions -= 1
        return result


@dataclass(frozen=True)
class Planted:
    """A broken class, and the shortest way to its mistake."""

    broken: type[SequentialManager]
    num_moves: int
    last_move: str
    rule: str


PLANTED = (
    Planted(ForgetsTheBudget, 1, "batch", "KV-BATCH-1"),
    Planted(AdmitsBeforeOthersGo, 3, "batch", "KV-BATCH-1"),
    Planted(ChecksOneAfterAnother, 2, "wrong_batch", "KV-ERR-2"),
    Planted(SlotsOneBlockLate, 1, "batch", "KV-BATCH-1"),
    Planted(KeepsThePreemptionToItself, 2, "batch", "KV-BATCH-1"),
)


def with_steps(steps: type[SequentialManager]) -> Any:
    class Broken(type(kvref.implementation())):  # type: ignore[misc]  # a class of a value
        """Single calls are right."""

        def batched(self, manager: Any) -> Any:
            return steps(self, manager)

    return Broken()


@pytest.mark.parametrize("planted", PLANTED, ids=lambda each: each.broken.__name__)
def test_a_mistake_in_a_step_is_found_by_the_shortest_way(planted: Planted, tmp_path: Path) -> None:
    subject = with_steps(planted.broken)
    violation = explored(SMALL, subject).violation
    assert violation is not None
    assert violation.broken.rule == planted.rule
    assert [len(violation.path), violation.path[-1][0]] == [planted.num_moves, planted.last_move]
    told = list(trace.lines(violation, Pair(kvref.implementation(), subject)))
    assert "batched_step(" in told[-2]
    pair = Pair(kvref.implementation(), subject)
    path, reason = trace.write_record(violation, pair, tmp_path)
    assert (path, "whole steps" in reason) == (None, True)


def test_steps_that_are_single_calls_are_right_with_and_without_the_feature() -> None:
    tiny = replace(SMALL, config=manager_of("3; full of 1; max_model_len_tokens=2"))
    beside = explored(tiny, Lacks(Feature.BATCHED))
    assert beside.violation is None
    assert beside.counts == explored(tiny).counts
