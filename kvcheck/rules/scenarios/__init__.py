"""Directed programs: the smallest story that shows each rule. Fast, deterministic, first."""

from __future__ import annotations

from kvcheck.play.steps import Program
from kvcheck.rules.scenarios.details import DETAIL_SCENARIOS
from kvcheck.rules.scenarios.edges import EDGE_SCENARIOS
from kvcheck.rules.scenarios.groups import GROUP_SCENARIOS
from kvcheck.rules.scenarios.hybrid import HYBRID_SCENARIOS
from kvcheck.rules.scenarios.inside import INSIDE_SCENARIOS
from kvcheck.rules.scenarios.single import SINGLE_SCENARIOS
from kvcheck.rules.scenarios.states import STATE_SCENARIOS
from kvcheck.rules.scenarios.storage import STORAGE_SCENARIOS
from kvcheck.rules.scenarios.windows import WINDOW_SCENARIOS

SCENARIOS: tuple[Program, ...] = (
    *SINGLE_SCENARIOS, *GROUP_SCENARIOS, *HYBRID_SCENARIOS, *WINDOW_SCENARIOS, *STATE_SCENARIOS,
    *STORAGE_SCENARIOS, *DETAIL_SCENARIOS, *EDGE_SCENARIOS,
)  # fmt: skip
"""All but the stories of hits that end inside a block, in the order in which they run."""

ALL_SCENARIOS: tuple[Program, ...] = (*SCENARIOS, *INSIDE_SCENARIOS)
"""With them; they are for subjects with the feature `hits_inside_blocks` (KV-POL-24)."""
