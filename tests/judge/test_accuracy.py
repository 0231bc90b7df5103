"""The right rule is blamed often enough, and what that is measured on is current."""

from __future__ import annotations

import pytest

from kvcheck.judge.blame import Evidence, Neighbour, suspects
from kvcheck.judge.outcomes import Outcomes, from_text, known, neighbours
from kvcheck.mistakes import find
from tests.judge.accuracy import Row, confused, row, rows, share
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
    """Of all mistakes, those among them that no directed check sees."""
    assert share(measured, 2, 1) >= 0.95
    assert share(measured, 2, 3) >= 0.97


def test_the_right_rule_of_an_unknown_mistake_leads(measured: list[Row]) -> None:
    for some in (measured, [each for each in measured if each.half]):
        assert share(some, 0, 1) >= 0.55
        assert share(some, 0, 3) >= 0.78
        assert share(some, 1, 1) >= 0.62
        assert share(some, 1, 3) >= 0.82


def test_what_is_known_is_of_the_registry() -> None:
    """Checks that are newer than the file are no harm, as long as they are few."""
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


def evidence(**kinds: tuple[str, str] | None) -> list[Evidence]:
    return [Evidence(check, ("KV-MGR-12",), kind) for check, kind in kinds.items()]


def test_who_fails_the_same_checks_in_the_same_way_is_a_twin() -> None:
    seen = evidence(a=("KV-SW-1", SELF), b=None, c=None, d=("KV-GRP-2", REF))
    first, second = neighbours(seen, SMALL)
    assert (first.mistake, round(first.likeness, 6)) == ("Two", 1)
    assert (second.mistake, second.likeness < 0.5) == ("One", True)
    assert suspects(seen, [first, second])[0].rule == "KV-GRP-2"


def test_checks_that_a_subject_was_not_shown_do_not_count() -> None:
    seen = evidence(a=("KV-SW-1", SELF))
    assert {each.mistake: round(each.likeness, 6) for each in neighbours(seen, SMALL)} == {
        "One": 1,
        "Two": 1,
    }


def test_another_kind_of_violation_is_less_like() -> None:
    (first, *_) = neighbours(evidence(a=("KV-EVT-1", SELF), d=("KV-EVT-1", REF)), SMALL)
    assert (first.mistake, round(first.likeness, 6)) == ("Two", 0.2)


def test_a_rule_that_a_check_names_by_itself_is_more_suspicious_than_its_call() -> None:
    both = Evidence("a", ("KV-MGR-12", "KV-MGR-13"), ("KV-MGR-13", SELF))
    seen = [both, Evidence("b", ("KV-MGR-12",))]
    assert [each.rule for each in suspects(seen)] == ["KV-MGR-13", "KV-MGR-12"]
    crash = [Evidence("a", ("KV-MGR-12",), ("KV-ERR-2", "errors_are_typed"))]
    assert [each.rule for each in suspects(crash)] == ["KV-MGR-12"]


def test_a_neighbour_brings_its_rules() -> None:
    near = [Neighbour("One", ("KV-SW-1", "KV-SW-2"), 0.9)]
    found = suspects([Evidence("a", ("KV-MGR-12",), ("KV-MGR-7", REF))], near)
    assert {"KV-SW-1", "KV-SW-2"} < {each.rule for each in found}


def test_the_page_tells_who_is_blamed_instead() -> None:
    wrong = row("One", ("KV-SW-1",), evidence(a=("KV-MGR-12", SELF)))
    unseen = row("Two", ("KV-SW-2",), evidence(a=None))
    assert [*confused([wrong, unseen], 2)] == ["| KV-SW-1 | KV-MGR-12 |"]
    assert [share([wrong, unseen], 2, places) for places in (1, 3)] == [0, 0]
