"""The index of kvfast equals the reference's, batch by batch, and both are true."""

from __future__ import annotations

from collections import Counter
from random import Random

import pytest

import kvfast
import kvref
from tests.fleet.machine import Player
from tests.fleet.traffic import index_of

EVERY_OUTCOME = {
    *(f"hear {one}" for one in ("APPLIED", "WAITING", "KNOWN", "RESTARTED", "FULL")),
    "hear refuses number",
    *(f"{call} {one}" for call in ("skip", "restore") for one in (True, False)),
    "skip refuses engine",
    "forget None",
    "whole",
    "less",
    "hits",
}


def played(num_runs: int, first_seed: int = 0) -> Counter[str]:
    """Count the outcomes of `num_runs` runs of both."""
    counts: Counter[str] = Counter()
    for seed in range(first_seed, first_seed + num_runs):
        random = Random(seed)
        most = random.choice([2, 8, 1024])
        per = random.choice(["copy", "last_copy"])
        indexes = [
            index_of(one, max_waiting=most, removed_event_per=per)
            for one in (kvref.implementation(), kvfast.implementation())
        ]
        player = Player(indexes, random, is_set=per == "last_copy")
        player.play(60)
        counts += player.counts
    return counts


@pytest.mark.rule("KV-FLEET-1", "KV-FLEET-2", "KV-FLEET-3", "KV-FLEET-4", "KV-FLEET-5")
@pytest.mark.rule("KV-FLEET-6", "KV-FLEET-7", "KV-FLEET-8", "KV-FLEET-9", "KV-FLEET-17")
def test_both_indexes_answer_alike_and_every_kind_of_outcome_occurs() -> None:
    assert set(played(60)) == EVERY_OUTCOME


@pytest.mark.deep
def test_both_indexes_answer_alike_for_long() -> None:
    played(5000)
