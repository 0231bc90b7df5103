"""Every twin is caught by the checks that it names; what twins are made from is caught by none."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from kvref.groups.mamba_align import AlignedMambaGroup
from kvref.groups.sliding_window import SlidingWindowGroup
from kvref.implementation import ReferenceImplementation
from tests.fixed_point import masks, searches, states, windows
from tests.fixed_point.checks import (
    Vectors,
    all_rules,
    enumeration_finds,
    make_vectors,
    rule_tests_find,
)
from tests.fixed_point.twin import ENUMERATION, RULE_TESTS, Twin

TWINS = (*searches.TWINS, *windows.TWINS, *states.TWINS, *masks.TWINS)
CASES = [(twin, check) for twin in TWINS for check in twin.caught_by]

BROKEN_RULES = (
    *(f"KV-COORD-{n}" for n in range(4, 14)),
    *(f"KV-SW-{n}" for n in range(1, 9)),
    *(f"KV-CHUNK-{n}" for n in (1, 2, 5, 6)),
    *(f"KV-MAMBA-{n}" for n in range(1, 14) if n != 10),
    *(f"KV-RET-{n}" for n in range(1, 7)),
    *("KV-CROSS-1", "KV-CROSS-2", "KV-CROSS-5"),
)
"""Every rule of a group or a search that is more than a check of the configuration."""


@pytest.fixture(scope="module")
def vectors() -> Vectors:
    """Answers by enumeration, the same for every twin."""
    return make_vectors(num_worlds=300, num_prompts=100)


@pytest.mark.parametrize(
    ("twin", "check"), CASES, ids=[f"{twin.name}-{check}" for twin, check in CASES]
)
def test_twin_is_caught(
    twin: Twin, check: str, vectors: Vectors, record_property: Callable[[str, object], None]
) -> None:
    """One rule is broken, and the check says where it shows."""
    if check == RULE_TESTS:
        found = rule_tests_find(twin.implementation(), twin.rule)
    else:
        assert check == ENUMERATION
        found = enumeration_finds(twin.implementation(), vectors)
    assert found is not None
    record_property("found", found)


def test_every_rule_has_a_twin() -> None:
    """No rule is left out, and no twin breaks a rule that is not listed."""
    assert {twin.rule for twin in TWINS} == {*BROKEN_RULES, "KV-FULL-6"}


class RestatedWindow(windows.RestatedWindow, masks.RestatedMask):
    """Both restatements of a window in one."""


def test_what_twins_are_made_from_is_not_broken(vectors: Vectors) -> None:
    """The restated parts, with nothing broken in them, pass all the checks."""
    restated = ReferenceImplementation(
        group_classes=[
            (SlidingWindowGroup, RestatedWindow),
            (AlignedMambaGroup, states.RestatedStates),
        ],
        hybrid_class=searches.Restated,
    )
    assert enumeration_finds(restated, vectors) is None
    for rule in all_rules():
        assert rule_tests_find(restated, rule) is None
