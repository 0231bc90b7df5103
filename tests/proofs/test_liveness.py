"""The proofs of liveness hold, and their checks can fail: each runs its twins itself."""

from __future__ import annotations

import pytest

from proofs import liveness_arithmetic, liveness_model


@pytest.mark.rule("KV-LIVE-1", "KV-LIVE-2")
def test_every_request_that_fits_is_admitted_and_ends() -> None:
    """By enumeration of small pools, models and triples of requests; both twins get stuck."""
    assert liveness_model.main() == 0


@pytest.mark.rule("KV-LIVE-2")
def test_a_windowed_request_never_holds_more_than_admission_counted() -> None:
    """For block sizes 1 … 64 and all other numbers; each twin is refuted."""
    assert liveness_arithmetic.main() == 0
