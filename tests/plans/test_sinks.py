"""Sinks on one worker take their blocks from the pools of all (KV-PLAN-9, KV-FULL-8)."""

from __future__ import annotations

import pytest

from kvref.implementation import ReferenceImplementation
from kvspec.errors import CacheMemoryError
from kvspec.planning import Planner, PlanningConfig
from kvspec.specs import FullAttentionSpec, SinkFullAttentionSpec
from tests.plans.cases import Case
from tests.plans.properties import CHECKS


@pytest.mark.rule("KV-PLAN-9", "KV-PLAN-20", "KV-FULL-8")
def test_the_sinks_of_one_worker_count_on_the_others() -> None:
    implementation = ReferenceImplementation()
    planner = implementation.planner
    assert isinstance(planner, Planner)
    sink = SinkFullAttentionSpec(2, 1, 8, "float16", sink_len=2)
    workers = ((), (("layer0", sink),), (("layer1", FullAttentionSpec(2, 1, 8, "float16")),))
    config = PlanningConfig(1, max_num_batched_tokens=1, block_size=4, enable_caching=False)
    with pytest.raises(CacheMemoryError, match=r"0\.00 GiB"):
        planner.plan(workers, config, (1, 192, 128))
    enough = Case(workers, config, (1, 192, 192))
    CHECKS["an_accepted_plan_serves_a_request_of_full_length"](implementation, planner, enough)
