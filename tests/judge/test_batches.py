"""The checks of whole steps see each mistake, and are left out where there are no own steps."""

from __future__ import annotations

import pytest

from kvcheck.rules.example import example_violation
from kvcheck.rules.managers import random_steps_are_their_single_calls
from kvspec.policy import Policy
from tests.cases import every_second
from tests.mistakes import mistaken, of_random_steps


@pytest.mark.parametrize("mistake", every_second(of_random_steps()))
def test_random_steps_see_a_mistake(mistake: str) -> None:
    found = example_violation(random_steps_are_their_single_calls, mistaken(mistake), Policy())
    assert found is not None
    assert found.rule.startswith("KV-BATCH-")
