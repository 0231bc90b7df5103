"""The state in which a round finds the pool, and what the shipped plans are made of."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

import kvref
from kvcheck.tools.bench.cases import (
    BLOCK_SIZE_TOKENS,
    Case,
    DecodeCase,
    Plan,
    ReplayCase,
    Section,
    config_of,
    full_plan,
    quick_plan,
)
from kvcheck.tools.bench.measure import Contestant, Scenario, Subject, scenario_of
from kvcheck.tools.bench.scenarios import APPEND, DECODE, LOOK_UP
from kvcheck.tools.bench.stopwatch import Turn
from kvspec.config import ManagerConfig
from kvspec.interface import KVCacheManager
from tests.bench.toy import COLD, SMALL


class Audited(kvref.ReferenceImplementation):
    def create(self, config: ManagerConfig, **options: Any) -> KVCacheManager:
        self.manager = super().create(config, check_invariants=True)
        return self.manager


def turn(scenario: Scenario) -> Turn:
    return Turn("kvref", scenario.case.label, scenario.work.calls, lambda: 0)


def prepared(case: Case, kvref: Audited) -> Scenario:
    scenario = scenario_of(Contestant(Subject("kvref", kvref)), case, 3)
    scenario.prepare(turn(scenario))
    return scenario


def results(scenario: Scenario, phase: str) -> list[Sequence[Any]]:
    """Return those of one more round."""
    played = turn(scenario)
    scenario.run_round(played)
    return [found for name, found in played.kept if name == phase]


def test_a_cold_pool_is_full_of_cached_blocks_in_no_order() -> None:
    kvref = Audited()
    prepared(COLD, kvref)
    state = kvref.manager.snapshot()
    assert kvref.manager.num_free_blocks == COLD.num_blocks - 1
    assert all(state.block_keys[1:])
    pairs = zip(state.free_queue, state.free_queue[1:], strict=False)
    in_order = [left for left, right in pairs if right == left - 1]
    assert len(in_order) < COLD.num_blocks - 1 - COLD.num_blocks // 16


def test_cold_rounds_ask_for_other_prompts_and_hot_ones_for_the_same() -> None:
    for case, repeats in ((COLD, False), (SMALL, True)):
        scenario = prepared(case, Audited())
        hits = [hit for _ in range(3) for hit in results(scenario, LOOK_UP)]
        assert (hits[0] == hits[1] == hits[2]) is repeats
        assert (len({str(hit) for each in hits for hit in each}) == 2) is repeats


def test_in_each_step_of_decoding_as_many_requests_begin_a_block() -> None:
    case = DecodeCase(num_requests=32, prompt_tokens=64, num_blocks=32 * 8)
    scenario = prepared(case, Audited())
    hashes: list[Any] = []
    for _ in range(2):
        played = turn(scenario)
        scenario.run_round(played)
        found = [each for name, each in played.kept if name == DECODE]
        assert [sum(map(bool, step)) for step in found] == [2] * BLOCK_SIZE_TOKENS
        by_request = zip(*found, strict=True)
        assert [sum(map(len, each)) for each in by_request] == [1] * case.num_requests
        hashes += [each for name, each in played.kept if name == APPEND][-1]
    assert len({value for (value,) in hashes}) == 2 * case.num_requests


@pytest.mark.parametrize("plan", [full_plan(), quick_plan()], ids=["full", "quick"])
def test_every_case_has_room_for_all_its_rounds(plan: Plan) -> None:
    for case in plan.cases:
        assert not isinstance(case, ReplayCase)
        tokens = case.prompt_tokens
        if isinstance(case, DecodeCase):
            tokens = case.length_tokens(BLOCK_SIZE_TOKENS - 1)
            tokens += (plan.num_rounds + 1) * BLOCK_SIZE_TOKENS
            assert config_of(case).max_model_len_tokens >= tokens
        assert case.num_requests * -(-tokens // BLOCK_SIZE_TOKENS) < case.num_blocks


def test_a_plan_may_be_reduced_to_a_section() -> None:
    whole = full_plan()
    parts = [full_plan([section]) for section in Section]
    assert sum((part.cases for part in parts), ()) == whole.cases
    assert [part.pool_sizes for part in parts if part.pool_sizes] == [whole.pool_sizes]
    assert all(isinstance(each, DecodeCase) for each in full_plan([Section.DECODE]).cases)
