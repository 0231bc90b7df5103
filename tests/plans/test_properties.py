"""The properties of every plan, on random models."""

from __future__ import annotations

import pytest
from hypothesis import given

from kvcheck.discovery import find_implementation
from kvspec.interface import Implementation
from kvspec.planning import Planner
from tests.plans.cases import CASES, Case
from tests.plans.properties import CHECKS

IMPLEMENTATIONS = ("kvref",)


@pytest.fixture(params=IMPLEMENTATIONS, scope="session")
def implementation(request: pytest.FixtureRequest) -> Implementation:
    return find_implementation(request.param)


@pytest.mark.rule("KV-PLAN-10", "KV-PLAN-11", "KV-PLAN-12", "KV-PLAN-13", "KV-PLAN-14")
@pytest.mark.rule("KV-PLAN-15", "KV-PLAN-19", "KV-PLAN-20", "KV-LIVE-3")
@pytest.mark.parametrize("name", CHECKS)
@given(case=CASES)
def test_every_plan_has_the_property(implementation: Implementation, name: str, case: Case) -> None:
    planner = implementation.planner
    assert isinstance(planner, Planner)
    CHECKS[name](implementation, planner, case)
