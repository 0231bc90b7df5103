"""Small schedules, operation by operation, against what their history says."""

from __future__ import annotations

from itertools import islice

import pytest

from kvcheck.discovery import find_implementation
from kvspec.interface import Implementation
from tests.brute_force.stories import (
    first_stories,
    follow,
    history_finds,
    in_flight_stories,
    stories,
)
from tests.mistakes import mistaken

NUM_STORIES = 30
NUM_IN_FLIGHT = 12
NUM_DEEP = 3_000


@pytest.fixture(params=["kvref", "kvfast", "kvfast-uncompiled"], scope="module")
def twin(request: pytest.FixtureRequest) -> Implementation:
    return find_implementation(request.param)


@pytest.mark.rule("KV-POOL-3", "KV-POOL-4", "KV-POOL-6", "KV-POOL-7", "KV-POOL-8", "KV-POOL-13")
@pytest.mark.rule("KV-GRP-1", "KV-GRP-2", "KV-GRP-3", "KV-GRP-4", "KV-GRP-5", "KV-GRP-6")
@pytest.mark.rule("KV-GRP-7", "KV-GRP-8", "KV-GRP-9", "KV-GRP-10", "KV-GRP-11")
@pytest.mark.rule("KV-MGR-1", "KV-MGR-4", "KV-MGR-5", "KV-MGR-6", "KV-MGR-7", "KV-MGR-9")
@pytest.mark.rule("KV-MGR-10", "KV-MGR-11", "KV-MGR-13", "KV-MGR-14", "KV-MGR-17", "KV-MGR-18")
@pytest.mark.rule("KV-MAMBA-2", "KV-MAMBA-5", "KV-MAMBA-6", "KV-MAMBA-7", "KV-MAMBA-8")
@pytest.mark.rule("KV-MAMBA-9", "KV-MAMBA-11", "KV-MAMBA-12", "KV-COORD-13", "KV-RET-4")
@pytest.mark.rule("KV-RET-5", "KV-PART-1", "KV-PART-2", "KV-PART-3", "KV-PART-5")
@pytest.mark.rule("KV-HASH-14", "KV-HASH-15")
def test_answers_and_states_are_what_the_history_says(twin: Implementation) -> None:
    assert sum(follow(story, twin) for story in first_stories(NUM_STORIES)) > 25 * NUM_STORIES


@pytest.mark.rule("KV-MGR-21")
def test_what_tokens_in_flight_read_is_held_as_the_history_says(twin: Implementation) -> None:
    for story in in_flight_stories(NUM_IN_FLIGHT):
        follow(story, twin)


def test_the_history_finds_that_what_they_read_is_released() -> None:
    broken = mistaken("InFlightCountsAsProcessed")
    assert any(history_finds(story, broken) for story in in_flight_stories(NUM_IN_FLIGHT))


@pytest.mark.deep
def test_answers_and_states_are_what_the_history_says_of_thousands(twin: Implementation) -> None:
    for story in islice(stories(seed=1), NUM_DEEP):
        follow(story, twin)
