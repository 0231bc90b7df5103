"""A small world of chunks to its end, and mistakes that it shows."""

from __future__ import annotations

import pytest

from kvcheck.play.lives import BrokenRuleError
from tests.tier.exhaustive import SMALL, WHOLE, explored


def test_the_twins_agree_in_every_state_of_a_small_world() -> None:
    assert explored(SMALL, ("kvref", "kvfast-uncompiled")) == (954, 4782)


@pytest.mark.deep
def test_the_twins_agree_in_every_state_of_three_chunks_two_requests_and_two_tiers() -> None:
    assert explored(WHOLE, ("kvref", "kvfast-uncompiled")) == (2201, 11987)


@pytest.mark.parametrize("name", ["ReadChunksMayLeave", "FailedPromotionsStay", "NobodyIsAwaited"])
def test_a_mistake_is_reached(name: str) -> None:
    with pytest.raises((AssertionError, BrokenRuleError)):
        explored(SMALL, ("kvref", f"mistake:{name}"))
