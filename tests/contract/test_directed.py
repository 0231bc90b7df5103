"""Every directed check, in text and in Python, on every implementation: kvcheck.rules."""

from __future__ import annotations

import pytest

from kvcheck.discovery import find_implementation
from kvcheck.rules.directed import EXAMPLES, Example, example_violation
from kvspec.policy import Policy
from tests.contract.conftest import IMPLEMENTATIONS


def only_kvref(check: Example) -> bool:
    """Check whether it needs a planner or a tree, which kvfast lacks."""
    lacked = ("KV-PLAN-", "KV-TREE-")
    return any(rule.startswith(lacked) or rule == "KV-POL-5" for rule in check.rules)


@pytest.mark.parametrize(
    ("check", "name"),
    [
        pytest.param(check, implementation, id=f"{check.name}-{implementation}".replace(" ", "_"))
        for check in EXAMPLES
        for implementation in IMPLEMENTATIONS[: 1 if only_kvref(check) else 3]
    ],
)
def test_the_contract(check: Example, name: str) -> None:
    violation = example_violation(check, find_implementation(name), Policy())
    assert violation is None, f"{violation.rule}: {violation.detail}"


def test_nearly_all_checks_are_shown_to_each() -> None:
    assert sum(not only_kvref(check) for check in EXAMPLES) > 700
