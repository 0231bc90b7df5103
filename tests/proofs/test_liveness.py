"""The proof of liveness holds, and its check can fail: it runs its twins itself."""

from __future__ import annotations

import pytest

from proofs.code import liveness


@pytest.mark.rule("KV-LIVE-1", "KV-LIVE-2")
def test_every_request_that_fits_is_admitted_and_ends() -> None:
    """By enumeration of small pools, models and triples of requests; both twins get stuck."""
    assert liveness.main() == 0
