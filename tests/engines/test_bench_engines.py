"""`python -m bench.engines`, where vLLM is installed: that it runs, never how long."""

from __future__ import annotations

from typing import Any

import pytest


def test_every_kind_of_load_has_its_rows(model: Any) -> None:
    from bench.engines.load import cases
    from bench.engines.report import tables
    from bench.engines.rounds import Measured

    names = ("1 decodes, async", "16 decodes", "16 running, 128 tokens each, async")
    chosen = [each for each in cases(None) if each.name in names]
    measured = [Measured(each, model, 2) for each in chosen]
    lines = list(tables(measured, "…"))
    assert sum(line.startswith("| 16 decodes |") for line in lines) == 3
    assert all(each.batched > 0.9 for each in measured)
    assert [each.come_per_step > 0 for each in measured] == [True, False, False]


def test_schedulers_that_plan_different_steps_are_not_compared(
    model: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    from bench.engines.load import cases
    from bench.engines.rounds import Measured, UnequalPlansError
    from kvfast.engines.vllm.steps import BatchedSteps

    granted = BatchedSteps._granted
    monkeypatch.setattr(
        BatchedSteps, "_granted", lambda steps, chosen: [None for _ in granted(steps, chosen)]
    )
    case = next(each for each in cases(None) if each.name == "16 decodes")
    with pytest.raises(UnequalPlansError, match="16 decodes"):
        Measured(case, model, 2)
