"""Directed programs: the smallest story that shows each rule. Fast, deterministic, first."""

from __future__ import annotations

from kvspec.conformance.scenarios.details import DETAIL_SCENARIOS
from kvspec.conformance.scenarios.edges import EDGE_SCENARIOS
from kvspec.conformance.scenarios.groups import GROUP_SCENARIOS
from kvspec.conformance.scenarios.hybrid import HYBRID_SCENARIOS
from kvspec.conformance.scenarios.single import SINGLE_SCENARIOS
from kvspec.conformance.scenarios.states import STATE_SCENARIOS
from kvspec.conformance.scenarios.storage import STORAGE_SCENARIOS
from kvspec.conformance.scenarios.windows import WINDOW_SCENARIOS
from kvspec.conformance.steps import Program

SCENARIOS: tuple[Program, ...] = (
    *SINGLE_SCENARIOS, *GROUP_SCENARIOS, *HYBRID_SCENARIOS, *WINDOW_SCENARIOS, *STATE_SCENARIOS,
    *STORAGE_SCENARIOS, *DETAIL_SCENARIOS, *EDGE_SCENARIOS,
)  # fmt: skip
"""All of them, in the order in which they run."""
