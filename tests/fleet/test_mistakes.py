"""Broken indexes and host tiers are found by the examples of their rules."""

from __future__ import annotations

import pytest

import kvfast
from kvcheck.mistakes import Mistake
from kvcheck.rules.directed import EXAMPLES
from tests.device.mistakes import planted
from tests.fleet import machine as indexes
from tests.fleet.test_lockstep import played as play_indexes
from tests.kills.directed import finds
from tests.source import ROOT
from tests.tier import machine as tiers
from tests.tier.test_lockstep import played as play_tiers

MISTAKES = [
    mistake
    for name in ("fleet/planted/index.diff", "tier/planted/tier.diff")
    for mistake in planted(ROOT / "tests" / name)
]


@pytest.mark.rule("KV-FLEET-1", "KV-FLEET-2", "KV-FLEET-3", "KV-FLEET-4", "KV-FLEET-5")
@pytest.mark.rule("KV-FLEET-6", "KV-FLEET-7", "KV-FLEET-8", "KV-FLEET-9", "KV-FLEET-17")
@pytest.mark.rule("KV-TIER-1", "KV-TIER-2", "KV-TIER-3", "KV-TIER-4", "KV-TIER-5")
@pytest.mark.rule("KV-TIER-6", "KV-TIER-7", "KV-TIER-8")
@pytest.mark.parametrize("mistake", MISTAKES, ids=lambda one: str(one.id))
def test_a_mistake_in_an_index_or_a_tier_is_found(mistake: Mistake) -> None:
    chapter = mistake.rules[0].rpartition("-")[0]
    about = [each for each in EXAMPLES if each.rules[0].startswith(chapter)]
    with mistake.make():
        assert any(finds(check, kvfast.implementation()) for check in about)


@pytest.mark.parametrize("mistake", MISTAKES, ids=lambda one: str(one.id))
def test_random_calls_side_by_side_find_it_too(mistake: Mistake) -> None:
    of_index = mistake.rules[0].startswith("KV-FLEET")
    differs = (indexes.DisagreementError, tiers.DisagreementError, KeyError)
    with mistake.make(), pytest.raises(differs):
        play_indexes(60) if of_index else play_tiers(40)
