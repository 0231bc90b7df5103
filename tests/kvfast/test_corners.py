"""Numbers that are ints of another type, and what an earlier look-up leaves behind."""

from __future__ import annotations

from enum import IntEnum

import pytest

import kvref
from kvcheck.rules.specs import chunked
from kvspec.batched import StepPlan
from kvspec.interface import Implementation
from kvspec.policy import Policy
from kvspec.request import RequestInput
from kvspec.sequential import batched_of
from tests.contract.builders import admit, make_config, new_request
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


@pytest.mark.rule("KV-CHUNK-2", "KV-CHUNK-7")
def test_earlier_chunks_are_null_whatever_was_found_before(fast: Implementation) -> None:
    """Look up beginnings of one text in turn, long ones after those that end in the first chunk."""
    found, policy = [], Policy(chunk_must_align=False)
    config = make_config(20, specs=[chunked(2, 5)], policy=policy)
    for implementation in (kvref.implementation(), fast):
        manager = implementation.create(config)
        for length in (5, 9, 13):
            admit(manager, new_request(implementation, manager, f"r{length}", range(length)))
        asked = (new_request(implementation, manager, f"{n}", range(n)) for n in (5, 9, 5, 13))
        found.append([manager.get_computed_blocks(request).blocks.to_lists() for request in asked])
    assert found[0] == found[1]
    assert found[0][0] == [[1, 2]]
    assert found[0][1][0][:2] == [0, 0]
