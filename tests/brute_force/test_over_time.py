"""Answers and states over time are what the history says, also where both twins are wrong."""

from __future__ import annotations

from itertools import islice

import pytest

from kvcheck.discovery import find_implementation
from kvcheck.mistakes import Mistake
from kvspec.interface import Implementation
from tests.brute_force.stories import (
    agree,
    first_stories,
    follow,
    history_finds,
    in_flight_stories,
    stories,
    story_named,
)
from tests.cases import every_second
from tests.kills import matrix
from tests.kills.directed import directed_checks, finds
from tests.mistakes import in_both, mistaken

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


CELLS = matrix.read()
UNSAID = {"PreemptedByStatusInBoth"}
"""The history says nothing of statistics, events, samples and the bytes of hashes."""
SAID = [pair for pair in in_both() if pair[0].id not in UNSAID]


@pytest.mark.parametrize("pair", every_second(SAID), ids=lambda pair: str(pair[0].id))
def test_a_mistake_in_both_is_seen_in_each_and_by_no_comparison(
    pair: tuple[Mistake, Mistake],
) -> None:
    story = story_named(CELLS[pair[0].id, "history"].by)
    one, other = (mistake.make() for mistake in pair)
    assert history_finds(story, one) is not None
    assert history_finds(story, other) is not None
    assert agree(story, one, other)


@pytest.mark.parametrize("pair", in_both(), ids=lambda pair: str(pair[0].id))
def test_a_mistake_in_both_is_seen_in_each_by_an_example(pair: tuple[Mistake, Mistake]) -> None:
    about = [c for c in directed_checks("both") if set(c.rules) & set(pair[0].rules)]
    for subject in (mistake.make() for mistake in pair):
        assert any(finds(check, subject, subject) for check in about)
