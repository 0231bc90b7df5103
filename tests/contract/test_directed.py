"""Every directed check, on every implementation: kvcheck.rules."""

from __future__ import annotations

import pytest

from kvcheck.discovery import find_implementation
from kvcheck.rules.directed import CHAPTERS
from kvcheck.rules.example import Example, example_violation, examples_of
from kvspec.policy import Policy
from tests.contract.conftest import IMPLEMENTATIONS

CHECKS = {
    f"{chapter.__name__.rpartition('.')[2]}-{found.name.replace(' ', '_')}": found
    for chapter in CHAPTERS
    for found in examples_of(chapter)
}


def only_plans(check: Example) -> bool:
    return check.rules[0].startswith("KV-PLAN-")


@pytest.mark.parametrize(
    ("check", "name"),
    [
        pytest.param(check, implementation, id=f"{title}-{implementation}")
        for title, check in CHECKS.items()
        for implementation in IMPLEMENTATIONS[: 1 if only_plans(check) else 3]
    ],
)
def test_the_contract(check: Example, name: str) -> None:
    violation = example_violation(check, find_implementation(name), Policy())
    assert violation is None, f"{violation.rule}: {violation.detail}"
