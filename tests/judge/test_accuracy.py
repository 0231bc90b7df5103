"""The right rule is blamed often enough, and what that is measured on is current."""

from __future__ import annotations

import pytest

from kvcheck.judge.outcomes import Outcomes, from_text, known
from kvcheck.mistakes import find
from tests.judge.accuracy import Row, rows, share
from tests.judge.outcomes import CHECKS, completed, failures, missing, registry, to_text

REF, SELF = "answers_as_the_reference", "answers_as_the_rule_says"
SMALL = Outcomes(
    ("a", "b", "c", "d"),
    {"One": ("KV-SW-1",), "Two": ("KV-GRP-2", "KV-GRP-3"), "Three": ("KV-POOL-1",)},
    {
        "One": {"a": ("KV-SW-1", SELF), "b": ("KV-SW-1", REF), "c": ("KV-SW-1", REF)},
        "Two": {"a": ("KV-SW-1", SELF), "d": ("KV-GRP-2", REF)},
        "Three": {},
    },
)


@pytest.fixture(scope="module")
def measured() -> list[Row]:
    return rows(known())


def test_the_right_rule_leads(measured: list[Row]) -> None:
    assert share(measured, 2, 1) >= 0.95
    assert share(measured, 2, 3) >= 0.97


def test_the_right_rule_of_an_unknown_mistake_leads(measured: list[Row]) -> None:
    assert share(measured, 0, 1) >= 0.62
    assert share(measured, 0, 3) >= 0.82
    assert share(measured, 1, 1) >= 0.66
    assert share(measured, 1, 3) >= 0.87


def test_what_is_known_is_of_the_registry() -> None:
    among = {mistake.id: mistake.rules for mistake in registry()}
    outcomes = known()
    assert outcomes.rules.items() <= among.items()
    assert len(outcomes.failed) >= 0.97 * len(among)
    assert len(set(outcomes.checks) & set(CHECKS)) >= 0.95 * len(CHECKS)


@pytest.mark.parametrize("name", ["SkipsOneTokenLess", "WholeRequests", "AcceptsAnyChunk"])
def test_what_is_known_of_a_mistake_is_what_happens(name: str) -> None:
    failed = known().failed[name]
    passed = next(check for check in known().checks if check in CHECKS and check not in failed)
    checks = [check for check in failed if check in CHECKS]
    assert failures(find(name), [*checks, passed]) == {check: failed[check] for check in checks}


def test_the_file_reads_as_it_was_written() -> None:
    assert from_text(to_text(SMALL)) == SMALL


def test_new_checks_are_added_to_what_is_known() -> None:
    (first, *_) = registry()
    check = next(iter(CHECKS))
    old = Outcomes(tuple(CHECKS)[1:], {first.id: first.rules}, {first.id: {}})
    assert missing(first.id, old) == [check]
    done = completed(old, {first.id: {check: ("KV-SW-1", SELF)}})
    assert done.failed == {first.id: {check: ("KV-SW-1", SELF)}}
    assert not completed(old, {}).failed
