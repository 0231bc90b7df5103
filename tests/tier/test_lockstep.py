"""The host tier of kvfast is the reference's, call by call."""

from __future__ import annotations

from collections import Counter
from random import Random

import pytest

import kvfast
import kvref
from kvcheck.mistakes import Mistake
from kvcheck.rules.directed import EXAMPLES
from tests.device.mistakes import planted
from tests.kills.directed import finds
from tests.source import ROOT
from tests.tier.machine import GROUPS, DisagreementError, Player, config_of, tier_of

EVERY_OUTCOME = {
    f"{name} {outcome}"
    for name, outcomes in {
        "computed": ("answered", "refused something"),
        "taken": ("answered", "answered something", "refused something"),
        "lookup": ("answered", "answered something", "refused something"),
        "hold": ("answered", "refused something"),
        "load": ("answered something", "refused something"),
        "drop": ("answered",),
        "forget": ("answered", "refused something"),
        "reset": ("answered", "refused something"),
    }.items()
    for outcome in outcomes
}


def played(num_runs: int) -> Counter[str]:
    counts: Counter[str] = Counter()
    for seed in range(num_runs):
        random = Random(seed)
        config = config_of(GROUPS[seed % len(GROUPS)])
        num_blocks = random.choice([1, 3, 5, 9])
        reference = tier_of(kvref.implementation(), config, num_blocks)
        other = tier_of(kvfast.implementation(), config, num_blocks)
        player = Player(config, [reference, other], random)
        player.play(120)
        counts += player.counts
    return counts


@pytest.mark.rule("KV-TIER-1", "KV-TIER-2", "KV-TIER-3", "KV-TIER-4", "KV-TIER-5")
@pytest.mark.rule("KV-TIER-6", "KV-TIER-7", "KV-TIER-8")
def test_both_tiers_answer_alike_and_every_kind_of_outcome_occurs() -> None:
    counts = played(80)
    assert set(counts) == EVERY_OUTCOME


MISTAKES = planted(ROOT / "tests/tier/planted/tier.diff")


@pytest.mark.rule("KV-TIER-1", "KV-TIER-2", "KV-TIER-3", "KV-TIER-4", "KV-TIER-5")
@pytest.mark.rule("KV-TIER-6", "KV-TIER-7", "KV-TIER-8")
@pytest.mark.parametrize("mistake", MISTAKES, ids=lambda one: str(one.id))
def test_a_mistake_is_found_by_the_examples_and_beside_the_reference(mistake: Mistake) -> None:
    about = [each for each in EXAMPLES if each.rules[0].startswith("KV-TIER-")]
    with mistake.make():
        assert any(finds(check, kvfast.implementation()) for check in about)
        with pytest.raises((DisagreementError, KeyError)):
            played(40)


@pytest.mark.deep
def test_both_tiers_answer_alike_for_long() -> None:
    played(5000)
