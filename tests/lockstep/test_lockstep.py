"""kvref and kvfast side by side: the same calls, the same answers, the same state after each."""

from __future__ import annotations

import os
from dataclasses import replace
from itertools import islice
from typing import Any, cast

import pytest

import kvref
from kvcheck.judge.random_programs import random_programs
from kvcheck.play.checks import CompareCheck, EventCheck
from kvcheck.play.performing import perform
from kvcheck.play.runner import Check, Runner
from kvcheck.play.steps import Program
from kvfast._implementation import FastImplementation
from kvspec.config import ManagerConfig
from kvspec.errors import InvariantViolation
from kvspec.interface import Implementation, KVCacheManager
from kvspec.profile import find_profile

MAX_STEPS = 60
NUM_DEEP_OPERATIONS = 1_000_000


@pytest.fixture(params=["compiled", "uncompiled"])
def fast(request: pytest.FixtureRequest) -> Implementation:
    """Each build. Skips without a compiled one, unless it has to be there."""
    try:
        return FastImplementation(request.param)
    except ImportError as error:
        if os.environ.get("KVSPEC_REQUIRE_COMPILED"):
            raise
        pytest.skip(f"no compiled build of kvfast here: {error}")


def run(program: Program, subject: Implementation) -> int:
    """Run a program on both; the number of calls, each compared with its state and events."""
    runner = Runner(program, subject, kvref.implementation())
    checks: list[Check] = [CompareCheck(exact_ids=True), EventCheck()]
    runner.checks = checks
    perform(runner, program.steps)
    return len(runner.operations)


def test_random_programs_leave_both_in_the_same_state(fast: Implementation) -> None:
    calls = sum(run(program, fast) for program in random_programs(7, 0, MAX_STEPS))
    assert calls > 3000


def test_random_programs_agree_under_the_later_choices(fast: Implementation) -> None:
    """Those of vLLM 0.33 (KV-POL-11 … KV-POL-20)."""
    policy = find_profile("vllm-0.33").policy
    programs = islice(random_programs(8, 0, 40), 60)
    chosen = (replace(p, config=replace(p.config, policy=policy)) for p in programs)
    assert sum(run(program, fast) for program in chosen) > 1000


@pytest.mark.deep
def test_a_million_calls_leave_both_in_the_same_state(fast: Implementation) -> None:
    calls = batch = 0
    while calls < NUM_DEEP_OPERATIONS:
        batch += 1
        calls += sum(run(program, fast) for program in random_programs(11, batch, MAX_STEPS))


class LastInFirstOut(FastImplementation):
    """A twin whose freed blocks all go to the back: wrong in nothing but the order."""

    def create(self, config: ManagerConfig, **options: Any) -> KVCacheManager:
        manager: Any = super().create(config, check_invariants=False)
        manager.core.pool.unhashed_to_front = False
        return cast(KVCacheManager, manager)


def test_a_difference_in_order_alone_is_seen() -> None:
    twin = LastInFirstOut("uncompiled")
    with pytest.raises(InvariantViolation, match="KV-POOL-6"):
        sum(run(program, twin) for program in random_programs(7, 0, MAX_STEPS))
