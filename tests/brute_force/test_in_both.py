"""Mistakes that kvref and kvfast make at once are seen by a statement that is neither of them."""

from __future__ import annotations

import pytest

from kvcheck.mistakes import Mistake
from tests.brute_force.stories import agree, history_finds, story_named
from tests.cases import every_second
from tests.kills import matrix
from tests.kills.directed import directed_checks, finds
from tests.mistakes import in_both

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
