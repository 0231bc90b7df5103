"""Every broken planner is caught by the property named for it."""

from __future__ import annotations

import pytest
from hypothesis import HealthCheck, Phase, find, settings
from hypothesis.errors import NoSuchExample

from kvcheck.discovery import find_implementation
from tests.plans.broken import MISTAKES, Mistake, PatchedPlanner
from tests.plans.cases import Case, cases
from tests.plans.properties import CHECKS

# Finding a case is enough; making it small would take most of the time.
SEARCH = settings(
    max_examples=3000,
    derandomize=True,
    database=None,
    deadline=None,
    phases=(Phase.generate,),
    suppress_health_check=list(HealthCheck),
)


def is_caught(mistake: Mistake) -> bool:
    """Whether some random case makes the property fail."""
    planner = PatchedPlanner(*mistake.patches)
    implementation = find_implementation("kvref")

    def fails(case: Case) -> bool:
        try:
            CHECKS[mistake.found_by](implementation, planner, case)
        except AssertionError:
            return True
        return False

    try:
        find(cases(kinds=mistake.kinds, states=mistake.states), fails, settings=SEARCH)
    except NoSuchExample:
        return False
    return True


@pytest.mark.parametrize("mistake", MISTAKES)
def test_the_mistake_is_caught(mistake: str) -> None:
    """A property that finds nothing here would find nothing anywhere."""
    assert is_caught(MISTAKES[mistake])


def test_without_a_mistake_nothing_is_caught() -> None:
    """The way of breaking breaks nothing by itself."""
    implementation = find_implementation("kvref")

    def fails(case: Case) -> bool:
        try:
            for check in CHECKS.values():
                check(implementation, PatchedPlanner(), case)
        except AssertionError:
            return True
        return False

    with pytest.raises(NoSuchExample):
        find(cases(), fails, settings=settings(SEARCH, max_examples=50))
