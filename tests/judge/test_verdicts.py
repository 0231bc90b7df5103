"""From the result of a call, plain or compared, to a verdict: what it says, and how it is named."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest

import kvref
from kvcheck.play.agreement import AS_THE_REFERENCE, require_same_outcome
from kvcheck.play.calls import plain
from kvcheck.play.difference import WrongAnswer, first_difference
from kvcheck.play.left_out import LeftOut
from kvcheck.play.outside import look_from_outside
from kvcheck.play.performing import perform_step
from kvcheck.play.player import Outcome
from kvcheck.play.runner import Runner, raise_as_violation
from kvcheck.play.scheduler import RUNNING, WAITING
from kvcheck.play.steps import Admit, Arrive, Program, Run
from kvcheck.play.verdicts import SENTENCES, Violation, made_smaller, violation_of
from kvcheck.play.watchdog import Hang
from kvspec.blocks import KVCacheBlocks, PrefixHit
from kvspec.errors import InvariantViolation, KVSpecError, RemoteError
from kvspec.files.objects import Where
from kvspec.interface import Feature
from kvspec.operations import OPERATIONS
from kvspec.snapshot import RequestState
from tests.cases import Case, cases
from tests.programs import CFG, A
from tests.stand_ins import Lacks

REFERENCE = kvref.implementation()
PROGRAM = Program(CFG, (Arrive(A), Admit()))
CALLS: tuple[tuple[str, str | None, dict[str, Any]], ...] = (
    ("new_request", "r0", {}),
    ("free", "r0", {"n": 1}),
)
REMOTE = RemoteError("cmd", "free", "ProtocolError version: 3")
INVARIANT = next(iter(SENTENCES))
WRONG = WrongAnswer(AS_THE_REFERENCE, "KV-POOL-6", "free answers", {"a": [1]}, {"a": [2]})


ERRORS: Mapping[str, Exception | SystemExit | Hang] = {
    "another": ValueError("no"),
    "an end": SystemExit(0),
    "a typed one": KVSpecError("no"),
    "a hang": Hang("late"),
    "one of the protocol": REMOTE,
    "a death": RemoteError("cmd", "free", "died"),
    "an invariant": InvariantViolation(INVARIANT, "KV-EVT-2", "is so"),
    "an unknown invariant": InvariantViolation("another", "KV-EVT-2", "is so"),
    "an answer": WRONG,
}


@pytest.mark.parametrize("case", cases(__file__, "verdicts.txt"), ids=str)
def test_an_error_is_a_violation_of_a_rule_by_a_check(case: Case) -> None:
    error = ERRORS[case.name]
    found = violation_of(error, PROGRAM, list(CALLS))
    case.expect([f"{found.rule} {found.name}", found.detail, found.expected, found.place])
    assert (found.program, found.operations) == (PROGRAM, CALLS)
    assert found.observed == (WRONG.observed if error is WRONG else found.detail)
    assert found.first_at == (WRONG.first_at if error is WRONG else "")
    assert (found.kind, found.way) == ((found.rule, found.name), (found.rule, found.place))


def test_every_error_has_its_case() -> None:
    assert [case.name for case in cases(__file__, "verdicts.txt")] == list(ERRORS)


def test_an_error_behind_another_is_named_and_so_is_a_call_that_nobody_listed() -> None:
    def allocate_slots() -> None:
        try:
            raise_as_violation("x", IndexError("3"))
        except InvariantViolation as error:
            raise error from KeyError("4")

    with pytest.raises(InvariantViolation) as caught:
        allocate_slots()
    found = violation_of(caught.value, PROGRAM, ())
    assert found.place == "legal_calls_succeed allocate_slots KeyError"
    assert violation_of(ValueError(""), PROGRAM, ()).place == " ValueError"


@pytest.mark.parametrize(
    ("error", "told"),
    [(ERRORS[name], "a typed error: {}") for name in ("a typed one", "a death")]
    + [(KeyError("a"), "KeyError: {}")],
)
def test_an_error_of_a_legal_call_is_the_subjects_fault(error: Exception, told: str) -> None:
    with pytest.raises(InvariantViolation) as caught:
        raise_as_violation("free", error)
    found = caught.value
    assert (found.invariant, found.rule) == ("legal_calls_succeed", "KV-ERR-1")
    assert found.detail == f"free raised {told.format(error)}"
    assert found.__cause__ is error
    for own in (REMOTE, InvariantViolation("a", "b", "c")):
        with pytest.raises(type(own)) as kept:
            raise_as_violation("free", own)
        assert kept.value is own


def test_a_program_is_made_smaller_while_the_same_is_found() -> None:
    first = Violation("KV-MGR-1", "a", "first", Program(CFG, (Run(), Arrive(A), Admit())), ())

    def verdict(program: Program) -> Violation | None:
        kinds = [type(step) for step in program.steps]
        if Arrive not in kinds:
            raise LeftOut("nothing to do")
        return replace(first, name="a" if Admit in kinds else "b", program=program)

    small = made_smaller(first, verdict, 5.0)
    assert [type(step) for step in small.program.steps] == [Arrive, Admit]
    by_rule = made_smaller(first, verdict, 5.0, lambda each: each.rule)
    assert [type(step) for step in by_rule.program.steps] == [Arrive]
    assert made_smaller(first, lambda program: None, 5.0) is first


def ran(*steps: Any, subject: Any = REFERENCE, oracle: Any = None) -> Runner:
    runner = Runner(Program(CFG, tuple(steps)), subject, oracle)
    for step in steps:
        perform_step(runner, step)
    return runner


def test_without_a_snapshot_what_is_owed_is_seen_from_outside() -> None:
    runner = ran(Arrive(A), Admit(), subject=Lacks(Feature.SNAPSHOT))
    side = runner.subject
    side.popped.append(5)
    side.retained.append(6)
    requests = side.player.requests
    assert side.look() == look_from_outside(side.player.manager, requests, [5, 6])
    assert side.look().snapshot.ref_counts[5:7] == (1, 1)
    assert runner.state_of(side) is runner.view


def test_a_request_is_picked_among_those_in_these_phases() -> None:
    runner = ran(Arrive(A), Arrive(A), Arrive(A), Admit(1))
    first, second, third = runner.requests
    assert runner.pick(0, RUNNING) is second
    assert runner.pick(3, WAITING) is third
    assert runner.pick(5, WAITING, RUNNING) is third
    assert (runner.pick(0, WAITING), runner.pick(2, "loading")) == (first, None)
    assert first.caching_arguments == {}
    assert replace(first, junction_tokens=4).caching_arguments == {"junction_tokens": 4}


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


HERE = Where("an answer")


BLOCKS = KVCacheBlocks(((1, 0), (2,)))
LISTS = [[1, 0], [2]]


def test_what_is_answered_of_lists_of_a_request() -> None:
    found = OPERATIONS["get_block_ids"].result({"blocks": LISTS, "unhashed": LISTS}, HERE)
    assert found == {"blocks": BLOCKS, "unhashed": ((1, 0), (2,))}


def test_a_call_without_an_answer_has_none_whatever_came() -> None:
    assert plain("free", "thanks") is None
    assert plain("allocate_slots", None) is None
    assert plain("make_prefix_cache_stats", None) is None
    hit = PrefixHit(BLOCKS, 0, None)
    assert plain("get_computed_blocks", hit)["num_uncached_common_prefix_tokens"] is None


def test_a_number_that_is_none_is_no_answer() -> None:
    with pytest.raises(TypeError):
        plain("get_num_blocks_to_allocate", "3")
    with pytest.raises(TypeError):
        plain("get_computed_blocks", PrefixHit(BLOCKS, 1.5, None))  # type: ignore[arg-type]
