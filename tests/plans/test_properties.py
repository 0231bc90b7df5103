"""Every plan on random models has the properties, and each broken planner lacks one."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

import pytest
from hypothesis import HealthCheck, Phase, find, given, settings
from hypothesis.errors import NoSuchExample

import kvref
from kvcheck.discovery import find_implementation
from kvspec.interface import Implementation
from kvspec.planning import Planner
from tests.cases import every_second
from tests.mistakes import mistaken
from tests.plans.properties import CASES, CHECKS, Case

IMPLEMENTATIONS = ("kvref",)


@pytest.fixture(params=IMPLEMENTATIONS, scope="session")
def implementation(request: pytest.FixtureRequest) -> Implementation:
    return find_implementation(request.param)


@pytest.mark.rule("KV-PLAN-10", "KV-PLAN-11", "KV-PLAN-12", "KV-PLAN-13", "KV-PLAN-14")
@pytest.mark.rule("KV-PLAN-15", "KV-PLAN-20", "KV-LIVE-3")
@pytest.mark.parametrize("name", CHECKS)
@given(case=CASES)
def test_every_plan_has_the_property(implementation: Implementation, name: str, case: Case) -> None:
    planner = implementation.planner
    assert isinstance(planner, Planner)
    CHECKS[name](implementation, planner, case)


# Finding a case is enough; making it small would take most of the time.
SEARCH = settings(
    max_examples=3000,
    derandomize=True,
    database=None,
    deadline=None,
    phases=(Phase.generate,),
    suppress_health_check=list(HealthCheck),
)

SERVES = "an_accepted_plan_serves_a_request_of_full_length"
FOUND_BY: Mapping[str, str] = MappingProxyType(
    {
        "ForgetsTheNullBlock": SERVES,
        "ForgetsTheBlocksSetAsideForSinks": SERVES,
        "ForgetsThatAWindowMayStartInsideABlock": SERVES,
        "CountsOneBlockForEveryRunningState": SERVES,
        "LeavesTensorsAsTheyWereWhenBlocksAreCut": "tensors_have_their_pages",
        "MergesALargerLatentIntoASmallerOne": "tensors_have_their_pages",
        "LetsLayersOfOneGroupShareATensor": "each_layer_has_one_place",
        "LosesALayerWhenGroupsAreDealt": "each_layer_has_one_place",
        "PromisesOneTokenTooMany": "the_estimate_is_the_largest_that_fits",
        "PromisesOneTokenTooFew": "automatic_length_is_the_longest_plan",
        "RoundsTheNumberOfBlocksUp": "the_memory_is_used_and_not_exceeded",
        "IgnoresTheNumberOfBlocksAskedFor": "the_memory_is_used_and_not_exceeded",
        "LetsPackedPagesOverlap": "packed_tensors_lie_side_by_side",
    }
)
"""Of each mistake, the property that fails."""


def fails(implementation: Implementation, case: Case, *properties: str) -> bool:
    planner = implementation.planner
    assert planner is not None
    try:
        for name in properties:
            CHECKS[name](implementation, planner, case)
    except AssertionError:
        return True
    return False


@pytest.mark.parametrize("mistake", every_second(FOUND_BY))
def test_the_mistake_is_caught(mistake: str) -> None:
    broken = mistaken(mistake, audits=True)
    found = find(
        CASES,
        lambda case: fails(broken, case, FOUND_BY[mistake]),
        settings=SEARCH,
    )
    assert found is not None


def test_without_a_mistake_nothing_is_caught() -> None:
    right = kvref.implementation()
    with pytest.raises(NoSuchExample):
        find(
            CASES,
            lambda case: fails(right, case, *CHECKS),
            settings=settings(SEARCH, max_examples=50),
        )
