"""A rule that is broken in several ways: none of them hides another."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import Any, cast

import pytest

import kvref
from examples.own_manager.final import MyManager
from kvcheck.judge.causes import MOST_WAYS, smallest_first, ways_told
from kvcheck.judge.expected import findings
from kvcheck.judge.options import Budget, Options
from kvcheck.judge.outcome import Report
from kvcheck.judge.suite import Suite
from kvcheck.mistakes import find
from kvcheck.mistakes.twin import twin
from kvcheck.play.verdicts import Level, Violation, first_violation
from kvspec.base import BaseRequest
from kvspec.blocks import KVCacheBlocks
from kvspec.errors import UnsupportedError
from kvspec.interface import Implementation
from tests.judge.minimal import minimal
from tests.programs import SCENARIOS

REFERENCE = kvref.implementation()
QUEUE = "KV-POOL-6"
RULES = (QUEUE, "KV-POOL-11")


@pytest.fixture(scope="module")
def queues() -> tuple[Report, Suite]:
    """Two mistakes: the queue is in a wrong order after a release, and after a reset."""
    names = ("UnhashedRunReversed", "ResetSortsTheQueue")
    made = [cast("partial[Implementation]", find(name).make) for name in names]
    subject = twin("kvref", [change for one in made for change in one.args[1]])
    suite = Suite(
        subject, REFERENCE, Options(Level.IDENTITY, Budget(0.0, 40, 2.0).counted(150), RULES)
    )
    return suite.run(), suite


def test_each_way_has_its_own_story_the_smallest_first(queues: tuple[Report, Suite]) -> None:
    report, suite = queues
    found = {each.place: each for each in report.violations}
    assert "KV-POOL-11" in {each.rule for each in report.violations}
    rule = found["free_queue after free"].rule
    assert found["free_queue after free_blocks"].rule == rule
    sizes = [len(each.operations) for each in report.violations if each.rule == rule]
    assert len(sizes) <= MOST_WAYS
    assert sizes == sorted(sizes)
    assert max(sizes) <= 6
    for each in report.violations:
        if not each.is_example:
            again = first_violation(each.program, suite.subject, Level.IDENTITY, REFERENCE)
            assert again is not None
            assert again.place == each.place


def test_a_file_of_known_differences_has_a_cause_once(queues: tuple[Report, Suite]) -> None:
    report, suite = queues
    assert [each.cause for each in findings(report)] == list(
        dict.fromkeys(each.cause for each in report.violations)
    )
    assert len(findings(report)) == len(suite.found.violations) < len(report.violations)


class Refuses(MyManager):
    """Refuses to allocate after a hit, and crashes for who is running."""

    def allocate_slots(
        self, request: BaseRequest, num_new_tokens: int, **options: Any
    ) -> KVCacheBlocks | None:
        if options.get("num_new_computed_tokens"):
            raise UnsupportedError("a hit", "minimal")
        if request.num_computed_tokens:
            raise KeyError(request.request_id)
        return super().allocate_slots(request, num_new_tokens, **options)


def test_a_refusal_hides_no_crash_of_the_same_call() -> None:
    options = Options(Level.SAFETY, Budget(0.0, 20, 5.0).counted(60))
    suite = Suite(minimal(Refuses), None, options)
    report = suite.run()
    ended = ("KV-ERR-1", "legal_calls_succeed")
    assert ended in suite.found.violations
    told = {each.place for each in report.violations if each.kind == ended}
    begin = "legal_calls_succeed allocate_slots"
    assert {f"{begin} KeyError", f"{begin} UnsupportedError"} <= told


def way(number: int, rule: str = QUEUE, cause: str = "a") -> Violation:
    told = Violation(rule, "name", "", SCENARIOS[0], (("free", "r0", {}),) * number, f"{number}")
    return replace(told, observed="0", cause=cause, place=f"{number}")


def test_few_ways_of_a_rule_are_told_and_every_cause() -> None:
    causes = [way(number, cause=f"{number}") for number in (5, 4)]
    told, more = ways_told(causes, [way(3), way(2)], [way(1), way(1, "KV-POOL-11")])
    assert [len(each.operations) for each in told] == [3, 4, 5]
    assert more == {QUEUE: 2, "KV-POOL-11": 1}
    causes = [way(number, cause=f"{number}") for number in (5, 4, 3, 2)]
    told, more = ways_told(causes, [way(1)], [])
    assert (len(told), more) == (4, {QUEUE: 1})


def test_rules_keep_their_order_and_a_story_is_told_once() -> None:
    found = smallest_first([way(3, "KV-POOL-9"), way(2), way(1, "KV-POOL-9"), way(2)])
    assert [(each.rule, len(each.operations)) for each in found] == [
        ("KV-POOL-9", 1), ("KV-POOL-9", 3), (QUEUE, 2),
    ]  # fmt: skip
