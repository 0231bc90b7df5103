"""The checker of the formal model, for tests that start it."""

from __future__ import annotations

import os

import pytest

from proofs.models._formal._checker import CheckerMissingError, node


@pytest.fixture(scope="session")
def checker() -> None:
    """Skips where it is not installed, or fails where it must be."""
    try:
        node()
    except CheckerMissingError as missing:
        if os.environ.get("KVSPEC_REQUIRE_TLA") == "1":
            pytest.fail(str(missing))
        pytest.skip(str(missing))
