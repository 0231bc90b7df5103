"""What safety alone sees: each way to serve wrong content, without agreement on a policy."""

from __future__ import annotations

import pytest

from kvcheck.judge.random_programs import random_programs
from kvcheck.play.verdicts import Level, first_violation
from kvcheck.rules.scenarios import SCENARIOS
from kvref.implementation import ReferenceImplementation
from kvspec.interface import Implementation
from tests.fixed_point.windows import SkipsOneTokenMore
from tests.machines.broken_pools import (
    DuplicateReplacesTheFirst,
    GivesABlockTwice,
    KeepsKeysOfTakenBlocks,
    TouchLeavesTheBlockFree,
)
from tests.mutants.make import implementation_with
from tests.mutants.registry import find

TWINS: tuple[tuple[str, Implementation], ...] = (
    ("eviction keeps the key", ReferenceImplementation(KeepsKeysOfTakenBlocks)),
    ("two owners", ReferenceImplementation(GivesABlockTwice)),
    ("a hit stays free", ReferenceImplementation(TouchLeavesTheBlockFree)),
    ("duplicates replace", ReferenceImplementation(DuplicateReplacesTheFirst)),
    ("the window ends early", implementation_with(SkipsOneTokenMore)),
    ("a failed load is a hit", find("KeepsWhatFailed").make()),
    ("a load is a hit before it arrived", find("RegistersLoadsEarly").make()),
    ("slots count as computed", find("CachesWhatHasSlots").make()),
    ("embeddings are ignored", find("ForgetsEmbeddings").make()),
    ("items are ignored", find("ForgetsItems").make()),
)
"""Preemption, eviction, duplicates, windows, loads, drafts, and what else makes content differ."""


@pytest.mark.parametrize("subject", [t[1] for t in TWINS], ids=[t[0] for t in TWINS])
def test_directed_programs_see_wrong_content(subject: Implementation) -> None:
    """With the subject alone: no oracle, no policy."""
    assert any(first_violation(program, subject, Level.SAFETY) for program in SCENARIOS)


@pytest.mark.parametrize("subject", [t[1] for t in TWINS], ids=[t[0] for t in TWINS])
def test_random_programs_see_wrong_content(subject: Implementation) -> None:
    """Within what a fast budget runs."""
    found = (
        first_violation(program, subject, Level.SAFETY)
        for batch in range(10)
        for program in random_programs(0, batch, 30)
    )
    assert any(found)
