"""The state machine on kvref, and the broken pools it must catch."""

from __future__ import annotations

import pytest
from hypothesis import settings
from hypothesis.stateful import run_state_machine_as_test

import kvref
from kvcheck.judge.machine import manager_machine
from kvspec.errors import InvariantViolation
from tests.machines.planted import planted
from tests.mistakes import POOLS, mistaken

TestReferenceMachine = manager_machine(kvref.implementation()).TestCase
TestReferenceMachine.settings = settings(max_examples=300, stateful_step_count=50, deadline=None)


@pytest.mark.deep
def test_the_machine_finds_nothing_in_a_long_run() -> None:
    """5,000 runs of up to 60 calls."""
    run_state_machine_as_test(
        manager_machine(kvref.implementation()),
        settings=settings(max_examples=5_000, stateful_step_count=60, deadline=None),
    )


CASES = [(pool, audit) for pool in POOLS for audit in (True, False)]
# Only the snapshot tells which duplicate was registered first, and this pool's is wrong too.
CASES.remove(("NewestDuplicateFirst", False))


@pytest.mark.rule("KV-POOL-3", "KV-POOL-4", "KV-POOL-5", "KV-POOL-6", "KV-POOL-11", "KV-POOL-13")
@pytest.mark.parametrize(
    ("broken", "audit"),
    CASES,
    ids=[f"{pool}-{'audited' if audit else 'answers_only'}" for pool, audit in CASES],
)
def test_the_machine_catches_a_broken_pool(broken: str, audit: bool) -> None:
    """With the invariants on, and by answers and content alone with them off."""
    machine = manager_machine(mistaken(broken, audits=True), audit=audit)
    with pytest.raises(InvariantViolation):
        run_state_machine_as_test(
            machine,
            settings=planted(500),
        )
