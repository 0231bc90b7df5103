"""The builds of kvfast that are compared with kvref."""

from __future__ import annotations

import os

import pytest

from kvfast._implementation import FastImplementation
from kvspec.interface import Implementation


@pytest.fixture(params=["compiled", "uncompiled"])
def fast(request: pytest.FixtureRequest) -> Implementation:
    return build(request.param)


def build(name: str) -> Implementation:
    """Return a build of kvfast. Skips without a compiled one, unless it has to be there."""
    try:
        return FastImplementation(name)
    except ImportError as error:
        if os.environ.get("KVSPEC_REQUIRE_COMPILED"):
            raise
        pytest.skip(f"no compiled build of kvfast here: {error}")
