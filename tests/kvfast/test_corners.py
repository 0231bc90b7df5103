"""Numbers that are ints of another type."""

from __future__ import annotations

from enum import IntEnum

import pytest

from kvspec.batched import StepPlan
from kvspec.interface import Implementation
from kvspec.request import RequestInput
from kvspec.sequential import batched_of
from tests.contract.builders import make_config
from tests.lockstep.test_lockstep import fast

__all__ = ["fast"]  # the fixture


class Number(IntEnum):
    ZERO = 0
    ONE = 1


@pytest.mark.rule("KV-BATCH-3")
def test_numbers_of_a_subclass_of_int_are_handles_and_counts(fast: Implementation) -> None:
    manager = fast.create(make_config(40))
    batched = batched_of(fast, manager)
    for name in ("a", "b"):
        batched.register(fast.make_request(manager, RequestInput(name, range(6))))
    batched.step(StepPlan(new=[Number.ZERO, Number.ONE], max_new_tokens=[5, Number.ONE]))
    granted = batched.decode([Number.ONE, Number.ZERO], [2, Number.ONE])
    assert list(granted.num_scheduled_tokens) == [2, 1]
