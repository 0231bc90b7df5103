"""Programs to test the drivers, recorders and shrinkers with: a story each, of few calls."""

from __future__ import annotations

from kvcheck.play.steps import Program
from tests.programs.groups import GROUP_SCENARIOS
from tests.programs.hybrid import HYBRID_SCENARIOS
from tests.programs.single import SINGLE_SCENARIOS
from tests.programs.states import STATE_SCENARIOS

SCENARIOS: tuple[Program, ...] = (
    *SINGLE_SCENARIOS,
    *GROUP_SCENARIOS,
    *HYBRID_SCENARIOS,
    *STATE_SCENARIOS,
)
"""All but the stories of hits that end inside a block."""
