"""The implementations under test, and builders bound to each of them."""

from __future__ import annotations

from functools import partial

import pytest

from kvcheck.discovery import find_implementation
from kvspec.interface import Implementation
from kvspec.planning import Planner
from tests.rules.batches import MakeSteps, Steps
from tests.rules.builders import (
    MakeManager,
    MakeRequest,
    Story,
    new_manager,
    new_request,
    tell_story,
)

IMPLEMENTATIONS = ("kvref", "kvfast", "kvfast-uncompiled")


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """A test for every implementation there is; one of planning for those that plan."""
    if "implementation" not in metafunc.fixturenames:
        return
    names = list(IMPLEMENTATIONS)
    if "planner" in metafunc.fixturenames:
        names = [name for name in names if find_implementation(name).planner is not None]
    metafunc.parametrize("implementation", names, indirect=True, scope="session")


@pytest.fixture(scope="session")
def implementation(request: pytest.FixtureRequest) -> Implementation:
    """One of them."""
    return find_implementation(request.param)


@pytest.fixture(scope="session")
def make_manager(implementation: Implementation) -> MakeManager:
    """`make_manager(num_blocks, block_size, **config)`."""
    return partial(new_manager, implementation)


@pytest.fixture(scope="session")
def make_request(implementation: Implementation) -> MakeRequest:
    """`make_request(manager, request_id, token_ids, **content)`."""
    return partial(new_request, implementation)


@pytest.fixture(scope="session")
def make_steps(implementation: Implementation) -> MakeSteps:
    """`make_steps(num_blocks, block_size, **config)`: a manager, and whole steps on it."""
    return partial(Steps, implementation)


@pytest.fixture(scope="session")
def planner(implementation: Implementation) -> Planner:
    """The implementation's planner."""
    found = implementation.planner
    assert isinstance(found, Planner)
    return found


@pytest.fixture
def story(make_manager: MakeManager, make_request: MakeRequest) -> Story:
    """The running example of the chapter on the pool."""
    return tell_story(make_manager, make_request)
