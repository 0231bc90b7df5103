"""Directed checks: every rule has one, and the reference passes them; steps see mistakes."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import pytest

import kvref
from kvcheck.judge.applying import UNOBSERVABLE
from kvcheck.rulebook import rule_sentences
from kvcheck.rules.directed import EXAMPLES, Example, example_violation, find_example
from kvcheck.rules.managers import random_steps_are_their_single_calls
from kvspec.policy import Policy
from kvspec.profile import find_profile
from tests.cases import every_second
from tests.mistakes import mistaken, of_random_steps

REFERENCE = kvref.implementation()
POLICIES = (
    Policy(unhashed_freed_to="back", removed_event_per="last_copy"),
    Policy(chunked_null_prefix_is_hit=False, exact_block_ids=False),
    replace(find_profile("vllm-0.33").policy, extra_keys="plain", capacity_counts_null_block=False),
)
"""Not the usual one, under which `tests/contract/test_directed.py` shows it every example."""


def test_every_rule_has_a_directed_check_or_a_reason() -> None:
    cited = {rule for example in EXAMPLES for rule in example.rules}
    rules = set(rule_sentences())
    assert cited <= rules
    assert rules - cited == set(UNOBSERVABLE)


def test_names_are_unique() -> None:
    names = Counter(example.name for example in EXAMPLES)
    assert [name for name, count in names.items() if count > 1] == []
    assert find_example(EXAMPLES[-1].name) is EXAMPLES[-1]


@pytest.mark.parametrize("example", every_second(EXAMPLES), ids=lambda example: str(example.name))
def test_the_reference_is_as_the_example_says(example: Example) -> None:
    for policy in POLICIES:
        if policy != Policy() and all(
            getattr(policy, choice) == getattr(Policy(), choice) for choice in example.choices
        ):
            assert example_violation(example, REFERENCE, policy) is None


@pytest.mark.parametrize("mistake", every_second(of_random_steps()))
def test_random_steps_see_a_mistake(mistake: str) -> None:
    found = example_violation(random_steps_are_their_single_calls, mistaken(mistake), Policy())
    assert found is not None
    assert found.rule.startswith("KV-BATCH-")
