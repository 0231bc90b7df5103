"""The checks of whole steps see each mistake, and are left out where there are no own steps."""

from __future__ import annotations

import pytest

import kvref
from kvcheck.play.left_out import LeftOut
from kvcheck.rules.batched_plans import random_steps_are_their_single_calls
from kvcheck.rules.directed import EXAMPLES
from kvcheck.rules.example import example_violation
from kvspec.policy import Policy
from tests.judge.minimal import minimal
from tests.mistakes import mistaken, of_random_steps

BATCHES = [example for example in EXAMPLES if example.rules[0].startswith("KV-BATCH-")]


@pytest.mark.parametrize("mistake", of_random_steps())
def test_random_steps_see_a_mistake(mistake: str) -> None:
    """Compared with the subject's own single calls, so that no oracle is needed."""
    found = example_violation(random_steps_are_their_single_calls, mistaken(mistake), Policy())
    assert found is not None
    assert found.rule.startswith("KV-BATCH-")


def test_without_steps_of_its_own_nothing_is_asked() -> None:
    for example in BATCHES:
        with pytest.raises(LeftOut, match=r"batched|drafting|edition|sha256_cbor|given_hashes"):
            example_violation(example, minimal(), Policy())


def test_the_loop_is_not_seen_as_a_mistake() -> None:
    for example in BATCHES:
        assert example_violation(example, kvref.implementation(), Policy()) is None
