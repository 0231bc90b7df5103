"""Random models to plan for: nothing is found in the reference, and every mistake is."""

from __future__ import annotations

import pytest

import kvref
from kvcheck.play.left_out import LeftOut
from kvcheck.rules.directed import example_violation, find_example
from kvcheck.rules.random_plans import RULES, random_plan
from kvspec.interface import Implementation
from kvspec.policy import Policy
from tests.mistakes import mistaken
from tests.plans.test_broken import FOUND_BY

REFERENCE = kvref.implementation()
NUM_MODELS = 600


def broken_rule(subject: Implementation, oracle: Implementation | None) -> str | None:
    for number in range(NUM_MODELS):
        try:
            found = example_violation(random_plan(0, number), subject, Policy(), oracle)
        except LeftOut:
            continue
        if found is not None:
            return found.rule
    return None


@pytest.mark.parametrize("policy", [Policy(), Policy.vllm_0_24()])
def test_nothing_is_found_in_the_reference(policy: Policy) -> None:
    for number in range(100):
        for oracle in (None, REFERENCE):
            assert example_violation(random_plan(7, number), REFERENCE, policy, oracle) is None


@pytest.mark.parametrize("mistake", FOUND_BY)
def test_a_mistake_is_found(mistake: str) -> None:
    assert broken_rule(mistaken(mistake), REFERENCE) is not None


@pytest.mark.parametrize(
    ("mistake", "rule"),
    [
        ("ForgetsTheNullBlock", "KV-PLAN-20"),
        ("LeavesEveryWorkerItsOwnNumberOfBlocks", "KV-PLAN-15"),
        ("RoundsTheNumberOfBlocksUp", "KV-PLAN-12"),
        ("AnswersDifferentlyTheSecondTime", "KV-PLAN-19"),
    ],
)
def test_what_always_holds_needs_no_oracle(mistake: str, rule: str) -> None:
    assert broken_rule(mistaken(mistake), None) == rule


def test_a_model_is_found_again_by_its_name() -> None:
    example = random_plan(3, 14)
    assert example.rules == RULES
    assert find_example(example.name).name == example.name
    assert find_example(example.name) != random_plan(3, 15)
