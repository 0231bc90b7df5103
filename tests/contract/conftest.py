"""The implementations under test: a bench for each of them."""

from __future__ import annotations

from functools import partial

import pytest

from kvcheck.discovery import find_implementation
from kvcheck.rules.bench import Bench
from kvspec.interface import Implementation
from kvspec.planning import Planner
from kvspec.policy import Policy
from tests.contract.builders import MakeManager, MakeRequest, new_manager, new_request

IMPLEMENTATIONS = ("kvref", "kvfast", "kvfast-uncompiled")


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Parametrize over all implementations; tests of planning over those that plan.

    The uncompiled build is left to --deep, and of a test marked `on` what it does not name.
    """
    if "implementation" not in metafunc.fixturenames:
        return
    names = list(IMPLEMENTATIONS)
    if "planner" in metafunc.fixturenames:
        names = [name for name in names if find_implementation(name).planner is not None]
    marker = metafunc.definition.get_closest_marker("on")
    always = names[:2] if marker is None else marker.args
    cases = [pytest.param(n, marks=() if n in always else pytest.mark.deep) for n in names]
    metafunc.parametrize("implementation", cases, indirect=True, scope="session")


@pytest.fixture(scope="session")
def implementation(request: pytest.FixtureRequest) -> Implementation:
    return find_implementation(request.param)


@pytest.fixture(scope="session")
def bench(implementation: Implementation) -> Bench:
    return Bench(implementation, Policy())


@pytest.fixture(scope="session")
def make_manager(implementation: Implementation) -> MakeManager:
    return partial(new_manager, implementation)


@pytest.fixture(scope="session")
def make_request(implementation: Implementation) -> MakeRequest:
    return partial(new_request, implementation)


@pytest.fixture(scope="session")
def planner(bench: Bench) -> Planner:
    return bench.planner
