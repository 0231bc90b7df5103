"""A directed program goes on after a difference: the oracle follows the subject's state."""

from __future__ import annotations

from functools import partial
from typing import cast

import kvref
from kvcheck.judge.options import Budget, Options
from kvcheck.judge.suite import Suite
from kvcheck.mistakes import find
from kvcheck.mistakes.twin import twin
from kvcheck.play.verdicts import Level, first_violation, violations_along
from kvcheck.rules.scenarios import SCENARIOS
from kvref.implementation import ReferenceImplementation
from kvspec.config import ManagerConfig
from kvspec.errors import KVSpecError
from kvspec.interface import Implementation, KVCacheManager
from kvspec.snapshot import Snapshot
from tests.mistakes import mistaken

REFERENCE = kvref.implementation()
EARLY, LATE = ("KV-MGR-1", "answers_as_the_reference"), ("KV-COORD-9", "answers_as_the_reference")


def both(*names: str) -> Implementation:
    """The reference with several mistakes at once."""
    made = [cast("partial[Implementation]", find(name).make) for name in names]
    return twin("kvref", [change for one in made for change in one.args[1]])


def test_what_one_mistake_hides_is_seen_and_the_other_mistake_too() -> None:
    """A hit that is too long comes first in each program that asks for hits per group."""
    subject = both("FullKeepsTheEagleBlock", "UnhashedWithNulls")
    program = next(each for each in SCENARIOS if each.name == "a flag on one of several groups")
    first = first_violation(program, subject, Level.IDENTITY, REFERENCE)
    assert first is not None
    assert first.kind == EARLY
    along = [each.kind for each in violations_along(program, subject, Level.IDENTITY, REFERENCE)]
    assert along[0] == EARLY
    assert LATE in along
    rules = ("KV-COORD-9", "KV-GRP-1", "KV-MGR-1", *program.rules)
    suite = Suite(subject, REFERENCE, Options(Level.IDENTITY, Budget(0.0, 0), rules))
    suite.run()
    found = suite.found.violations
    assert {EARLY, LATE} <= found.keys()
    assert any(rule == "KV-GRP-1" for rule, _ in found)  # the second mistake's
    alone = first_violation(found[LATE].program, subject, Level.IDENTITY, REFERENCE)
    assert alone is not None
    assert alone.kind == LATE


def test_consequences_of_a_difference_are_no_findings() -> None:
    """With other hashes every later call differs: no story shows that before the hashes."""
    subject = mistaken("NoneHashIsZero")
    program = SCENARIOS[0]
    along = violations_along(program, subject, Level.IDENTITY, REFERENCE)
    assert along
    suite = Suite(subject, REFERENCE, Options(Level.IDENTITY, Budget(0.0, 0), program.rules))
    suite.run()
    kinds = {kind for kind in suite.found.violations if kind[1] == "answers_as_the_reference"}
    assert {rule.rpartition("-")[0] for rule, _ in kinds} <= {"KV-HASH"}


def test_a_program_of_a_correct_manager_has_nothing_along() -> None:
    for program in SCENARIOS[:10]:
        assert violations_along(program, REFERENCE, Level.IDENTITY, REFERENCE) == []


class CannotFollow(ReferenceImplementation):
    """Is in no state that somebody else was in."""

    def restore(self, config: ManagerConfig, snapshot: Snapshot) -> KVCacheManager:
        raise KVSpecError("not this state")


def test_where_the_oracle_cannot_follow_nothing_more_is_said() -> None:
    """That it cannot is no finding."""
    subject = mistaken("FullKeepsTheEagleBlock")
    program = next(each for each in SCENARIOS if each.name == "a flag on one of several groups")
    along = violations_along(program, subject, Level.IDENTITY, CannotFollow())
    assert [each.kind for each in along] == [EARLY]
