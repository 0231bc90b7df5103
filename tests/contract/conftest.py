"""The implementations under test: a bench for each of them."""

from __future__ import annotations

import pytest

from kvcheck.discovery import find_implementation
from kvcheck.rules.bench import Bench
from kvspec.planning import Planner
from kvspec.policy import Policy

IMPLEMENTATIONS = ("kvref", "kvfast", "kvfast-uncompiled")


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """A test for every implementation there is; one of planning for those that plan."""
    if "bench" not in metafunc.fixturenames:
        return
    names = list(IMPLEMENTATIONS)
    if "planner" in metafunc.fixturenames:
        names = [name for name in names if find_implementation(name).planner is not None]
    metafunc.parametrize("bench", names, indirect=True, scope="session")


@pytest.fixture(scope="session")
def bench(request: pytest.FixtureRequest) -> Bench:
    """One of them."""
    return Bench(find_implementation(request.param), Policy())


@pytest.fixture(scope="session")
def planner(bench: Bench) -> Planner:
    """Its planner."""
    return bench.planner
