"""The implementations under test."""

from __future__ import annotations

import pytest

from kvcheck.discovery import find_implementation
from kvspec.interface import Implementation


@pytest.fixture(params=["kvref"], scope="module")
def implementation(request: pytest.FixtureRequest) -> Implementation:
    return find_implementation(request.param)
