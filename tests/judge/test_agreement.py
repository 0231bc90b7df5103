"""Two answers side by side: what differs is told with its rule and its name."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

import kvref
from kvcheck.play.agreement import require_same_outcome
from kvcheck.play.difference import WrongAnswer, first_difference
from kvcheck.play.performing import perform_step
from kvcheck.play.player import Outcome
from kvcheck.play.runner import Runner
from kvcheck.play.steps import Admit, Arrive, Program
from kvspec.snapshot import RequestState
from tests.cases import Case, cases
from tests.programs import CFG, A


def one() -> RequestState:
    steps = (Arrive(A), Admit())
    runner = Runner(Program(CFG, steps), kvref.implementation())
    for step in steps:
        perform_step(runner, step)
    return runner.view.snapshot.requests["r0"]


ONE = one()


@pytest.mark.parametrize("case", cases(__file__, "agreement.txt"), ids=str)
def test_where_two_answers_part_is_said(case: Case) -> None:
    what, *values = case.given
    expected, *others = (eval(value, {"ONE": ONE, "replace": replace}) for value in values)
    if len(others) > 1:
        same, other = others
        require_same_outcome(what, Outcome(expected), Outcome(same), exact_ids=False)
        case.expect([part(what, expected, other, exact_ids=False), part(what, expected, same)])
        return
    wrong = WrongAnswer("name", "KV-POOL-6", what, expected, others[0])
    assert (wrong.invariant, wrong.rule) == ("name", "KV-POOL-6")
    assert wrong.detail == f"expected {wrong.expected}, got {wrong.observed}"
    case.expect([wrong.expected, wrong.observed, wrong.first_at or "-", wrong.place])
    assert first_difference(expected, expected) is None


def part(name: str, one: Any, other: Any, **how: bool) -> str:
    try:
        require_same_outcome(name, Outcome(one), Outcome(other), **how)
    except WrongAnswer as error:
        return str(error.detail)
    return "the same"
