"""Two managers written apart, one driver: equal numbers, however full the pool is."""

from __future__ import annotations

from typing import Any

import pytest

from kvcheck.discovery import find_implementation
from kvcheck.tools.replay.driver import Driver
from kvcheck.tools.replay.options import ReplayOptions
from kvcheck.tools.replay.report import ReplayContext, report
from kvcheck.tools.replay.synth import SynthTrace
from kvspec.interface import Implementation


def numbers(implementation: Implementation, trace: str, options: ReplayOptions) -> dict[str, Any]:
    driver = Driver(
        implementation, options, SynthTrace(trace), trace_name=trace, check_invariants=False
    )
    context = ReplayContext(trace, implementation.capabilities, 1.0, None, False)
    content = report(driver.run(), context)
    return {**content, "implementation": None, "seconds": None}


POOL_TOKENS = {"chat": 8_000, "agent": 40_000, "rag": 24_000}


@pytest.mark.parametrize("kind", list(POOL_TOKENS))
@pytest.mark.parametrize(
    ("block_size", "others"),
    [
        (64, {}),
        (16, {"max_tokens_per_step": 700, "max_running": 5}),
        (96, {"arrival": "timestamp", "step_ms": 40}),
        (512, {}),
        (768, {}),
    ],
    ids=["plain", "small budget", "by timestamp", "one run a block", "more than a run a block"],
)
def test_equal_numbers(kind: str, block_size: int, others: dict[str, Any]) -> None:
    trace = f"synth:{kind}?requests=40&seed=5"
    options = ReplayOptions(POOL_TOKENS[kind] // block_size, block_size, **others)
    expected = numbers(find_implementation("kvfast"), trace, options)
    assert numbers(find_implementation("kvref"), trace, options) == expected
    assert expected["evictions"] > 0
